//! Nothing: this package's manifest alone matters, see there.
//! Owns: one set of features for dependencies that several packages share.
//! Does not: contain code.
//! Invariants: `cargo build -p X` compiles shared dependencies with the features that `cargo build --workspace` does.
//! Called by: `host`, for its dependencies' features alone.
