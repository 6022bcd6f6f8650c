//! libpmem itself, on an ordinary file. The emulated NVDIMM is in `tests/hardware`.

use std::{fs, path::PathBuf, sync::Arc};

use crate::OWNER;
use reprise_base::{Epoch, Lsn, PlacedBytes};
use reprise_nvram::{FlushPolicy, Memory, Persistence, Pmem, PmemError, PmemOptions, Region};

const BYTES: u64 = 1 << 20;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("reprise-nvram-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn options(&self, assume_persistent: bool) -> PmemOptions {
        PmemOptions {
            path: self.0.join("region"),
            bytes: Some(BYTES),
            assume_persistent,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn records_outlive_the_mapping() {
    for assume_persistent in [false, true] {
        let folder = Folder::new("outlive");
        let options = folder.options(assume_persistent);
        let memory = Arc::new(Pmem::open(&options).expect("libpmem"));
        let expected = if assume_persistent {
            Persistence::Assumed
        } else {
            Persistence::Msync
        };
        assert_eq!(memory.persistence(), expected);
        assert_eq!(memory.bytes() as u64, BYTES);
        let region = Region::format(memory, OWNER, 2, 64, (Epoch::new(1, 0), Lsn(0))).expect("there is room");
        let mut rings = region.rings(FlushPolicy::OnInsert);
        let mut objects = rings[0].0.objects().expect("on insert");
        let row = PlacedBytes {
            at: 0,
            bytes: 5,
            place: objects.insert(b"a row").expect("there is room"),
        };
        let written = rings[0].0.records(Lsn(5), 1, b"a row and its end", &[row]);
        written.expect("there is room");
        rings[1].0.records(Lsn(4), 1, b"a record", &[]).expect("there is room");
        rings.iter_mut().for_each(|(writer, _)| writer.persist());
        drop((rings, objects));
        let memory = Arc::new(Pmem::open(&options).expect("libpmem"));
        let found = Region::open(memory)
            .expect("ours")
            .expect("made")
            .recover()
            .expect("whole")
            .records;
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].lsn, &found[0].bytes[..]), (Lsn(4), &b"a record"[..]));
        assert_eq!((found[1].lsn, &found[1].bytes[..]), (Lsn(5), &b"a row and its end"[..]));
    }
}

#[test]
fn file_that_cannot_be_a_region_is_refused_and_unchanged() {
    let folder = Folder::new("refused");
    let options = folder.options(true);
    let first = Pmem::open(&options).expect("libpmem");
    assert!(matches!(Pmem::open(&options), Err(PmemError::Used { .. })));
    drop(first);
    let larger = PmemOptions {
        bytes: Some(BYTES * 2),
        ..options.clone()
    };
    assert!(matches!(Pmem::open(&larger), Err(PmemError::Size { found: BYTES, .. })));
    assert_eq!(fs::metadata(&options.path).expect("it is there").len(), BYTES);
    let directory = PmemOptions {
        path: folder.0.clone(),
        ..options.clone()
    };
    assert!(matches!(Pmem::open(&directory), Err(PmemError::Kind { .. })));
    let nowhere = PmemOptions {
        path: folder.0.join("none/region"),
        ..options.clone()
    };
    let error = Pmem::open(&nowhere).err().expect("no such folder").to_string();
    assert!(error.contains("none/region"), "{error}");
    let nothing = PmemOptions {
        path: folder.0.join("empty"),
        bytes: Some(0),
        ..options
    };
    assert!(Pmem::open(&nothing).is_err());
    assert!(!folder.0.join("empty").exists());
}
