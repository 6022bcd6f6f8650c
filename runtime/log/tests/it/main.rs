//! The integration tests of `reprise-log`, in one binary.

mod common;
mod copy;
mod crash_images;
mod epochs;
mod groups;
mod nvram_append;
mod nvram_buffer;
mod recovery;
mod released;
mod returns;
mod room;
mod running;
mod runs;
mod stretch;
