//! A machine without room for an instance, for want of addresses or of mappings. One test at a time: the bounds are the process's.

#[path = "it/support/mod.rs"]
mod support;

use std::sync::{Mutex, PoisonError};

use reprise_base::limits::MAPPINGS_LIMIT;
use reprise_host::{CompiledModule, Engine, Instance};
use reprise_pages::{Mappings, mappings_max};
use support::{MapOps, compile, faulted, module, returned, small_limits};

static PROCESS: Mutex<()> = Mutex::new(());

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
    let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Writes to 60 pages that do not lie together, and answers a byte of each as it was before.
const SCATTERED: &str = r#"(module
  (import "reprise1" "result_write" (func $result_write (param i64)))
  (memory (export "memory") 16 16)
  (func (export "reprise_call_f") (param i32) (result i32) (local $n i32) (local $at i32)
    (loop $again
      (local.set $at (i32.add (i32.const 65536) (i32.mul (local.get $n) (i32.const 8192))))
      (i32.store8 (local.get $n) (i32.load8_u (local.get $at)))
      (i32.store8 (local.get $at) (i32.const 1))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $n) (i32.const 60))))
    (call $result_write (i64.const 0x3c_0000_0000))
    (i32.const 0)))"#;

/// Mappings of this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has maps");
    maps.lines().count()
}

#[test]
fn guests_take_no_mappings_that_arrays_or_threads_need() {
    let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compile(SCATTERED, &["f"]);
    let mut split = Instance::new(&compiled);
    let before = mappings();
    for _ in 0..3 {
        assert_eq!(returned(&mut split, 0, &[]), [0; 60]);
    }
    assert!(mappings() >= before + 60, "each page that is written splits the memory");
    let half = Mappings::take(mappings_max() / 2);
    let mut whole = Instance::new(&compiled);
    let before = mappings();
    for _ in 0..200 {
        assert_eq!(returned(&mut whole, 0, &[]), [0; 60], "it is put back, as a whole");
    }
    assert!(mappings() < before + 30, "its memory is not split");
    let rest = Mappings::take(mappings_max() / 10 * 4);
    let mut refused = Instance::new(&compiled);
    let fault = faulted(&mut refused, 0, &[]);
    assert_eq!((fault.limit, fault.max), (Some(MAPPINGS_LIMIT), mappings_max() as u64));
    let lacking = CompiledModule::compile(&Engine::new(small_limits()), &module(TEXT, &["f"])).map(drop);
    assert!(lacking.expect_err("no room").lacks_room);
    assert_eq!(
        returned(&mut whole, 0, &[]),
        [0; 60],
        "an instance that has started serves calls"
    );
    let mut ops = MapOps {
        is_replay: true,
        ..MapOps::default()
    };
    assert!(
        refused.call(0, 0, &mut ops).kind.is_ok(),
        "what was committed runs again"
    );
    drop((half, rest));
    assert_eq!(returned(&mut Instance::new(&compiled), 0, &[]), [0; 60]);
}
