//! The modules of a checkpoint, put back.

use std::sync::{Arc, Weak};

use reprise_base::TxnId;
use reprise_host::describe;
use reprise_txn::{RestoredModule, TablePast, restore};

use crate::bed::NoCode;

const SCHEMA: &[u8] = br#"{"abi":1,"tables":[],
  "procedures":[{"name":"p","params":[],"returns":"unit","partitioning":"all"}]}"#;

#[test]
fn equal_versions_share_their_memory_while_the_next_one_is_read() {
    let mut read: Vec<Weak<[u8]>> = Vec::new();
    let versions = (1..=5).map(|version| {
        let held = read.iter().filter(|description| description.strong_count() > 0);
        assert!(held.count() <= 1, "before version {version}");
        let description: Arc<[u8]> = SCHEMA.into();
        read.push(Arc::downgrade(&description));
        RestoredModule {
            name: "m".into(),
            version,
            hash: [0; 32],
            wasm_bytes: 0,
            installed_by: TxnId(u64::from(version)),
            in_service: false,
            migrations: Vec::new(),
            origins: None,
            schema: describe::from_json(SCHEMA).expect("a description"),
            description,
            code: Arc::new(NoCode),
        }
    });
    let deployed = restore(0, Vec::new(), TablePast::default(), versions).expect("they fit together");
    let [first, others @ ..] = &deployed.versions[..] else {
        panic!("there are five");
    };
    assert_eq!(others.len(), 4);
    assert!(others.iter().all(|other| Arc::ptr_eq(&first.schema, &other.schema)));
}
