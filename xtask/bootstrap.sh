#!/bin/sh
# Makes sure that the tools for a task are here. Installs what is missing on Debian 12; elsewhere names the one thing.
# Usage: xtask/bootstrap.sh [run|test|test-STAGE|check|package|has-room]
# ROOM_GIB=N: asks for so much room on the disk instead of what the task was found to take; 0: for none.
set -eu

task=${1:-run}
wasm_target=wasm32-unknown-unknown

has() { command -v "$1" >/dev/null 2>&1; }

fail() {
    echo "missing: $1" >&2
    exit 1
}

# stage NAME...: whether the task is all tests, or one of these stages of them.
stage() {
    [ "$task" = test ] && return 0
    for name in "$@"; do [ "$task" != "test-$name" ] || return 0; done
    return 1
}

is_debian() { [ -r /etc/os-release ] && grep -Eq '^ID(_LIKE)?=.*debian' /etc/os-release; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif has sudo; then sudo "$@"; else fail "root rights for: $*"; fi
}

# need WHAT PACKAGE...: installs the packages on Debian, else ends with WHAT.
need() {
    what=$1
    shift
    is_debian || fail "$what"
    echo "installing $*" >&2
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; then
        as_root apt-get update -qq
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
            fail "$what (apt-get install $*)"
    fi
}

has_wasm_target() { ls "$(rustc --print sysroot)/lib/rustlib/$wasm_target/lib"/libcore-* >/dev/null 2>&1; }

has_debian_wasm() { [ -x /usr/bin/cargo ] && [ -e "$(/usr/bin/rustc --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; }

has_wasm_linker() { ls "$(rustc --print sysroot)"/lib/rustlib/*/bin/rust-lld /usr/bin/wasm-ld* >/dev/null 2>&1; }

# What a build from nothing leaves in target and web-console, in GiB, rounded up, with what its tests write beside it.
room_gib() {
    case $1 in
        run) echo 5 ;;
        *) echo 7 ;;
    esac
}

# Ends at once where the disk would be full before the end. What is built already counts; a GiB is asked for all the same.
check_room() {
    needed=${ROOM_GIB:-$(room_gib "$1")}
    target=${CARGO_TARGET_DIR:-target}
    built=$({ [ ! -d "$target" ] || du -sk "$target" 2>/dev/null; } | awk '{ sum += $1 } END { print int(sum / 1048576) }')
    place=$target
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    free=$(df -Pk "$place" | awk 'NR == 2 { print int($4 / 1048576) }')
    more=$((needed - built))
    [ "$needed" -eq 0 ] || [ "$more" -ge 1 ] || more=1
    [ "$free" -ge "$more" ] || {
        echo "too little room: $target needs $more GiB more ($needed in all, $built are there), and its disk has $free GiB free." >&2
        echo "Make room, set CARGO_TARGET_DIR to a folder of another disk, or say ROOM_GIB=0 to go on all the same." >&2
        exit 1
    }
}

if [ "$task" = has-room ]; then
    check_room test
    exit 0
fi

has cargo || fail "Rust 1.95 or newer: https://rustup.rs"

# component NAME COMMAND: a part of the toolchain, which rustup's minimal profile leaves out.
component() {
    cargo "$2" --version >/dev/null 2>&1 || { has rustup && rustup component add "$1" >/dev/null 2>&1; } ||
        fail "$1 (rustup component add $1)"
}

if [ "$task" = check ] || stage unit; then component rustfmt fmt; fi
[ "$task" != check ] || component clippy clippy

check_room "$task"
has cc || need "a C compiler (cc)" gcc libc6-dev

# The crate `ibverbs-sys` builds rdma-core, and reads its headers with libclang, whose folder `.cargo/config.toml` names.
has cmake || need "cmake" cmake make
has pkg-config || need "pkg-config" pkg-config
[ -e /usr/include/infiniband/verbs_api.h ] && pkg-config --exists libnl-3.0 libnl-route-3.0 ||
    need "the headers of rdma-core and libnl 3" libibverbs-dev libnl-3-dev libnl-route-3-dev
libclang=/usr/lib/llvm-14/lib
[ -n "${LIBCLANG_PATH:-}" ] || { ls $libclang/libclang*.so* && [ -d $libclang/clang ]; } >/dev/null 2>&1 ||
    need "libclang 14 to 19: set LIBCLANG_PATH to its folder" libclang1-14 libclang-common-14-dev

if ! has_wasm_target && ! { has rustup && rustup target add $wasm_target >/dev/null 2>&1; }; then
    has_debian_wasm || need "the Rust target $wasm_target (rustup target add $wasm_target)" rustc-web cargo-web rust-web-src
    has_wasm_linker || need "a linker for wasm (lld)" lld
fi

# Profiles are merged by LLVM's tool of the compiler's own version.
if [ "$task" = package ]; then
    llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    ls "$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata >/dev/null 2>&1 || has "llvm-profdata-$llvm" ||
        { has rustup && rustup component add llvm-tools >/dev/null 2>&1; } ||
        need "llvm-profdata of LLVM $llvm (rustup component add llvm-tools)" "llvm-$llvm"
    # A package without it is whole, and a few percent slower.
    has "llvm-bolt-$llvm" || has llvm-bolt || ! is_debian ||
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "bolt-$llvm" >/dev/null 2>&1 || true
fi

# The power tests run the server in a virtual machine. Elsewhere than on Debian the tests that lack a tool say so.
if stage hardware && is_debian && ! tests/hardware/boot-vm --fetch >/dev/null 2>&1; then
    as_root tests/hardware/boot-vm --install >/dev/null && tests/hardware/boot-vm --fetch ||
        fail "a virtual machine for the power tests (tests/hardware/boot-vm --install)"
fi

# Servers on hosts of their own, in network namespaces.
if stage process && is_debian && ! has ip && ! [ -x /usr/sbin/ip ]; then
    need "ip (iproute2)" iproute2
fi

# Servers take over by a lease in etcd.
if stage process hardware && is_debian && ! has etcd; then
    need "etcd" etcd-server
fi

# Instructions of calls are counted by callgrind.
if stage unit && is_debian && ! has valgrind; then
    need "valgrind" valgrind
fi

# Prometheus's own tool reads the metrics.
if stage process && is_debian && ! has promtool; then
    need "promtool" prometheus
fi

# The tests keep logs in NVRAM, as far as a file can stand for it.
if stage unit process hardware && ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libpmem\.so\.1'; then
    need "libpmem (PMDK)" libpmem1
fi

if [ "$task" != test-sim ] && [ "$task" != check ] && [ -e web-console/package.json ]; then
    has npm || need "Node.js 20.19 or newer, with npm" nodejs npm
    if stage console; then
        has chromium || has chromium-browser || has google-chrome || need "Chromium, for the browser tests" chromium
    fi
fi
