//! The WebAssembly features that guests may use, and the texts for features that they may not use.

use wasmparser::WasmFeatures;

/// Returns the features that compilers of the supported languages use. All of them are deterministic.
pub(crate) fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::SIMD
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::FLOATS
}

/// The validator's name of each refused feature, and our description with the remedy.
const NOT_TAKEN: [(&str, &str); 12] = [
    (
        "component",
        "a WebAssembly component: build a core module, for wasm32-unknown-unknown or wasm32-wasip1",
    ),
    (
        "shared memories",
        "a module with shared memory: build it without threads",
    ),
    ("threads", "a module with threads or atomics: build it without them"),
    ("atomic", "a module with threads or atomics: build it without them"),
    ("memory64", "a module of 64 bits: build it for wasm32"),
    ("64-bit", "a module of 64 bits: build it for wasm32"),
    (
        "tail call",
        "a module with tail calls: build it without them (in C without -mtail-call)",
    ),
    (
        "exceptions",
        "a module with exceptions: build it so that a panic or an exception ends the program",
    ),
    ("relaxed SIMD", "a module with relaxed SIMD, which is not deterministic"),
    ("multi-memory", "a module with several memories"),
    ("custom page sizes", "a module with memory pages of another size"),
    ("gc", "a module with garbage-collected types"),
];

/// Returns our reason instead of the validator's, which asks for a feature to be enabled. No feature can be enabled here.
pub(crate) fn untaken_feature(message: &str) -> Option<String> {
    if !message.contains("enable") {
        return None;
    }
    let known = NOT_TAKEN.iter().find(|(name, _)| message.contains(name));
    Some(match known {
        Some((_, what)) => format!("Reprise does not take {what}"),
        None => {
            let feature = message.split(" support ").next().unwrap_or(message);
            let feature = feature.split(" must be enabled").next().unwrap_or(feature);
            format!("Reprise does not take a module with {feature}")
        }
    })
}
