//! The standbys that a primary expects, beside its log: what they lack is held for them after a restart, too.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError};
use reprise_ship::check_name;
use serde::{Deserialize, Serialize};

use crate::small_file;

const EXPECTED_NAME: &str = "standbys.json";

#[derive(Serialize, Deserialize)]
struct Expected {
    name: String,
    /// Its log was durable up to here.
    lsn: u64,
}

/// Nobody where there is no such file. Err: why it can't be read.
pub(crate) fn load(root: &dyn Disk) -> Result<Vec<(Arc<str>, Lsn)>, String> {
    let read = small_file::read(root, EXPECTED_NAME).map_err(|error| error.to_string())?;
    let Some(bytes) = read else {
        return Ok(Vec::new());
    };
    let wrong = |error: String| format!("{EXPECTED_NAME} can't be read: {error}");
    let expected: Vec<Expected> = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let standbys = expected.into_iter().map(|standby| {
        check_name(&standby.name).map_err(wrong)?;
        Ok((standby.name.into(), Lsn(standby.lsn)))
    });
    standbys.collect()
}

pub(crate) fn save(root: &dyn Disk, standbys: &[(Arc<str>, Lsn)]) -> Result<(), DiskError> {
    let expected = standbys.iter().map(|(name, lsn)| Expected {
        name: name.to_string(),
        lsn: lsn.0,
    });
    let expected: Vec<_> = expected.collect();
    let text = serde_json::to_vec(&expected).expect("names and numbers");
    small_file::replace(root, EXPECTED_NAME, &text)
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    #[test]
    fn a_list_reads_back_and_garbage_is_said() {
        let disk = SimDisk::new();
        assert_eq!(load(&disk), Ok(Vec::new()));
        let standbys = [(Arc::from("s1"), Lsn(7)), (Arc::from("s2"), Lsn(u64::MAX))];
        save(&disk, &standbys).expect("saved");
        assert_eq!(load(&disk), Ok(standbys.to_vec()));
        for (garbage, what) in [("[", "EOF"), ("[{\"name\":\"a/b\",\"lsn\":1}]", "letters, digits")] {
            small_file::replace(&disk, EXPECTED_NAME, garbage.as_bytes()).expect("saved");
            let error = load(&disk).expect_err("refused");
            assert!(error.contains(what) && error.contains(EXPECTED_NAME), "{error}");
        }
    }
}
