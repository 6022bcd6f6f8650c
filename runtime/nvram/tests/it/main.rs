//! The integration tests of `reprise-nvram`, in one binary.

mod crash;
mod pmem;

use reprise_nvram::Owner;

const OWNER: Owner = Owner {
    database_id: [7; 16],
    region_id: [8; 16],
    settings_hash: 9,
    semantics: 1,
    format: 4,
};
