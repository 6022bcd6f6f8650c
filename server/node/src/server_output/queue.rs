//! Lines on their way to standard error and standard output. A thread that prints never waits for them. One thread writes from a bounded
//! queue. Lines that find no room, or that the output does not take, are counted and reported later.

use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::line::{Line, LogFormat};

/// Lines that wait at most, and their bytes.
const LINES_MAX: usize = 4_096;
const BYTES_MAX: usize = 1 << 20;
/// Longest wait for what waits at the end of the process: in all, and as long as the writer has a piece in its hands. The first one is longer,
/// because a busy machine may run the writer late.
const DRAIN_MAX: Duration = Duration::from_secs(10);
const WRITING_MAX: Duration = Duration::from_secs(2);
/// Longest time for which a stream may hold one piece and take nothing.
const STALL_MAX: Duration = Duration::from_millis(250);
/// Between two tries on a stream that would block.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The stream that a line goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Output,
    Errors,
}

/// The next piece of output.
enum OutputPiece {
    Line {
        stream: OutputStream,
        time_us: i64,
        line: Line,
    },
    /// How far long work is, on a terminal. Empty: it is done.
    Progress(String),
}

#[derive(Default)]
struct OutputBacklog {
    lines: VecDeque<(OutputStream, i64, Line)>,
    bytes: usize,
    /// Lines that found no room, and are not told yet.
    overflowed: u64,
    progress: Option<String>,
    /// The writer has something in its hands.
    is_writing: bool,
    /// Pieces that were taken, or given up.
    done: u64,
    format: LogFormat,
}

#[derive(Default)]
pub struct Queue {
    waiting: Mutex<OutputBacklog>,
    came: Condvar,
    went: Condvar,
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

/// Returns the line that tells of lost ones.
fn lost(count: u64) -> Line {
    let message = format!("{count} lines before this one are lost, because the server could not write its output");
    Line::warning("lines_lost", message).with("count", count)
}

impl OutputBacklog {
    /// The time is taken under the lock, so lines are in its order.
    fn push(&mut self, stream: OutputStream, line: Line) {
        let bytes = line.bytes();
        if self.lines.len() >= LINES_MAX || self.bytes + bytes > BYTES_MAX {
            self.overflowed += 1;
            return;
        }
        if self.overflowed > 0 {
            let lost = lost(std::mem::take(&mut self.overflowed));
            self.bytes += lost.bytes();
            self.lines.push_back((OutputStream::Errors, now_us(), lost));
        }
        self.bytes += bytes;
        self.lines.push_back((stream, now_us(), line));
    }

