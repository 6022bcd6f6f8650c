//! The module of `docs/ABI.md`, which nothing of ours has compiled: deployed, called, replayed. And the page's table of host calls.

use std::sync::mpsc;

use crate::common::open;
use reprise_database::Database;
use reprise_router::{BatchBuilder, ReplyOutcome};

const PAGE: &str = include_str!("../../../../docs/ABI.md");

fn module() -> Vec<u8> {
    let (_, text) = PAGE.split_once("```wat\n").expect("a module in the page");
    let (text, _) = text.split_once("```").expect("its end");
    wat::parse_str(text).expect("wasm text")
}

fn call(database: &Database, procedure: &str, args: &[i64]) -> Result<i64, String> {
    let router = database.router();
    let deployed = router.deployed();
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    let (number, _) = deployed.current["counters"].procedure(procedure).expect("a procedure");
    let encode = |out: &mut Vec<u8>| {
        args.iter().for_each(|arg| out.extend_from_slice(&arg.to_le_bytes()));
        Ok::<(), ()>(())
    };
    batch
        .push(&deployed.current["counters"], number, None, encode)
        .expect("encoded");
    let (sender, receiver) = mpsc::channel();
    router.submit(
        batch,
        Box::new(move |reply| sender.send(reply).expect("the test waits")),
    );
    let reply = receiver.recv().expect("a reply");
    match reply.get(0).outcome {
        ReplyOutcome::Committed => Ok(i64::from_le_bytes(reply.get(0).result.try_into().expect("eight bytes"))),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn the_page_is_enough_to_write_a_module_by_hand() {
    let dir = tempfile::tempdir().expect("a folder");
    let (database, _) = open(dir.path(), 3);
    database.router().deploy("counters", &module()).expect("deployed");
    for k in -200..200 {
        assert_eq!(call(&database, "add", &[k, 3]), Ok(3));
    }
    assert_eq!(call(&database, "add", &[5, 4]), Ok(7));
    let refused = call(&database, "add", &[5, -8]).expect_err("below zero");
    assert!(
        refused.contains("negative") && refused.contains("a counter is at least 0"),
        "{refused}"
    );
    assert_eq!(
        call(&database, "add", &[5, -7]),
        Ok(0),
        "nothing of the aborted call stays"
    );
    assert_eq!(call(&database, "total", &[]), Ok(399 * 3));
    database.close().expect("closed");

    let (database, _) = open(dir.path(), 1);
    assert_eq!(call(&database, "total", &[]), Ok(399 * 3), "replayed");
    database.close().expect("closed");
}

#[test]
fn the_page_names_every_host_call() {
    let table = include_str!("../../../abi/src/calls.rs");
    let names = table
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(
            PAGE.contains(&format!("`{name}`")),
            "docs/ABI.md does not name the host call {name}"
        );
    }
}
