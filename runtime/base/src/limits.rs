//! Every bound of the system, in one place; relations between them are asserted here.

use std::time::Duration;

/// Partitions at most: `TxnId` keeps ten bits for them, the last value meaning "several".
pub const PARTITIONS_MAX: u16 = 1_000;
/// Engine threads at most.
pub const SITES_MAX: u16 = 256;
/// Standbys that a primary knows at most, lost ones included.
pub const STANDBYS_MAX: usize = 16;

/// Longest wasm binary that is taken, in bytes.
pub const MODULE_BYTES_MAX: usize = 16 << 20;
/// Memory that the compiler takes for each byte of a module, about.
pub const COMPILE_BYTES_EACH: u64 = 16;
/// Versions of one module whose bytes are kept, the one in service among them. Those with the same bytes count once.
pub const VERSIONS_KEPT_MAX: usize = 5;
/// Bytes of module versions out of service that are kept, of all modules together.
pub const FORMER_BYTES_MAX: u64 = 64 << 20;
/// Bytes of compiled code kept on disk at most.
pub const CODE_KEPT_BYTES_MAX: u64 = 512 << 20;
/// Modules in service at most.
pub const MODULES_MAX: usize = 1_000;
/// Most procedures that are kept from running.
pub const QUARANTINED_MAX: usize = 1_000;
/// Tables at most in one database.
pub const TABLES_MAX: usize = 4_096;
/// Secondary indexes at most of one table. (Columns: `reprise_abi::row::COLUMNS_MAX`, which the rows' format sets.)
pub const INDEXES_MAX: usize = 64;
/// Longest description of a module or of a stored table, in bytes, as the server writes it.
pub const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// Procedures at most in one module.
pub const PROCEDURES_MAX: usize = 1_024;

/// A guest's linear memory, in bytes: it can't grow beyond.
pub const GUEST_MEMORY_BYTES_MAX: usize = 64 << 20;
/// Wasm stack of one call, in bytes as they are counted (see `host`).
pub const GUEST_STACK_BYTES_MAX: usize = 512 << 10;
/// Instances of modules that an engine thread keeps.
pub const INSTANCES_MAX: usize = 256;
/// Part of the memory limit that instances may keep between calls. An instance beyond it serves one call.
pub const GUESTS_BYTES_PART: u64 = 20;
/// Native stack of a guest, in bytes. The counted limit (`GUEST_STACK_BYTES_MAX`) is an estimate from above, and ends first.
pub const GUEST_NATIVE_STACK_BYTES: usize = 1_280 << 10;
/// Elements at most to which a guest's table grows.
pub const GUEST_TABLE_ELEMENTS_MAX: u64 = 16_384;
/// Fuel of one transaction (about one unit per loop turn and call; see `host`).
pub const FUEL_MAX: u64 = 100_000_000;
/// Fuel that a procedure may declare for its calls: some tens of minutes.
pub const PROCEDURE_FUEL_MAX: u64 = 1_000_000_000_000;
/// Fuel that a guest gets at once. It then asks for more, and whether it may continue. Some tens of microseconds.
pub const FUEL_SLICE: u64 = 16 << 10;
/// Time of one call unless its procedure or the server says another, in milliseconds.
pub const CALL_TIME_MAX_MS: u32 = 1_000;
/// Message to a module that takes longer than a deployment may to start or to describe itself.
pub const DEPLOY_TIME_LIMIT: &str = "deploy-time-max-s";
/// Time that a deployment may take unless the server says another, in seconds: calls wait meanwhile.
pub const DEPLOY_TIME_MAX_S: u32 = 60;
/// Factor on a call's limits during replay. The call passed its limits when it first ran.
pub const REPLAY_LIMITS_FACTOR: u64 = 100;
/// Factor on a call's limits for the code that a deployment runs: its own limits of time and memory end it earlier.
pub const MIGRATION_LIMITS_FACTOR: u64 = 100_000;
/// Bytes that the host calls of one transaction may move between guest and engine.
pub const HOST_CALL_BYTES_MAX: u64 = 4 << 30;
/// Host calls and rows visited at most in one transaction.
pub const ROW_OPS_MAX: u64 = 10_000_000;
/// Bytes of rows that one transaction may write.
pub const WRITE_SET_BYTES_MAX: usize = 64 << 20;
/// Row handles and cursors at most in one transaction.
pub const HANDLES_MAX: usize = 4 << 20;
/// Row handles at most of what runs at a deployment, on one partition: 8 bytes each.
pub const MIGRATION_HANDLES_MAX: usize = 64 << 20;
/// Cursors that one transaction has open at most.
pub const CURSORS_MAX: usize = 64;
/// Savepoints of one transaction at most.
pub const SAVEPOINTS_MAX: usize = 1_000;
/// Log text of one transaction, in bytes.
pub const GUEST_LOG_BYTES_MAX: usize = 64 << 10;
/// Longest code of an abort, in bytes.
pub const ABORT_CODE_BYTES_MAX: usize = 128;
/// Bytes of an abort's message.
pub const ABORT_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Bytes of a panic's message and location that the server keeps.
pub const PANIC_TEXT_BYTES_MAX: usize = 4 << 10;
/// Bytes of a function's name in a backtrace.
pub const FUNCTION_NAME_BYTES_MAX: usize = 512;

