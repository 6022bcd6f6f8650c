//! A module that the machine has no room for is no invalid one. One test: the bound is the whole process's.

#[path = "it/support/mod.rs"]
mod support;

use reprise_host::{CompiledModule, Engine};
use support::{module, small_limits};

const TEXT: &str =
    r#"(module (memory (export "memory") 1 1) (func (export "reprise_call_f") (param i32) (result i32) i32.const 0))"#;

fn bound_address_space(bytes: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it writes this structure alone.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    let was = limit.rlim_cur;
    limit.rlim_cur = bytes.min(limit.rlim_max);
    // SAFETY: it reads this structure alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    was
}

#[test]
fn a_module_without_room_for_an_instance_is_taken_once_there_is_some() {
    let wasm = module(TEXT, &["f"]);
    let engine = Engine::new(small_limits());
    let compile = || CompiledModule::compile(&engine, &wasm).map(drop);
    assert_eq!(compile(), Ok(()));
    let pages = std::fs::read_to_string("/proc/self/statm").expect("its own pages");
    let pages: u64 = pages
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    // A memory reserves 4 GiB of addresses.
    let was = bound_address_space(pages * 4096 + (1 << 30));
    let refused = compile();
    bound_address_space(was);
    let refused = refused.expect_err("there is no room");
    assert!(
        refused.lacks_room && refused.reason.starts_with("instantiate module: "),
        "{refused:?}"
    );
    assert_eq!(compile(), Ok(()));
}
