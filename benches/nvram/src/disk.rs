//! A folder on the file system of the NVRAM, whose lines take longer to be written (NV-Disk).

use std::time::Duration;

use reprise_driver::spin_for_lines;
use reprise_env::{DiskError, DiskFile, DiskFilter};

/// How much longer a line takes.
pub struct SlowLines(pub Duration);

impl DiskFilter for SlowLines {
    fn write_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        file.write_at(offset, bytes)?;
        spin_for_lines(self.0, offset, bytes.len() as u64);
        Ok(())
    }

    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        file.write_durable_at(offset, bytes)?;
        spin_for_lines(self.0, offset, bytes.len() as u64);
        Ok(())
    }
}
