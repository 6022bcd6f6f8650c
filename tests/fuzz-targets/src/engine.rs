//! Inputs of clients: module bytes and their descriptions, arguments, batches; and manifests of backups.

use std::sync::{Arc, LazyLock};

use reprise_abi::{
    ABI_VERSION, HostOps, LogDeclaration, ModuleSchema, Parameter, Partitioning, ProcedureSchema, Type,
    value::ValueReader,
};
use reprise_backup::BackupManifest;
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RedoConfig,
};
use reprise_host::{CallOutcome, CompiledModule, Engine, Fault, Limits, describe};
use reprise_http::probe;
use reprise_txn::{Candidate, Code, Executor};

use crate::values::TYPES;

/// Longest module that is compiled here: the time grows with it.
const MODULE_BYTES_MAX: usize = 16 << 10;

pub fn description(bytes: &[u8]) {
    let Ok(schema) = describe::from_json(bytes) else {
        return;
    };
    let text = describe::to_json(&schema);
    assert_eq!(describe::from_json(text.as_bytes()).as_ref(), Ok(&schema), "{text}");
}

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Limits::default()));

pub fn module(bytes: &[u8]) {
    if bytes.len() <= MODULE_BYTES_MAX {
        let _ = CompiledModule::compile(&ENGINE, bytes);
    }
}

pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(manifest) = BackupManifest::decode(text) {
        let again = BackupManifest::decode(&manifest.encode());
        assert!(again.is_ok(), "{text}");
        let _ = manifest.bytes();
    }
}

/// One procedure with a parameter of each type, placed by the first integer.
pub(crate) static SCHEMA: LazyLock<ModuleSchema> = LazyLock::new(|| {
    let params = TYPES.iter().enumerate().map(|(at, ty)| Parameter {
        name: format!("p{at}"),
        ty: ty.clone(),
    });
    ModuleSchema {
        table_docs: Vec::new(),
        abi: ABI_VERSION,
        tables: Vec::new(),
        on_deploy: None,
        retiring: Vec::new(),
        procedures: vec![ProcedureSchema {
            docs: String::new(),
            name: "p".into(),
            params: params.collect(),
            returns: Type::Unit,
            read_only: false,
            partitioning: Partitioning::By(vec![4]),
            prefetch: Vec::new(),
            time_max_ms: None,
            fuel_max: None,
            aborts: Vec::new(),
            log: LogDeclaration::default(),
        }],
    }
});

fn arguments(is_cbor: bool, body: &[u8]) {
    let params = &SCHEMA.procedures[0].params;
    let Some(encoded) = probe::arguments(params, is_cbor, body) else {
        return;
    };
    let mut reader = ValueReader::new(&encoded);
    for param in params {
        reader.skip(&param.ty).expect("what is accepted is encoded by its type");
    }
    reader.finish().expect("and nothing else");
}

pub fn arguments_json(bytes: &[u8]) {
    arguments(false, bytes);
}

pub fn arguments_cbor(bytes: &[u8]) {
    arguments(true, bytes);
}

/// The reading of a call does not depend on how the bytes arrive. Every prefix of it is a beginning, and the bytes behind it do not matter.
pub fn request(bytes: &[u8]) {
    let seen = probe::request(bytes);
    match &seen {
        probe::Request::Part => {}
        probe::Request::Other => {
            let longer = [bytes, b"\r\n\r\n"].concat();
            assert_eq!(
                probe::request(&longer),
                probe::Request::Other,
                "more of it makes it a call"
            );
        }
        probe::Request::Call {
            path,
            headers,
            head_bytes,
            body_bytes,
        } => {
            let end = head_bytes + body_bytes;
            assert!(end <= bytes.len() && path.starts_with("/v1/call/"));
            let mut lengths = headers.iter().filter(|(name, _)| name == "content-length");
            let length = lengths.next().and_then(|(_, value)| std::str::from_utf8(value).ok());
            assert_eq!(length.and_then(|length| length.parse().ok()), Some(*body_bytes));
            assert!(lengths.next().is_none(), "two lengths");
            assert!(
                !headers.iter().any(|(name, _)| name == "transfer-encoding"),
                "two ways to end"
            );
            let step = (end / 16).max(1);
            let cuts = (0..end).step_by(step).chain([head_bytes - 1, end.saturating_sub(1)]);
            for cut in cuts.filter(|cut| *cut < end) {
                assert_eq!(
                    probe::request(&bytes[..cut]),
                    probe::Request::Part,
                    "{cut} of {end} bytes"
                );
            }
            assert_eq!(probe::request(&bytes[..end]), seen, "what comes behind it matters");
        }
    }
}

/// The pieces in which input arrives change neither the bytes that hyper reads nor the request that is refused. Hyper reads all bytes.
pub fn heads(bytes: &[u8]) {
    let whole = probe::scan_heads(std::iter::once(bytes));
    assert_eq!(whole.passed, bytes, "hyper reads other bytes");
    for piece in [1, 2, 3, 7, 40, 1_000] {
        let scan = probe::scan_heads(bytes.chunks(piece));
        assert_eq!(scan, whole, "in pieces of {piece}");
    }
    // Pieces of unequal length: each takes its length from its own first byte.
    let mut rest = bytes;
    let pieces = std::iter::from_fn(|| {
        let length = usize::from(*rest.first()?) % 61 + 1;
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        Some(piece)
    });
    assert_eq!(probe::scan_heads(pieces), whole, "in unequal pieces");
}

/// Stands for a module's code; no call is submitted.
struct NoCode;

impl Code for NoCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(Self))
    }
}

impl Executor for NoCode {
    fn call(&mut self, _: usize, _: &mut dyn HostOps) -> CallOutcome {
        CallOutcome {
            kind: Err(Fault::guest("there is no code")),
            fuel_used: 0,
        }
    }
}

/// A database in memory with the one module.
static DATABASE: LazyLock<Database> = LazyLock::new(|| {
    let database = Database::open(DatabaseConfig {
        dir: None,
        partitions: 2,
        sites: 1,
        log: LogPolicy::None,
        redo: RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: 1 << 20,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    });
    let database = database.expect("a database in memory");
    database.recover().expect("nothing to recover");
    let candidate = Candidate {
        name: "m".into(),
        hash: [1; 32],
        wasm_bytes: 1,
        description: Arc::default(),
        schema: SCHEMA.clone(),
        code: Arc::new(NoCode),
    };
    let deployed = database.router().deploy_candidate(candidate, &b"m"[..].into(), &[]);
    deployed.expect("a good module");
    database
});

pub fn batch_json(bytes: &[u8]) {
    let called = probe::batch_calls(DATABASE.router(), false, bytes);
    assert!(called != 1 || has_key(bytes), "the same line is a call each time");
}

pub fn batch_cbor(bytes: &[u8]) {
    let called = probe::batch_calls(DATABASE.router(), true, bytes);
    assert!(called != 1 || has_key(bytes), "the same item is a call each time");
}

fn has_key(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|window| window == b"idem")
}
