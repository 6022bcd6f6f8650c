//! Groups as they were sealed, for the connections that send them on. The ring keeps a bounded number of bytes: the oldest groups give way. A reader
//! that comes too late for a group reads it from the log's files.
//!
//! If the transport can send one memory to several peers, groups are in such memory as frames. The log's flusher itself then posts them to each
//! reader that is up to date. No thread is woken, and nothing is allocated (Query Fresh, section 3.1).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_env::{FrameBuffer, FramePoster, SHARED_FRAMES_MAX, SharedFrame};
use reprise_log::{Group, GroupSink, Position};
use reprise_wire::{GROUP_HEAD_BYTES, GroupFrame};

/// Limit of the posted groups that a reader has not asked for yet. At the limit the reader is woken.
const POSTED_MAX: usize = 512;

/// A sealed group. Its frame is made for each connection that sends it.
pub(crate) struct SealedGroup {
    first: Lsn,
    end: Position,
    pub records: Box<[u8]>,
    head: OnceLock<[u8; GROUP_HEAD_BYTES]>,
}

impl SealedGroup {
    fn of(group: &Group<'_>) -> Self {
        Self {
            first: group.first,
            end: group.end,
            records: group.records.into(),
            head: OnceLock::new(),
        }
    }

    /// Returns the head of its frame, which the first sender makes once.
    pub fn head(&self) -> &[u8; GROUP_HEAD_BYTES] {
        self.head.get_or_init(|| {
            head_of(&Group {
                first: self.first,
                end: self.end,
                records: &self.records,
            })
        })
    }
}

fn head_of(group: &Group<'_>) -> [u8; GROUP_HEAD_BYTES] {
    let frame = GroupFrame {
        epoch: group.end.epoch,
        first: group.first,
        end: group.end.lsn,
        history: group.end.history,
        records: group.records,
    };
    frame.head()
}

/// The place of a group's bytes.
#[derive(Clone)]
pub(crate) enum GroupBytes {
    Own(Arc<SealedGroup>),
    /// The whole frame.
    Shared(SharedFrame),
}

#[derive(Clone)]
pub(crate) struct RingGroup {
    first: Lsn,
    pub end: Position,
    pub bytes: GroupBytes,
}

impl RingGroup {
    pub fn records_bytes(&self) -> usize {
        match &self.bytes {
            GroupBytes::Own(sealed) => sealed.records.len(),
            GroupBytes::Shared(frame) => frame.bytes() - GROUP_HEAD_BYTES,
        }
    }

    /// Returns its bytes as the ring counts them. The number of shared groups has a bound of its own.
    fn held_bytes(&self) -> usize {
        match &self.bytes {
            GroupBytes::Own(_) => self.records_bytes() + OWN_GROUP_BYTES,
            GroupBytes::Shared(_) => self.records_bytes(),
        }
    }
}

/// Bytes of a group of its own beside its records: its head, its place in the ring, and the allocator's share.
const OWN_GROUP_BYTES: usize = 256;

/// The ring's contents for a reader that has everything before an LSN.
pub(crate) enum RingLookup {
    Group(RingGroup),
    /// Nothing was sealed behind it since the ring has been filled.
    Nothing,
    /// The group in which the LSN lies is not here, or no longer.
    Missing,
}

/// Groups posted to a reader since its last read.
#[derive(Default)]
pub(crate) struct PostedGroups {
    /// Ends, and bytes of records.
    pub groups: VecDeque<(Position, usize)>,
    /// The flusher continues to post: the reader sends no groups itself.
    pub goes_on: bool,
}

pub(crate) struct Ring {
    bytes_max: usize,
    /// The memory of the frames, if the transport can send them from there.
    buffer: Option<Arc<FrameBuffer>>,
    state: Mutex<GroupRingState>,
    /// False: there is no reader, so nothing is copied. Checked for each group.
    has_readers: AtomicBool,
    /// Called when that changes, under the lock.
    following: OnStreaming,
}

/// Called with whether any reader gets groups, as soon as that changes. It must not wait.
pub type OnStreaming = Box<dyn Fn(bool) + Send + Sync>;

#[derive(Default)]
struct GroupRingState {
    groups: VecDeque<RingGroup>,
    bytes: usize,
    readers: Vec<GroupReader>,
}

struct GroupReader {
    number: u64,
    wake: Sender<()>,
    direct: Option<Direct>,
}

/// A reader to which groups are posted as they are sealed.
struct Direct {
    poster: Arc<dyn FramePoster>,
    is_on: bool,
    /// The group that is next.
    next: Lsn,
    /// Bytes of records for which the standby has room.
    room_bytes: u64,
    posted: VecDeque<(Position, usize)>,
}

