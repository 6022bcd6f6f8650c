//! The price of the memory and storage that a scheme needs (NV-Logging, section 6.6).

use crate::schemes::Scheme;

/// Ratios of the price of NVRAM to that of disk (section 6.6: from 1 to 256; it takes 24 to be likely).
pub const NVRAM_TO_DISK: [f64; 9] = [1.0, 4.0, 8.0, 16.0, 24.0, 48.0, 64.0, 128.0, 256.0];

/// Prices in dollars a gigabyte, and the gigabytes of a database (the paper's TPC-C by default, section 6.1).
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Prices {
    /// Dollars of a gigabyte of DRAM
    #[arg(long, value_name = "DOLLARS", default_value_t = 5.5)]
    pub dram: f64,
    /// Dollars of a gigabyte of disk
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.05)]
    pub disk: f64,
    /// Gigabytes of rows, which lie in DRAM and in checkpoints
    #[arg(long, value_name = "GB", default_value_t = 9.0)]
    pub data_gb: f64,
    /// Gigabytes of log
    #[arg(long, value_name = "GB", default_value_t = 3.0)]
    pub log_gb: f64,
}

impl Prices {
    /// Returns the dollars that a scheme costs. All have the rows in DRAM. The baseline, NV-Disk, has checkpoints and log in NVRAM. The others
    /// have the log alone there, and the checkpoints on disk.
    pub fn dollars(&self, scheme: Scheme, nvram_to_disk: f64) -> f64 {
        let nvram = self.disk * nvram_to_disk;
        let checkpoints = if scheme == Scheme::NvDisk { nvram } else { self.disk };
        self.data_gb * self.dram + self.data_gb * checkpoints + self.log_gb * nvram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_pays_nvram_for_its_checkpoints_too() {
        let prices = Prices {
            dram: 5.5,
            disk: 0.05,
            data_gb: 9.0,
            log_gb: 3.0,
        };
        for (ratio, baseline, other) in [(1.0, 50.1, 50.1), (24.0, 63.9, 53.55), (256.0, 203.1, 88.35)] {
            let dollars = [Scheme::NvDisk, Scheme::Distributed].map(|scheme| prices.dollars(scheme, ratio));
            for (found, expected) in dollars.into_iter().zip([baseline, other]) {
                assert!((found - expected).abs() < 1e-9, "{ratio}: {found} is not {expected}");
            }
        }
    }
}
