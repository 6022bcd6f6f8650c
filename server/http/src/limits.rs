//! Limits of one client. The engine's own limits are in `reprise_base::limits`.

use std::time::Duration;

use reprise_abi::value::{ARGS_BYTES_MAX, RESULT_BYTES_MAX};
use reprise_base::limits::{BATCH_CALLS_MAX, TEXT_PER_BYTE_MAX, TEXTS_BYTES_MAX, WAITING_TXNS_MAX};

/// Limits of connections and time for one client. The constants below are the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Open at once.
    pub connections_max: u32,
    /// Connections of one address.
    pub connections_per_peer_max: u32,
    /// Time for the next request's headers, also on a connection kept alive.
    pub header_wait: Duration,
    /// Time for the next piece of a body.
    pub body_wait: Duration,
    /// Time for the next call of a batch.
    pub batch_idle: Duration,
    /// Time for a client to take a byte of its answer.
    pub write_wait: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            connections_per_peer_max: CONNECTIONS_MAX / 2,
            header_wait: HEADER_WAIT_MAX,
            body_wait: BODY_WAIT_MAX,
            batch_idle: BATCH_IDLE_MAX,
            write_wait: WRITE_WAIT_MAX,
        }
    }
}

/// Longest id of a call in a batch. The server returns it as it came, also as another format's text.
pub const ID_BYTES_MAX: usize = 1 << 10;

/// Connections at most; further ones wait in the listener's queue.
pub const CONNECTIONS_MAX: u32 = 4096;
/// Further connections, for probes and control alone: a request each, and soon. Of one address at most.
pub const PROBE_PLACES: u32 = 16;
pub const PROBE_PLACES_PER_PEER_MAX: u32 = 4;
pub const PROBE_WAIT_MAX: Duration = Duration::from_secs(5);
/// A probe that arrives waits no longer for one that is to leave for it.
pub const LEAVE_WAIT_MAX: Duration = Duration::from_millis(100);
/// Read buffer of one connection.
pub const READ_BUFFER_BYTES_MAX: usize = 64 << 10;
/// Memory that an idle connection counts: its buffers and its task. TLS adds buffers.
pub const CONNECTION_BYTES: u64 = 8 << 10;
pub const CONNECTION_TLS_BYTES: u64 = 24 << 10;
/// Step by which the memory of an unfinished head grows.
pub const HEAD_STEP_BYTES: usize = 4 << 10;
/// Words of refused calls that travel together, after which each further one names its first mistake alone.
pub const REFUSED_BYTES_MAX: usize = 16 << 10;
/// The request line and all headers.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
pub const HEADERS_MAX: usize = 64;
/// The next request's headers must be here by then, also on a connection kept alive.
pub const HEADER_WAIT_MAX: Duration = Duration::from_secs(75);
/// Longest wait for the next piece of a body.
pub const BODY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes per second that a body needs, measured from its beginning. A slower one would hold its place for days with a byte now and then.
pub const BODY_BYTES_PER_S_MIN: u64 = 1024;
/// Longest wait for the next call of a batch.
pub const BATCH_IDLE_MAX: Duration = Duration::from_secs(300);
/// Time after which a client that takes no byte of its answer is disconnected.
pub const WRITE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Least rate at which a client takes its answer, or it is cut off: a byte now and then would hold the answer for days.
pub const WRITE_BYTES_PER_S_MIN: u64 = 4 << 10;
/// The time that a stopping server leaves its clients to finish.
pub const DRAIN_WAIT_MAX: Duration = Duration::from_secs(10);

/// The next request of a connection that carries calls alone: read whole, head and body, or left to hyper.
pub const PIPELINE_REQUEST_BYTES_MAX: usize = 32 << 10;
pub const PIPELINE_HEADERS_MAX: usize = 32;
/// A request whose end is not here by then is hyper's, with all of its waits.
pub const PIPELINE_PARTIAL_WAIT_MAX: Duration = Duration::from_millis(500);
/// Calls of one connection on their way, and the bytes of their requests.
pub const PIPELINE_CALLS_IN_FLIGHT_MAX: usize = 256;
pub const PIPELINE_BYTES_IN_FLIGHT_MAX: usize = 512 << 10;
/// The weight in the limit above of a call whose result may be large: eight of them may be on their way.
pub const PIPELINE_LARGE_CALL: usize = 32;
/// Answers that are gathered before they are written.
pub const PIPELINE_ANSWER_BYTES: usize = 64 << 10;

/// Calls of different connections that travel together.
pub const COALESCED_CALLS_MAX: usize = 32;

/// Bytes of requests, and of answers, that each connection may hold whatever all others hold.
pub const REQUEST_BYTES_SURE: u64 = 64 << 10;
pub const TEXT_BYTES_SURE: u64 = 64 << 10;
/// Bytes below which nothing is counted: 16 MiB of requests and 16 MiB of answers of as many connections as there may be.
pub const BYTES_COUNTED: u64 = 4 << 10;
/// The step in which buffers of changing size are counted.
pub const COUNTED_STEP_BYTES: u64 = 16 << 10;