impl Ring {
    pub fn new(bytes_max: usize, buffer: Option<Arc<FrameBuffer>>, following: OnStreaming) -> Self {
        let groups = match &buffer {
            Some(_) => VecDeque::with_capacity(SHARED_FRAMES_MAX),
            None => VecDeque::new(),
        };
        Self {
            bytes_max,
            buffer,
            state: Mutex::new(GroupRingState {
                groups,
                ..GroupRingState::default()
            }),
            has_readers: AtomicBool::new(false),
            following,
        }
    }

    fn lock(&self) -> MutexGuard<'_, GroupRingState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    pub fn buffer(&self) -> Option<&Arc<FrameBuffer>> {
        self.buffer.as_ref()
    }

    /// Keeps groups from now on, and notifies `wake` of each that `poster` does not post.
    pub fn add_reader(&self, number: u64, wake: Sender<()>, poster: Option<Arc<dyn FramePoster>>) {
        let direct = poster.map(|poster| Direct {
            poster,
            is_on: false,
            next: Lsn(0),
            room_bytes: 0,
            posted: VecDeque::with_capacity(POSTED_MAX),
        });
        let mut state = self.lock();
        state.readers.push(GroupReader { number, wake, direct });
        self.has_readers.store(true, Ordering::SeqCst);
        (self.following)(true);
    }

    pub fn remove_reader(&self, number: u64) {
        let mut given_up = VecDeque::new();
        let mut state = self.lock();
        state.readers.retain(|known| known.number != number);
        if state.readers.is_empty() {
            self.has_readers.store(false, Ordering::SeqCst);
            (self.following)(false);
            match self.buffer {
                Some(_) => state.groups.clear(), // the memory stays, because sealing must not allocate
                None => given_up = std::mem::take(&mut state.groups),
            }
            state.bytes = 0;
        }
        drop(state);
        drop(given_up); // the drop frees memory, so it runs outside of the lock
    }

    pub fn wake_all(&self) {
        for reader in &self.lock().readers {
            reader.wake();
        }
    }

    /// Returns the group that begins at `from`.
    pub fn find(&self, from: Lsn) -> RingLookup {
        let state = self.lock();
        let Some(last) = state.groups.back() else {
            return RingLookup::Nothing;
        };
        if last.end.lsn == from {
            return RingLookup::Nothing;
        }
        let at = state.groups.partition_point(|group| group.first < from);
        match state.groups.get(at).filter(|group| group.first == from) {
            Some(group) => RingLookup::Group(group.clone()),
            None => RingLookup::Missing,
        }
    }

    /// Has groups posted to a reader from `next` on, while its standby has room. False if the reader has to send them itself: they can't be posted,
    /// or some were sealed by now.
    pub fn post_from(&self, number: u64, next: Lsn, room_bytes: u64) -> bool {
        let mut state = self.lock();
        let is_last = state.groups.back().is_none_or(|last| last.end.lsn <= next);
        let Some(direct) = state.direct(number).filter(|_| is_last) else {
            return false;
        };
        (direct.is_on, direct.next, direct.room_bytes) = (true, next, room_bytes);
        true
    }

    /// Stops posting to a reader, which then sends its groups itself.
    pub fn stop_posting(&self, number: u64) {
        if let Some(direct) = self.lock().direct(number) {
            direct.is_on = false;
        }
    }

    /// Moves the record of the groups that were posted to a reader into `posted`.
    pub fn take_posted(&self, number: u64, posted: &mut PostedGroups) {
        let mut state = self.lock();
        if let Some(direct) = state.direct(number) {
            posted.groups.extend(direct.posted.drain(..));
            posted.goes_on = direct.is_on;
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Copies the group's frame into memory that the transport sends from. None: it is too long, or a frame that lies there is still being sent.
    fn lay(
        &self,
        state: &mut GroupRingState,
        buffer: &Arc<FrameBuffer>,
        [head, records]: [&[u8]; 2],
    ) -> Option<SharedFrame> {
        while state.bytes + records.len() > self.bytes_max || state.groups.len() == SHARED_FRAMES_MAX {
            state.remove_oldest()?;
        }
        loop {
            if let Some(frame) = buffer.lay(&[head, records]) {
                return Some(frame);
            }
            let oldest = state.remove_oldest()?;
            if matches!(&oldest.bytes, GroupBytes::Shared(frame) if frame.is_held_by_others()) {
                return None; // the newer groups follow it
            }
        }
    }

    fn take_shared(&self, buffer: &Arc<FrameBuffer>, group: &Group<'_>) {
        let head = head_of(group);
        let mut state = self.lock();
        if state.readers.is_empty() {
            return;
        }
        let frame = self.lay(&mut state, buffer, [&head, group.records]);
        let GroupRingState { groups, bytes, readers } = &mut *state;
        for reader in readers {
            if !reader.post(frame.as_ref(), group) {
                reader.wake();
            }
        }
        if let Some(frame) = frame {
            *bytes += group.records.len();
            groups.push_back(RingGroup {
                first: group.first,
                end: group.end,
                bytes: GroupBytes::Shared(frame),
            });
        }
    }
}

impl GroupRingState {
    fn direct(&mut self, number: u64) -> Option<&mut Direct> {
        let reader = self.readers.iter_mut().find(|reader| reader.number == number)?;
        reader.direct.as_mut()
    }

    /// Removes the oldest group.
    fn remove_oldest(&mut self) -> Option<RingGroup> {
        let oldest = self.groups.pop_front()?;
        self.bytes -= oldest.held_bytes();
        Some(oldest)
    }
}

impl GroupReader {
    fn wake(&self) {
        let _ = self.wake.try_send(()); // a full channel means that the thread is awake
    }

    /// Posts a group. False if the reader has to send it itself.
    fn post(&mut self, frame: Option<&SharedFrame>, group: &Group<'_>) -> bool {
        let Some(direct) = self.direct.as_mut().filter(|direct| direct.is_on) else {
            return false;
        };
        direct.is_on = frame.is_some_and(|frame| direct.post(frame, group));
        direct.is_on
    }
}

impl Direct {
    fn post(&mut self, frame: &SharedFrame, group: &Group<'_>) -> bool {
        let has_room = self.room_bytes > 0 && self.posted.len() < POSTED_MAX;
        if self.next != group.first || !has_room || !matches!(self.poster.try_post(frame), Ok(true)) {
            return false; // the next sender gets the error
        }
        let bytes = group.records.len();
        self.next = group.end.lsn;
        self.room_bytes = self.room_bytes.saturating_sub(bytes as u64);
        self.posted.push_back((group.end, bytes));
        true
    }
}

impl GroupSink for Ring {
    fn take(&self, group: &Group<'_>) {
        if !self.has_readers.load(Ordering::SeqCst) {
            return;
        }
        if let Some(buffer) = &self.buffer {
            return self.take_shared(buffer, group);
        }
        let sealed = Arc::new(SealedGroup::of(group));
        let mut given_up = Vec::new();
        let mut state = self.lock();
        if state.readers.is_empty() {
            return;
        }
        let kept = RingGroup {
            first: group.first,
            end: group.end,
            bytes: GroupBytes::Own(sealed),
        };
        state.bytes += kept.held_bytes();
        state.groups.push_back(kept);
        while state.bytes > self.bytes_max {
            given_up.push(state.remove_oldest().expect("it has bytes"));
        }
        for reader in &state.readers {
            reader.wake();
        }
        drop(state);
        drop(given_up); // the drop frees memory, so it runs outside of the lock
    }
}

#[cfg(test)]
mod tests {
    use reprise_base::Epoch;
    use reprise_env::{FrameMemory, NetError};
    use reprise_wire::History;

    use super::*;

    fn take(ring: &Ring, first: u64, end: u64, bytes: usize) {
        ring.take(&Group {
            first: Lsn(first),
            end: Position {
                epoch: Epoch::new(1, 0),
                lsn: Lsn(end),
                history: History(7),
            },
            records: &vec![1; bytes],
        });
    }

    fn found(ring: &Ring, from: u64) -> &'static str {
        match ring.find(Lsn(from)) {
            RingLookup::Group(_) => "group",
            RingLookup::Nothing => "nothing",
            RingLookup::Missing => "missing",
        }
    }

    #[test]
    fn oldest_groups_give_way_and_no_group_is_kept_without_a_reader() {
        let ring = Ring::new(1_000 + 3 * OWN_GROUP_BYTES, None, Box::new(|_| ()));
        check_oldest_give_way(&ring, OWN_GROUP_BYTES);
    }

    #[test]
    fn in_shared_memory_the_oldest_groups_give_way_too() {
        let ring = Ring::new(1_000, Some(buffer(4_000)), Box::new(|_| ()));
        check_oldest_give_way(&ring, 0);
    }

    /// Each group takes so much beside its records.
    fn check_oldest_give_way(ring: &Ring, each: usize) {
        take(ring, 0, 5, 100);
        assert_eq!((ring.bytes(), found(ring, 0)), (0, "nothing"));
        let (wake, woken) = crossbeam_channel::bounded(1);
        ring.add_reader(1, wake, None);
        for first in 1..5 {
            take(ring, first * 5, first * 5 + 5, 300);
        }
        assert_eq!((ring.bytes(), woken.len()), (900 + 3 * each, 1));
        let at = |from| found(ring, from);
        assert_eq!(
            [at(5), at(10), at(12), at(20), at(25)],
            ["missing", "group", "missing", "group", "nothing"]
        );
        // One that is too large for it leaves nothing in it.
        take(ring, 25, 30, 1_001 + 3 * each);
        assert_eq!((ring.bytes(), at(20), at(25)), (0, "nothing", "nothing"));
        take(ring, 30, 31, 10);
        assert_eq!((at(25), at(30)), ("missing", "group"));
        ring.remove_reader(1);
        take(ring, 31, 32, 10);
        assert_eq!((ring.bytes(), at(31)), (0, "nothing"));
    }

    struct Memory(usize);

    impl FrameMemory for Memory {
        fn bytes(&self) -> usize {
            self.0
        }

        fn put(&self, _: usize, _: &[u8]) {}
    }

    fn buffer(bytes: usize) -> Arc<FrameBuffer> {
        Arc::new(FrameBuffer::new(Arc::new(Memory(bytes))))
    }

    /// A peer that takes `room` frames, and holds them.
    #[derive(Default)]
    struct Peer {
        room: Mutex<usize>,
        taken: Mutex<Vec<SharedFrame>>,
    }

    impl FramePoster for Peer {
        fn try_post(&self, frame: &SharedFrame) -> Result<bool, NetError> {
            let (mut room, mut taken) = (self.room.lock().expect("test"), self.taken.lock().expect("test"));
            let has_room = *room > 0;
            if has_room {
                *room -= 1;
                taken.push(frame.clone());
            }
            Ok(has_room)
        }
    }

    #[test]
    fn groups_are_posted_while_there_is_room_and_the_woken_thread_sends_the_rest() {
        let ring = Ring::new(4_000, Some(buffer(1 << 20)), Box::new(|_| ()));
        let (wake, woken) = crossbeam_channel::bounded(1);
        let peer = Arc::new(Peer::default());
        *peer.room.lock().expect("test") = 3;
        ring.add_reader(1, wake, Some(peer.clone()));
        take(&ring, 0, 5, 100);
        assert_eq!(woken.try_recv(), Ok(()), "it did not ask for it");
        assert!(!ring.post_from(1, Lsn(0), 1_000), "a group was sealed by then");
        assert!(ring.post_from(1, Lsn(5), 250));
        take(&ring, 5, 10, 100);
        take(&ring, 10, 15, 200);
        assert!(woken.is_empty() && peer.taken.lock().expect("test").len() == 2);
        take(&ring, 15, 20, 100);
        assert_eq!(woken.try_recv(), Ok(()), "the standby has no room");
        let mut posted = PostedGroups::default();
        ring.take_posted(1, &mut posted);
        let ends: Vec<_> = posted.groups.iter().map(|(end, bytes)| (end.lsn.0, *bytes)).collect();
        assert_eq!((ends, posted.goes_on), (vec![(10, 100), (15, 200)], false));
        assert!(ring.post_from(1, Lsn(20), 1_000));
        take(&ring, 20, 25, 100);
        take(&ring, 25, 30, 100);
        assert_eq!(woken.try_recv(), Ok(()), "its connection has no room");
        assert_eq!(peer.taken.lock().expect("test").len(), 3);
    }

    #[test]
    fn groups_still_being_sent_are_not_overwritten() {
        let ring = Ring::new(1 << 20, Some(buffer(1_024)), Box::new(|_| ()));
        let (wake, woken) = crossbeam_channel::bounded(1);
        let peer = Arc::new(Peer::default());
        *peer.room.lock().expect("test") = 9;
        ring.add_reader(1, wake, Some(peer.clone()));
        assert!(ring.post_from(1, Lsn(0), 1 << 20));
        for first in 0..2 {
            take(&ring, first, first + 1, 400);
        }
        assert!(woken.is_empty());
        take(&ring, 2, 3, 400);
        assert_eq!((woken.try_recv(), found(&ring, 2)), (Ok(()), "nothing"));
        peer.taken.lock().expect("test").clear();
        take(&ring, 3, 4, 400);
        assert_eq!((found(&ring, 2), found(&ring, 3)), ("missing", "group"));
    }
}