    fn pop(&mut self) -> Option<OutputPiece> {
        if let Some((stream, time_us, line)) = self.lines.pop_front() {
            self.bytes -= line.bytes();
            return Some(OutputPiece::Line { stream, time_us, line });
        }
        if self.overflowed > 0 {
            return Some(OutputPiece::Line {
                stream: OutputStream::Errors,
                time_us: now_us(),
                line: lost(std::mem::take(&mut self.overflowed)),
            });
        }
        self.progress.take().map(OutputPiece::Progress)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, OutputBacklog> {
        // The panic hook comes here, too.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_format(&self, format: LogFormat) {
        self.lock().format = format;
    }

    pub fn push(&self, stream: OutputStream, line: Line) {
        self.lock().push(stream, line);
        self.came.notify_one();
    }

    /// Shows the progress of long work, in place of the text shown before.
    pub fn show_progress(&self, text: String) {
        self.lock().progress = Some(text);
        self.came.notify_one();
    }

    /// Waits until all that was said is written, unless the streams take nothing. A stream takes nothing if it holds one piece for a whole wait.
    /// The writer may not have run yet if it holds none.
    pub fn drain(&self) {
        let (begun, mut writing) = (Instant::now(), Duration::ZERO);
        let mut waiting = self.lock();
        while !waiting.lines.is_empty() || waiting.is_writing {
            let (since, done, was_writing) = (Instant::now(), waiting.done, waiting.is_writing);
            let waited = self.went.wait_timeout(waiting, STALL_MAX);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if was_writing {
                writing += since.elapsed();
            }
            let is_stalled = was_writing && timeout.timed_out() && waiting.done == done;
            if is_stalled || writing >= WRITING_MAX || begun.elapsed() >= DRAIN_MAX {
                return;
            }
        }
    }

    fn next(&self) -> (OutputPiece, LogFormat) {
        let mut waiting = self.lock();
        loop {
            if let Some(piece) = waiting.pop() {
                waiting.is_writing = true;
                return (piece, waiting.format);
            }
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end_piece(&self) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        waiting.done += 1;
        drop(waiting);
        self.went.notify_all();
    }

    /// Writes the lines that arrive, for ever.
    pub fn write_all(&self, streams: impl Streams) {
        let mut writer = Writer::new(streams);
        loop {
            let (piece, format) = self.next();
            writer.write(piece, format);
            self.end_piece();
        }
    }
}

/// The receivers of bytes: the process's own streams, and those of tests.
pub trait Streams {
    fn write(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<usize>;
}

struct Writer<S> {
    streams: S,
    /// Lines that were not taken, and are not told yet.
    failed: u64,
    /// A part of a line was taken, and the rest was not.
    is_cut: bool,
    shows_progress: bool,
}

/// Erases the line of a terminal.
const ERASE: &str = "\r\u{1b}[2K";

impl<S: Streams> Writer<S> {
    fn new(streams: S) -> Self {
        Self {
            streams,
            failed: 0,
            is_cut: false,
            shows_progress: false,
        }
    }

    fn write(&mut self, piece: OutputPiece, format: LogFormat) {
        match piece {
            OutputPiece::Line { stream, time_us, line } => {
                let text = match stream {
                    OutputStream::Output => line.bare(),
                    OutputStream::Errors => line.written(format, time_us),
                };
                self.write_line(stream, &text, format);
            }
            OutputPiece::Progress(text) => {
                self.shows_progress = !text.is_empty();
                let _ = self.put(OutputStream::Errors, format!("{ERASE}{text}").as_bytes()); // an error loses no line
            }
        }
    }

    fn write_line(&mut self, stream: OutputStream, text: &str, format: LogFormat) {
        if std::mem::take(&mut self.shows_progress) {
            let _ = self.put(OutputStream::Errors, ERASE.as_bytes()); // the line itself shows whether the stream takes it
        }
        if self.failed > 0 {
            let lost = lost(self.failed).written(format, now_us());
            let gap = if self.is_cut { "\n" } else { "" };
            if self
                .put(OutputStream::Errors, format!("{gap}{lost}").as_bytes())
                .is_ok()
            {
                (self.failed, self.is_cut) = (0, false);
            }
        }
        if self.put(stream, text.as_bytes()).is_err() {
            self.failed += 1;
        }
    }

    fn put(&mut self, stream: OutputStream, mut bytes: &[u8]) -> io::Result<()> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            match self.streams.write(stream, bytes) {
                Ok(0) => return Err(self.cut(whole, bytes, io::ErrorKind::WriteZero.into())),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_AFTER),
                Err(error) => return Err(self.cut(whole, bytes, error)),
            }
        }
        Ok(())
    }

    fn cut(&mut self, whole: usize, rest: &[u8], error: io::Error) -> io::Error {
        self.is_cut |= rest.len() < whole;
        error
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    /// A pipe that takes this many bytes, then nothing more until it is emptied.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<PipeState>>);

    #[derive(Default)]
    struct PipeState {
        room: usize,
        taken: Vec<u8>,
        error: Option<io::ErrorKind>,
    }

    impl Pipe {
        fn lock(&self) -> MutexGuard<'_, PipeState> {
            self.0.lock().expect("no panic")
        }

        fn text(&self) -> String {
            String::from_utf8(self.lock().taken.clone()).expect("text")
        }
    }

    impl Streams for Pipe {
        fn write(&mut self, _: OutputStream, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.lock();
            if state.room == 0 {
                return Err(state.error.unwrap_or(io::ErrorKind::WouldBlock).into());
            }
            let count = bytes.len().min(state.room);
            state.room -= count;
            state.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
    }

    fn say(queue: &Queue, text: impl Into<String>) {
        queue.push(OutputStream::Errors, Line::info("test", text));
    }