/// Longest body of one call, and longest line of a batch, in bytes.
pub const CALL_BODY_BYTES_MAX: usize = 2 << 20;
/// Bytes of a body beyond its limit that are read and dropped, so that the client sees the answer.
pub const DISCARD_BYTES_MAX: u64 = 128 << 20;
pub const DISCARD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Number of calls of batches that wait for the engine at once, over all connections. It is below the engine's own limit. So a batch is
/// slowed down in a state in which a single call is refused.
pub const BATCH_CALLS_IN_FLIGHT_MAX: usize = 4_000;
/// Calls of one batch among these. They keep their places until their answers are written, so a client that reads slowly leaves the others
/// half.
pub const BATCH_CALLS_EACH_MAX: usize = BATCH_CALLS_IN_FLIGHT_MAX / 2;
/// Chunks of one batch on their way, and the bytes of their lines.
pub const BATCH_CHUNKS_IN_FLIGHT_MAX: usize = 16;
/// Calls of one chunk.
pub const BATCH_CHUNK_CALLS_MAX: usize = 512;
/// Answers of a batch that are gathered before they are written.
pub const BATCH_ANSWER_BYTES: usize = 64 << 10;
pub const BATCH_BYTES_IN_FLIGHT_MAX: usize = 4 << 20;
/// Times that a call is encoded again because its module was replaced meanwhile.
pub const SUPERSEDED_RETRIES_MAX: usize = 8;

/// Number of simultaneous operations, by the thing that they wait for. Each blocks a thread.
pub const COMPILATIONS_MAX: usize = 2;
pub const LOG_READS_MAX: usize = 4;
pub const ROWS_READS_MAX: usize = 8;
pub const STATS_READS_MAX: usize = 4;
pub const REMOVALS_MAX: usize = 4;
pub const BACKUP_OPERATIONS_MAX: usize = 4;
pub const PROMOTIONS_MAX: usize = 4;
pub const MEMBERSHIP_CHANGES_MAX: usize = 4;
pub const OTHER_OPERATIONS_MAX: usize = 4;
/// Answers in the making at once. They take processors, which calls need as well.
pub const ANSWERS_MAX: usize = 2;
/// Longest wait for the statistics of a busy partition. Then the answer has its last published ones.
pub const STATS_WAIT_MAX: Duration = Duration::from_millis(30);
/// Longest wait for a place among these.
pub const OPERATION_PLACE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a page of rows: its partitions may be busy.
pub const ROWS_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the disk of the backups, which may hang. On a slow disk, the removal of a large backup takes a while.
pub const BACKUP_WAIT_MAX: Duration = Duration::from_secs(60);
pub const EVENT_STREAMS_MAX: usize = 64;
/// Files of backups on their way out at once.
pub const DOWNLOADS_MAX: usize = 8;
pub const DOWNLOAD_PIECE_BYTES: u64 = 256 << 10;
pub const EVENT_INTERVAL: Duration = Duration::from_millis(500);

pub const ROWS_LIMIT_MAX: u32 = 1000;
pub const LOG_LIMIT_MAX: usize = 1000;
/// Modules or tables of a page, and text after which it ends.
pub const LIST_LIMIT_MAX: usize = 1000;
pub const LIST_PAGE_TEXT_BYTES_MAX: usize = 4 << 20;
/// Bytes of modules' OpenAPI documents that the server keeps.
pub const DOCUMENTS_KEPT_BYTES_MAX: usize = 8 << 20;
/// Bytes counted for a page of rows or of the log until its size is known.
pub const PAGE_BYTES_MAX: u64 = 8 << 20;
/// Text of records after which a page of the log ends, and the rows of one record.
pub const LOG_PAGE_TEXT_BYTES_MAX: usize = 4 << 20;
pub const PROCEDURE_LOG_LIMIT_MAX: usize = 1000;
/// Longest wait for `Reprise-Min-Lsn`, and the default.
pub const READ_WAIT_MAX: Duration = Duration::from_secs(60);
pub const READ_WAIT_DEFAULT: Duration = Duration::from_secs(1);

const _: () = assert!(LIST_PAGE_TEXT_BYTES_MAX as u64 <= PAGE_BYTES_MAX);
const _: () = assert!(HEADER_BYTES_MAX <= READ_BUFFER_BYTES_MAX);
const _: () = assert!(PIPELINE_REQUEST_BYTES_MAX <= READ_BUFFER_BYTES_MAX);
const _: () = assert!(PIPELINE_REQUEST_BYTES_MAX <= CALL_BODY_BYTES_MAX);
const _: () = assert!(PIPELINE_HEADERS_MAX <= HEADERS_MAX);
const _: () = assert!(COALESCED_CALLS_MAX <= BATCH_CALLS_MAX);
const _: () = assert!(PIPELINE_LARGE_CALL <= PIPELINE_CALLS_IN_FLIGHT_MAX);
const _: () = assert!(CALL_BODY_BYTES_MAX > ARGS_BYTES_MAX);
const _: () = assert!(CALL_BODY_BYTES_MAX <= BATCH_BYTES_IN_FLIGHT_MAX);
const _: () = assert!(BATCH_CALLS_IN_FLIGHT_MAX < WAITING_TXNS_MAX);
const _: () = assert!(RESULT_BYTES_MAX as u64 * TEXT_PER_BYTE_MAX <= TEXTS_BYTES_MAX);
const _: () = assert!(BATCH_CHUNK_CALLS_MAX <= BATCH_CALLS_EACH_MAX);
/// Longest body of a request to join as a standby.
pub const JOIN_BODY_BYTES_MAX: usize = 4 << 10;
