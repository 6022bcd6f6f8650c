//! Events that the operator reads as they happen, one line each. A listener gets them at once; without one they are kept. A kind that
//! is too frequent is only counted.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use reprise_base::{Lsn, TxnId};

use crate::RefusalReason;

/// Notices of one kind that are kept between two takings.
const NOTICES_MAX: u64 = 5;
/// The limit for control operations, which have few permits and take a while.
const CONTROLS_MAX: u64 = 1_000;
/// Bytes of one notice's free text.
const TEXT_BYTES_MAX: usize = 512;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A version of a module went into service, in place of another one or of none.
    Deployed {
        /// Transaction of the deployment.
        txn_id: TxnId,
        /// Its name.
        module: String,
        /// The new one.
        version: u32,
        /// The one before.
        replaced: Option<u32>,
        /// Things that the deployment destroyed, each with its count.
        destroyed: Vec<String>,
    },
    /// The wall clock jumped by more than an hour.
    ClockJumped {
        /// Microseconds ahead, or back if it is negative.
        by_us: i64,
    },
    /// A module went out of service.
    Removed {
        /// Its name.
        module: String,
        /// Things that the removal destroyed, each with its count.
        destroyed: Vec<String>,
    },
    /// A table that no module used went.
    TableDropped {
        /// Its name.
        table: String,
    },
    /// A procedure trapped.
    Trapped {
        /// Transaction of the call.
        txn_id: TxnId,
        /// `MODULE.PROCEDURE`.
        procedure: String,
        /// The trap's description.
        message: String,
    },
    /// A call ran for longer than it should.
    SlowCall {
        /// Transaction of the call.
        txn_id: TxnId,
        /// `MODULE.PROCEDURE`.
        procedure: String,
        /// Milliseconds for which it ran and held its partitions.
        ran_ms: u64,
    },
    /// A call was refused because its rows would pass the limit of memory.
    MemoryExhausted {
        /// Transaction of the call.
        txn_id: TxnId,
        /// `MODULE.PROCEDURE`.
        procedure: String,
        /// The limit, in bytes.
        max: u64,
    },
    /// A call was refused because there is no room for its idempotency key.
    KeysRefused {
        /// The key's scope; empty without tokens.
        scope: String,
        /// Bytes of the scope's keys and their outcomes.
        taken: u64,
        /// Bytes that the keys of all scopes may take.
        room: u64,
    },
    /// A state in which writes are refused began, changed or ended.
    Danger {
        /// `log`, `standbys` or `other-primary`.
        what: &'static str,
        /// Why writes are refused, or which server leads, too; None: it is over.
        reason: Option<Arc<str>>,
    },
    /// Calls or requests were refused for a reason that is the server's matter.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// Number of calls since the last notice.
        calls: u64,
    },
    /// A checkpoint is there.
    CheckpointPublished {
        /// Its position.
        lsn: Lsn,
        /// Rows of all tables.
        rows: u64,
        /// Bytes of the checkpoint's file.
        file_bytes: u64,
        /// That it took.
        seconds: f64,
    },
    /// None was published.
    CheckpointFailed {
        /// Why.
        reason: String,
    },
    /// A checkpoint lacks the bytes of a module version that it was to keep.
    FormerLost {
        /// Its name.
        module: String,
        /// The module can't be rolled back to this one.
        version: u32,
        /// Why the bytes can't be read.
        reason: String,
    },
    /// The archive failed to take files that the data directory wants to delete.
    ArchiveFailed {
        /// Why.
        reason: String,
    },
    /// A connection between a primary and a standby began or ended, or the primary released log that it kept for a standby.
    Standby {
        /// The standby's name. Empty if the event is about none in particular, or the standby was not let in.
        name: String,
        /// The event in words.
        what: String,
    },
    /// A client did something other than a call.
    Controlled {
        /// Name of the client's principal.
        principal: String,
        /// Its name.
        operation: &'static str,
        /// The thing that it is about; empty if there is none.
        subject: String,
        /// `done`, or the slug of a problem.
        outcome: String,
        /// How long.
        took: Duration,
    },
}

