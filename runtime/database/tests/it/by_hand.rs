//! The module of `docs/ABI.md`, which nothing of ours has compiled: deployed, called, replayed. And the page's table of host calls.

use crate::common::{call_i64, open};
use reprise_database::Database;

const PAGE: &str = include_str!("../../../../docs/ABI.md");

fn call(database: &Database, procedure: &str, args: &[i64]) -> Result<i64, String> {
    call_i64(database, "counters", procedure, args)
}

fn module() -> Vec<u8> {
    let (_, text) = PAGE.split_once("```wat\n").expect("a module in the page");
    let (text, _) = text.split_once("```").expect("its end");
    wat::parse_str(text).expect("wasm text")
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
