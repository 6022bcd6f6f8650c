//! Limits and times of both ends of a connection.

use std::time::Duration;

use crossbeam_channel::{Receiver, Select};
use reprise_env::{Connection, NetError, NetLimits};
use reprise_wire::{FRAME_BYTES_MAX, Frame, STANDBY_FRAME_BYTES_MAX};

/// A peer that was silent for this time is lost.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Longest time for which one frame is being sent.
pub const SEND_TIME: Duration = Duration::from_secs(10);
/// Interval at which a primary says that it is there.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(20);

/// Shortest interval at which a primary reports a new committed LSN: a standby shows nothing before.
pub(crate) const COMMITTED_BEAT: Duration = Duration::from_millis(2);

/// Limits of a primary's end: a standby's frames are short.
pub const SHIP_LIMITS: NetLimits = NetLimits {
    frame_bytes: STANDBY_FRAME_BYTES_MAX,
    sent_bytes: FRAME_BYTES_MAX,
    frames_waiting: 64,
    send_time: SEND_TIME,
};

/// Limits of a standby's end. The room that it reports bounds the groups that wait here.
pub const STANDBY_LIMITS: NetLimits = NetLimits {
    frame_bytes: FRAME_BYTES_MAX,
    sent_bytes: STANDBY_FRAME_BYTES_MAX,
    frames_waiting: 4,
    send_time: SEND_TIME,
};

pub(crate) fn send(connection: &mut Connection, frame: &Frame<'_>) -> Result<(), NetError> {
    connection.sender.send(&[&frame.encode()])
}

/// Sleeps until a frame has come, another thread wakes this one, or the time is over. For threads of their own; a step never waits.
pub(crate) fn wait(frames: &Receiver<Vec<u8>>, woken: &Receiver<()>, time: Duration) {
    let mut select = Select::new();
    select.recv(frames);
    select.recv(woken);
    if select.ready_timeout(time).is_ok() {
        let _ = woken.try_recv();
    }
}
