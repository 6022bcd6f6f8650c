//! The server's output: lines on standard error, and `listening on` on standard output. Each stream has a writer. A closed, slow or full
//! reader therefore neither ends nor delays the server or the other stream.

mod line;
mod queue;
mod tracing_lines;

use std::{
    backtrace::Backtrace,
    env,
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    panic::{self, PanicHookInfo},
    sync::OnceLock,
    thread,
};

pub use self::line::{Level, Line, LogFormat};
use self::queue::{OutputStream, Queue, Streams};

/// The lines for standard error, once this process is a server.
static QUEUE: OnceLock<Queue> = OnceLock::new();
/// The lines for standard output.
static RESULTS: OnceLock<Queue> = OnceLock::new();

/// Columns of a terminal that progress takes at most.
const PROGRESS_COLUMNS: usize = 78;

/// The process's own, past the library's buffers.
struct ProcessStreams {
    output: File,
    errors: File,
}

impl Streams for ProcessStreams {
    fn write(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<usize> {
        match stream {
            OutputStream::Output => self.output.write(bytes),
            OutputStream::Errors => self.errors.write(bytes),
        }
    }
}

/// Starts the writers. From here on panics and the lines of libraries go through them, too.
pub fn start() -> io::Result<()> {
    for (name, queue) in [("output", &QUEUE), ("results", &RESULTS)] {
        let streams = ProcessStreams {
            output: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            errors: File::from(io::stderr().as_fd().try_clone_to_owned()?),
        };
        let queue = queue.get_or_init(Queue::default);
        let work = move || queue.write_all(streams);
        thread::Builder::new().name(name.into()).spawn(work)?;
    }
    panic::set_hook(Box::new(print_panic));
    tracing_lines::start();
    Ok(())
}

/// Returns whether this process is a server.
pub fn is_started() -> bool {
    QUEUE.get().is_some()
}

pub fn set_format(format: LogFormat) {
    if let Some(queue) = QUEUE.get() {
        queue.set_format(format);
    }
}

/// Says a line on standard error.
pub fn say(line: Line) {
    if let Some(queue) = QUEUE.get() {
        queue.push(OutputStream::Errors, line);
    }
}

pub fn info(event: &'static str, message: impl Into<String>) {
    say(Line::info(event, message));
}

pub fn warning(event: &'static str, message: impl Into<String>) {
    say(Line::warning(event, message));
}

pub fn error(event: &'static str, message: impl Into<String>) {
    say(Line::error(event, message));
}

/// Says a result on standard output, where programs read it: the words alone.
pub fn result(text: String) {
    if let Some(queue) = RESULTS.get() {
        queue.push(OutputStream::Output, Line::info("result", text));
    }
}

/// Shows the progress of long work, if standard error is a terminal. An empty text removes it.
pub fn show_progress(text: &str) {
    let is_seen = || io::stderr().is_terminal();
    if let Some(queue) = QUEUE.get().filter(|_| is_seen()) {
        let text = crate::escape::escaped(text);
        queue.show_progress(text.chars().take(PROGRESS_COLUMNS).collect());
    }
}

/// Waits until all that was said is written: before the process ends. What the streams do not take is not waited for.
pub fn drain() {
    for queue in [&RESULTS, &QUEUE].into_iter().filter_map(OnceLock::get) {
        queue.drain();
    }
}

fn print_panic(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
    let message = info.payload_as_str().unwrap_or("no message");
    let line = Line::error("panic", format!("thread {name:?} panicked{place}: {message}")).with("thread", name);
    // The library's own variable is set for errors alone (`quiet_library_backtraces`).
    let wants_backtrace = env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    say(match wants_backtrace {
        true => line.and_lines(Backtrace::force_capture().to_string().lines()),
        false => line,
    });
    // The process may end with this.
    drain();
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};

    use super::*;

    /// Set for the process that panics.
    const PANICS: &str = "REPRISE_TEST_PANICS";
    const NAME: &str = "server_output::tests::panic_ends_its_thread_alone_when_standard_error_takes_nothing";

    fn exit_status_with(errors: impl Into<Stdio>) -> Option<i32> {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", NAME, "--nocapture"]).env(PANICS, "yes");
        let status = command.stdout(Stdio::null()).stderr(errors).status();
        status.expect("started").code()
    }

    #[test]
    fn panic_ends_its_thread_alone_when_standard_error_takes_nothing() {
        if env::var_os(PANICS).is_some() {
            start().expect("started");
            let ended = thread::spawn(|| panic!("on purpose\nready: forged")).join();
            drain();
            process::exit(if ended.is_err() { 7 } else { 8 });
        }
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        assert_eq!(exit_status_with(full), Some(7));
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(exit_status_with(writer), Some(7));
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut fills = writer.try_clone().expect("another end");
        let filling = thread::spawn(move || fills.write_all(&[b'x'; 1 << 20]));
        assert_eq!(exit_status_with(writer), Some(7));
        drop(reader);
        assert!(filling.join().expect("no panic").is_err(), "nobody read it");

        let (mut reader, writer) = io::pipe().expect("a pipe");
        assert_eq!(exit_status_with(writer), Some(7));
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).expect("read");
        let line = text.lines().find(|line| line.contains("panicked")).expect("told");
        assert!(
            line.contains(" error: thread ") && line.contains("on purpose\\nready: forged"),
            "{line}"
        );
    }
}