    fn start(pipe: &Pipe) -> Arc<Queue> {
        let (queue, pipe) = (Arc::<Queue>::default(), pipe.clone());
        let writing = queue.clone();
        thread::spawn(move || writing.write_all(pipe));
        queue
    }

    #[test]
    fn blocked_stream_delays_no_thread_and_lost_lines_are_reported() {
        let pipe = Pipe::default();
        let queue = start(&pipe);
        let said = 3 * LINES_MAX;
        (0..said).for_each(|number| say(&queue, format!("line {number}")));
        // The queue gives up, although the output took nothing.
        queue.drain();
        assert_eq!(pipe.text(), "");
        pipe.lock().room = usize::MAX;
        queue.drain();
        say(&queue, "the last one");
        queue.drain();
        let text = pipe.text();
        let lines: Vec<_> = text.lines().collect();
        // The writer may take its first line behind the first lost ones. It then reports the lost lines twice.
        let counts = lines.iter().filter_map(|line| {
            let (count, _) = line.split_once("warning: ")?.1.split_once(" lines before")?;
            Some(count.parse::<usize>().expect("a number"))
        });
        let counts: Vec<_> = counts.collect();
        let lost: usize = counts.iter().sum();
        assert!(lost > 0, "{}", lines.len());
        assert_eq!(lines.len() - 1 - counts.len() + lost, said, "{counts:?}");
        assert!(lines[0].ends_with(" line 0") && text.ends_with("the last one\n"));
    }

    #[test]
    fn drain_waits_for_a_writer_that_runs_late() {
        let pipe = Pipe::default();
        pipe.lock().room = usize::MAX;
        let (queue, late) = (Arc::<Queue>::default(), pipe.clone());
        say(&queue, "the only one");
        let writing = queue.clone();
        thread::spawn(move || {
            thread::sleep(2 * STALL_MAX);
            writing.write_all(late);
        });
        queue.drain();
        assert!(pipe.text().ends_with(" the only one\n"), "{}", pipe.text());
    }

    #[test]
    fn a_line_that_is_cut_off_by_a_full_disk_is_counted_and_the_next_one_begins_a_line() {
        let pipe = Pipe::default();
        *pipe.lock() = PipeState {
            room: 10,
            error: Some(io::ErrorKind::StorageFull),
            ..PipeState::default()
        };
        let mut writer = Writer::new(pipe.clone());
        let mut write = |text: &str| {
            let line = Line::info("test", text);
            let (stream, time_us) = (OutputStream::Errors, 0);
            writer.write(OutputPiece::Line { stream, time_us, line }, LogFormat::Text);
        };
        ["one", "two"].iter().for_each(|line| write(line));
        assert_eq!(pipe.text(), "1970-01-01");
        pipe.lock().room = usize::MAX;
        write("three");
        let text = pipe.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("warning: 2 lines before this one are lost"), "{text}");
        assert!(lines.len() == 3 && lines[2].ends_with("Z three"), "{text}");
    }

    #[test]
    fn lines_of_several_threads_are_in_the_order_of_their_times() {
        let pipe = Pipe::default();
        pipe.lock().room = usize::MAX;
        let queue = start(&pipe);
        let (ended, ends) = mpsc::channel();
        for thread in 0..4 {
            let (queue, ended) = (queue.clone(), ended.clone());
            thread::spawn(move || {
                (0..200).for_each(|number| say(&queue, format!("{thread} {number}")));
                ended.send(()).expect("counted");
            });
        }
        (0..4).for_each(|_| ends.recv().expect("ended"));
        queue.drain();
        let text = pipe.text();
        let times: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(times.len() == 800 && times.is_sorted(), "{}", times.len());
    }

    #[test]
    fn progress_gives_way_to_a_line() {
        let pipe = Pipe::default();
        pipe.lock().room = usize::MAX;
        let mut writer = Writer::new(pipe.clone());
        writer.write(OutputPiece::Progress("50 %".into()), LogFormat::Text);
        writer.write_line(OutputStream::Errors, "ready\n", LogFormat::Text);
        writer.write(OutputPiece::Progress(String::new()), LogFormat::Text);
        assert_eq!(pipe.text(), format!("{ERASE}50 %{ERASE}ready\n{ERASE}"));
    }
}
