//! Who does the work of the engine's threads: threads of their own, or one thread that steps all of them (`stepper`).

use std::{
    io,
    thread::{self, JoinHandle},
};

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done; there may be more.
    Done,
    /// Nothing can be done before others, or time, move on.
    Idle,
    Over,
}

/// The work of one thread. Both ways do the same, but for how they wait.
pub trait Work {
    /// Works, and waits, until all is done.
    fn run(self: Box<Self>);
    /// Does a piece of it; never waits for another work that waits itself.
    fn step(&mut self) -> Step;
}

/// Makes the work on the thread that does it: it may hold what must not change threads.
pub type MakeWork = Box<dyn FnOnce() -> Box<dyn Work> + Send>;

/// Work that was started.
pub trait Started: Send {
    /// Waits until it is over. Returns at once when it is this work itself that asks.
    fn join(self: Box<Self>);
    fn is_over(&self) -> bool;
}

/// Starts work, and says how to wait for it.
pub trait Threads: Send + Sync {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn Started>>;

    /// True where one thread does everything: whoever waits calls `help` until it has what it waits for.
    fn is_stepped(&self) -> bool;

    /// A step of whatever else there is to do, or time going on. Only where `is_stepped`.
    fn help(&self);
}

/// Threads of the operating system.
#[derive(Debug, Default)]
pub struct RealThreads;

struct RealThread(JoinHandle<()>);

impl Threads for RealThreads {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn Started>> {
        let thread = thread::Builder::new().name(name.to_owned());
        Ok(Box::new(RealThread(thread.spawn(move || make().run())?)))
    }

    fn is_stepped(&self) -> bool {
        false
    }

    fn help(&self) {
        unreachable!("real threads need no help; whoever waits sleeps");
    }
}

impl Started for RealThread {
    fn join(self: Box<Self>) {
        if self.0.thread().id() != thread::current().id() {
            // A panic in there was told by whoever keeps the thread's state whole.
            let _ = self.0.join();
        }
    }

    fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}
