//! Looks without a procedure: they show durable rows alone, and stop no other work.

use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::common::{begin, config, i64s, submit, wasm};
use reprise_database::{Database, Environment};
use reprise_env::{DiskError, DiskErrorKind, DiskFile, DiskFilter, FilteredDisk};
use reprise_router::{BatchReply, ReplyOutcome, RowsError, RowsRequest, StoredPage};

/// The disk's answer to writes of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
    Failing,
}

type Shared = Arc<(Mutex<Gate>, Condvar)>;

/// Durable writes wait at a gate.
struct Gated(Shared);

impl DiskFilter for Gated {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let (gate, moved) = &*self.0;
        let waited = moved.wait_while(gate.lock().expect("the gate"), |gate| *gate == Gate::Closed);
        match *waited.expect("the gate") {
            Gate::Failing => Err(DiskError::new("write", "segment", DiskErrorKind::Io, "the test's gate")),
            _ => file.write_durable_at(offset, bytes),
        }
    }
}

/// Accounts, on a log behind a gate that is open.
fn open(dir: &Path) -> (Arc<Database>, Shared) {
    let (config, gate) = (config(dir, 2), Shared::new((Mutex::new(Gate::Open), Condvar::new())));
    let mut around = Environment::real(&config).expect("a directory");
    let folders = around.folders.as_mut().expect("there is a log");
    folders.log = Arc::new(FilteredDisk::new(folders.log.clone(), Arc::new(Gated(gate.clone()))));
    let database = Database::open_in(config, around).expect("open");
    database.recover().expect("recover");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    (Arc::new(database), gate)
}

fn set(gate: &Shared, to: Gate) {
    *gate.0.lock().expect("the gate") = to;
    gate.1.notify_all();
}

/// Opens an account, and does not wait for it.
fn begin_open(database: &Database, account: i64) -> Receiver<BatchReply> {
    begin(database, "", &[("bank", "open", None, i64s(&[account, 100]))])
}

/// Asks for all rows on a thread of its own.
fn begin_page(database: &Arc<Database>) -> Receiver<Result<StoredPage, RowsError>> {
    let (database, (sender, receiver)) = (database.clone(), mpsc::channel());
    thread::spawn(move || {
        let request = RowsRequest {
            limit: 100,
            ..RowsRequest::default()
        };
        let _ = sender.send(database.router().table_rows(request)); // as above
    });
    receiver
}

const MOMENT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_page_waits_until_what_it_shows_is_durable() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, gate) = open(dir.path());
    submit(&database, &[("open", None, i64s(&[1, 100]))]);
    set(&gate, Gate::Closed);
    let opened = begin_open(&database, 2);
    let page = begin_page(&database);
    assert!(
        matches!(page.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout)),
        "shown before it is durable"
    );
    // The sizes are of the rows in memory, and wait for nothing.
    let stats = database.router().table_stats(LONG).expect("ready");
    assert_eq!(stats[0].rows, 2);
    set(&gate, Gate::Open);
    let page = page.recv_timeout(LONG).expect("an answer").expect("a page");
    assert_eq!(page.rows.len(), 2);
    let reply = opened.recv_timeout(LONG).expect("a reply");
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
    let status = database.router().status();
    assert!(page.lsn <= status.durable_lsn);
}

#[test]
fn records_that_were_never_durable_are_never_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, gate) = open(dir.path());
    submit(&database, &[("open", None, i64s(&[1, 100]))]);
    set(&gate, Gate::Closed);
    let opened = begin_open(&database, 2);
    let page = begin_page(&database);
    assert!(matches!(page.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout)));
    set(&gate, Gate::Failing);
    match page.recv_timeout(LONG).expect("an answer") {
        Err(RowsError::LogUnavailable(_)) => {}
        Err(other) => panic!("{other}"),
        Ok(page) => assert_eq!(page.rows.len(), 1),
    }
    let reply = opened.recv_timeout(LONG).expect("a reply");
    assert_ne!(*reply.get(0).outcome, ReplyOutcome::Committed);
    // Reads continue, with the acknowledged rows.
    let page = begin_page(&database)
        .recv_timeout(LONG)
        .expect("an answer")
        .expect("a page");
    assert_eq!(page.rows.len(), 1);
    assert_eq!(database.router().table_stats(LONG).expect("ready")[0].rows, 1);
}
