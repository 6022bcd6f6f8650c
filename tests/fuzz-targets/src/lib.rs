//! Decoders, each as a function of arbitrary bytes: it may refuse them, and must not panic, hang, or take two forms for one value.
//! Owns: the list of targets, and how the tests change what is kept of each (`mutate`).
//! Does not: guide by coverage; `fuzz/` does, with these targets, and fills the corpora.
//! Invariants: a target is a pure function of its bytes; what a decoder accepts, its encoder writes again as it was.
//! Called by: the test beside it, `fuzz/`.
#![forbid(unsafe_code)]

#[cfg(feature = "engine")]
mod engine;
mod files;
mod mutate;
mod seeds;
mod values;
mod wire;

pub use mutate::Mutator;
pub use seeds::seeds;

/// A decoder under test.
pub struct Target {
    /// Also the name of its corpus' folder.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Number of runs of the bounded test. Runs that compile are slow.
    pub runs: u32,
}

const fn target(name: &'static str, run: fn(&[u8]), runs: u32) -> Target {
    Target { name, run, runs }
}

pub const TARGETS: &[Target] = &[
    target("segment", files::segment, 1_500),
    target("blocks", files::blocks, 1_500),
    target("block", wire::block, 20_000),
    target("records", wire::records, 20_000),
    target("changes", wire::changes, 20_000),
    target("frame", wire::frame, 20_000),
    target("checkpoint", files::checkpoint, 3_000),
    target("checkpoint_parts", wire::checkpoint_parts, 20_000),
    target("row", values::row, 20_000),
    target("columns", values::columns, 20_000),
    target("key", values::key, 20_000),
    target("value", values::value, 20_000),
    #[cfg(feature = "engine")]
    target("description", engine::description, 5_000),
    #[cfg(feature = "engine")]
    target("arguments_json", engine::arguments_json, 10_000),
    #[cfg(feature = "engine")]
    target("arguments_cbor", engine::arguments_cbor, 10_000),
    #[cfg(feature = "engine")]
    target("batch_json", engine::batch_json, 5_000),
    #[cfg(feature = "engine")]
    target("batch_cbor", engine::batch_cbor, 5_000),
    #[cfg(feature = "engine")]
    target("request", engine::request, 20_000),
    #[cfg(feature = "engine")]
    target("heads", engine::heads, 3_000),
    #[cfg(feature = "engine")]
    target("manifest", engine::manifest, 5_000),
    #[cfg(feature = "engine")]
    target("module", engine::module, 150),
];