/// Notices that share one bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Deployments, removals and drops.
    Schema,
    /// `Notice::Trapped`.
    Trap,
    /// `Notice::SlowCall`.
    SlowCall,
    /// `Notice::MemoryExhausted`: one of them tells enough.
    Memory,
    /// `Notice::KeysRefused`: one of them tells enough.
    Keys,
    /// `Notice::Danger`.
    Danger,
    /// `Notice::Refused`: its sender already sends it seldom.
    Refusal,
    /// Checkpoints, published or failed.
    Checkpoint,
    /// `Notice::ArchiveFailed`.
    Archive,
    /// `Notice::Standby`.
    Standby,
    /// `Notice::ClockJumped`.
    Clock,
    /// Control operations must all be seen: as many are kept as can happen between two calls of `take`.
    Control,
}

impl NoticeKind {
    const ALL: [Self; 12] = [
        Self::Schema,
        Self::Trap,
        Self::SlowCall,
        Self::Memory,
        Self::Keys,
        Self::Danger,
        Self::Refusal,
        Self::Checkpoint,
        Self::Archive,
        Self::Standby,
        Self::Clock,
        Self::Control,
    ];

    /// Several of them, in words.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Schema => "deployments, removals and drops",
            Self::Trap => "traps",
            Self::SlowCall => "slow calls",
            Self::Memory => "calls refused for lack of memory",
            Self::Keys => "calls refused for lack of room for their idempotency keys",
            Self::Danger => "changes of what refuses writes",
            Self::Refusal => "reasons of refused calls",
            Self::Checkpoint => "checkpoints",
            Self::Archive => "failures of the archive",
            Self::Standby => "notes of standbys",
            Self::Clock => "jumps of the wall clock",
            Self::Control => "control operations",
        }
    }

    /// How many are kept between two takings.
    fn kept_max(self) -> u64 {
        match self {
            Self::Control => CONTROLS_MAX,
            Self::Refusal => RefusalReason::ALL.len() as u64,
            Self::Memory | Self::Keys => 1,
            _ => NOTICES_MAX,
        }
    }
}

impl Notice {
    fn bounded(mut self) -> Self {
        if let Self::Trapped { message: text, .. }
        | Self::CheckpointFailed { reason: text }
        | Self::FormerLost { reason: text, .. }
        | Self::ArchiveFailed { reason: text }
        | Self::Standby { what: text, .. } = &mut self
        {
            let end = text.floor_char_boundary(TEXT_BYTES_MAX);
            text.truncate(end);
        }
        self
    }
}

/// The notices that one call of `take` returned.
#[derive(Debug, Default, PartialEq)]
pub struct TakenNotices {
    /// The notices in order.
    pub notices: Vec<Notice>,
    /// Numbers of notices that were dropped since the last call of `take`, because there was no room.
    pub left_out: Vec<(NoticeKind, u64)>,
}

#[derive(Debug, Default)]
struct WaitingNotices {
    notices: Vec<Notice>,
    counts: [u64; NoticeKind::ALL.len()],
}

type NoticeListener = Box<dyn Fn(&Notice) + Send + Sync>;

/// Bounded: of each kind the first few since they were taken, and how many more there were.
#[derive(Default)]
pub struct Notices {
    waiting: Mutex<WaitingNotices>,
    listener: OnceLock<NoticeListener>,
    /// 0: no call is slow.
    slow_call_ms: AtomicU32,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, WaitingNotices> {
        self.waiting.lock().expect("nothing panics under this lock")
    }

