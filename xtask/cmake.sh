#!/bin/sh
# cmake, but for rdma-core in the crate `ibverbs-sys`: that crate builds all of it, and uses its headers alone. They are there once cmake
# has configured the build.
case "$1 $2" in
"--build "*/ibverbs-sys-*) exit 0 ;;
esac
exec cmake "$@"
