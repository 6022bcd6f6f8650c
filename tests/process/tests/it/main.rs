//! The integration tests of `reprise-test-process`, in one binary.

mod ages;
mod archive;
mod damage;
mod divergence;
mod exhaustion;
mod follow;
mod installed;
mod keys;
mod lifecycle;
mod losses;
mod memory;
mod migrations;
mod networks;
mod nvram;
mod outputs;
mod readers;
mod reload;
mod remote;
mod restore;
mod rollbacks;
mod safety;
mod shipped;
mod standbys;
mod tls;
mod tutorial;