/// The least limit of memory that may be set.
pub const MEMORY_MAX_BYTES_MIN: u64 = 64 << 20;
/// Message to a transaction that would write a key over the limit.
pub const KEY_BYTES_LIMIT: &str = "key_bytes";
/// The limit's name in the error of a transaction that would grow the data beyond the memory limit.
pub const MEMORY_MAX_LIMIT: &str = "memory_max";
/// Limit of a call whose instance finds no kernel mappings left in the process.
pub const MAPPINGS_LIMIT: &str = "vm.max_map_count";
/// Share of the memory limit that is reserved for deletes, undo and recovery, with a minimum in bytes.
pub const MEMORY_KEPT_BACK_PART: u64 = 10;
/// The least that is kept back so, in bytes.
pub const MEMORY_KEPT_BACK_BYTES_MIN: u64 = 64 << 20;

/// Calls that one message to a partition carries.
pub const BATCH_CALLS_MAX: usize = 256;
/// Transactions that may wait for one partition before further ones are refused (paper A, section V: 5,000).
pub const WAITING_TXNS_MAX: usize = 5_000;

/// Bytes of results on their way to clients, over all clients, before the server refuses further calls. With a memory limit, it is a
/// share of that limit, with a minimum. Requests and the texts made of results have the same bound.
pub const RESULTS_BYTES_MAX: u64 = 256 << 20;
/// Bytes of texts that are made of results, likewise.
pub const TEXTS_BYTES_MAX: u64 = 288 << 20;
/// Bytes of requests, likewise.
pub const REQUESTS_BYTES_MAX: u64 = 256 << 20;
/// The part of the memory limit that each of these is where memory is limited.
pub const ON_THEIR_WAY_BYTES_PART: u64 = 16;
/// The least that each of them is, in bytes.
pub const ON_THEIR_WAY_BYTES_MIN: u64 = 32 << 20;

/// Bytes of text that one byte of arguments or of a result may become. Lists of scalars, texts and names of variants need less; many
/// names beside tiny values need more.
pub const TEXT_PER_BYTE_MAX: u64 = 72;

/// Longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Longest name within which keys count, in bytes: that of a token.
pub const IDEMPOTENCY_SCOPE_BYTES_MAX: usize = 255;
/// How long the outcome under a key is kept, unless configured.
pub const IDEMPOTENCY_KEEP_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of remembered outcomes at most, unless configured.
pub const IDEMPOTENCY_BYTES_DEFAULT: u64 = 512 << 20;
/// Share of the memory limit that idempotency keys may take.
pub const IDEMPOTENCY_BYTES_PART: u64 = 10;

/// A log block is written at once; its size is a multiple of this.
pub const LOG_ALIGN_BYTES: usize = 512;
/// Bytes of the longest list in the log of a deployment's changes, or of destroyed things.
pub const DEPLOY_LIST_BYTES_MAX: usize = 1 << 20;
/// Longest log record, in bytes: a module, two such lists and its header.
pub const RECORD_BYTES_MAX: usize = MODULE_BYTES_MAX + 2 * DEPLOY_LIST_BYTES_MAX + (64 << 10);
/// Bytes of a part of a transaction's changes: a larger transaction is logged in parts. One change is never divided.
pub const PART_BYTES: usize = 2 << 20;
/// Changes of one transaction in all its parts, in bytes: several times the size of its write set and its rows' names.
pub const RUN_BYTES_MAX: usize = 1 << 30;
/// Bytes of records of one batch after which the calls that ran go to the log before the rest of it runs.
pub const BATCH_RECORDS_BYTES_MAX: usize = 8 << 20;
/// Longest block of the log, in bytes.
pub const BLOCK_BYTES_MAX: usize = 32 << 20;
/// Bytes that may wait for the flusher before an append waits.
pub const LOG_BUFFER_BYTES: usize = 8 << 20;
/// Default size of a log segment file, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;

const _: () = assert!(RECORD_BYTES_MAX + 4096 <= BLOCK_BYTES_MAX);
const _: () = assert!(4 * WRITE_SET_BYTES_MAX < RUN_BYTES_MAX);
const _: () = assert!(PART_BYTES < BATCH_RECORDS_BYTES_MAX && BATCH_RECORDS_BYTES_MAX < RECORD_BYTES_MAX);
const _: () = assert!((BLOCK_BYTES_MAX as u64) < SEGMENT_BYTES);
const _: () = assert!(2 * GUEST_STACK_BYTES_MAX < GUEST_NATIVE_STACK_BYTES);
const _: () = assert!(FUEL_SLICE <= FUEL_MAX && FUEL_MAX <= PROCEDURE_FUEL_MAX);
const _: () = assert!(BATCH_CALLS_MAX <= WAITING_TXNS_MAX);
const _: () = assert!(PARTITIONS_MAX < 1 << 10);

/// Silence after which a standby may follow another primary, as far as its primary knows.
pub const STANDBY_SILENT_NS: u64 = 1_000_000_000;