    /// Passes each notice to `listener` when it happens, and passes the waiting ones now. A second listener has no effect.
    pub fn set_listener(&self, listener: impl Fn(&Notice) + Send + Sync + 'static) {
        let mut waiting = self.lock();
        let _ = self.listener.set(Box::new(listener)); // an error means that there is a listener already
        if let Some(listener) = self.listener.get() {
            std::mem::take(&mut waiting.notices).iter().for_each(listener);
        }
    }

    /// Milliseconds from which a call counts as slow; 0: no call does.
    pub fn slow_call_ms(&self) -> u32 {
        self.slow_call_ms.load(Ordering::Relaxed)
    }

    /// Sets `slow_call_ms`.
    pub fn set_slow_call_ms(&self, slow_call_ms: u32) {
        self.slow_call_ms.store(slow_call_ms, Ordering::Relaxed);
    }

    /// Adds a notice, which `make` makes if there is room.
    pub fn publish(&self, kind: NoticeKind, make: impl FnOnce() -> Notice) {
        let mut waiting = self.lock();
        waiting.counts[kind as usize] += 1;
        if waiting.counts[kind as usize] > kind.kept_max() {
            return;
        }
        let notice = make().bounded();
        match self.listener.get() {
            None => waiting.notices.push(notice),
            Some(listener) => {
                drop(waiting);
                listener(&notice);
            }
        }
    }

    /// Returns the notices since the last call of this, without those that a listener got.
    pub fn take(&self) -> TakenNotices {
        let waiting = std::mem::take(&mut *self.lock());
        let beyond = |kind: NoticeKind| waiting.counts[kind as usize].saturating_sub(kind.kept_max());
        let left_out = NoticeKind::ALL.map(|kind| (kind, beyond(kind)));
        TakenNotices {
            notices: waiting.notices,
            left_out: left_out.into_iter().filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_that_comes_too_often_is_counted_and_drives_out_no_other() {
        let notices = Notices::default();
        let trap = |number: u64| Notice::Trapped {
            txn_id: TxnId(number),
            procedure: "m.p".into(),
            message: "ö".repeat(TEXT_BYTES_MAX),
        };
        for number in 0..1_000 {
            notices.publish(NoticeKind::Trap, || trap(number));
        }
        notices.publish(NoticeKind::Schema, || Notice::Removed {
            module: "m".into(),
            destroyed: Vec::new(),
        });
        let taken = notices.take();
        assert_eq!(taken.notices.len(), NOTICES_MAX as usize + 1);
        assert_eq!(taken.left_out, [(NoticeKind::Trap, 1_000 - NOTICES_MAX)]);
        let Notice::Trapped { txn_id, message, .. } = &taken.notices[0] else {
            panic!("{taken:?}");
        };
        assert_eq!((txn_id.0, message.len()), (0, TEXT_BYTES_MAX));
        assert_eq!(notices.take(), TakenNotices::default());
        // The listener gets each when it happens, and counts are as before.
        let heard = std::sync::Arc::new(Mutex::new(Vec::new()));
        notices.publish(NoticeKind::Trap, || trap(1));
        let hears = heard.clone();
        notices.set_listener(move |notice| hears.lock().expect("no panic").push(notice.clone()));
        (2..100).for_each(|number| notices.publish(NoticeKind::Trap, || trap(number)));
        assert_eq!(
            *heard.lock().expect("no panic"),
            [1, 2, 3, 4, 5].map(|number| trap(number).bounded())
        );
        let left_out = notices.take();
        assert_eq!(
            (left_out.notices, left_out.left_out),
            (vec![], vec![(NoticeKind::Trap, 94)])
        );
        let notices = Notices::default();
        let refused = |number: u64| Notice::MemoryExhausted {
            txn_id: TxnId(number),
            procedure: "m.p".into(),
            max: 1,
        };
        (0..9_443).for_each(|number| notices.publish(NoticeKind::Memory, || refused(number)));
        let taken = notices.take();
        assert_eq!(
            (taken.notices, taken.left_out),
            (vec![refused(0)], vec![(NoticeKind::Memory, 9_442)])
        );
    }
}
