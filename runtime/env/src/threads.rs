//! Threads of the engine, and how one waits for another. `RealThreads` starts operating system threads that sleep; `stepper` steps all
//! work on one thread. The engine chooses once, when it is wired; no code outside this crate asks which it is.

use std::{
    io,
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, Select, TryRecvError};

use crate::slice::ask_for_short_slices;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done; there may be more.
    Done,
    /// Nothing can be done before others, or time, move on.
    Idle,
    /// The work has ended.
    Over,
}

/// The work of one thread. Both ways do the same, but for how they wait.
pub trait Work {
    /// Works, and waits, until all is done.
    fn run(self: Box<Self>);
    /// Does a piece of it; waits only for works that were started before it.
    fn step(&mut self) -> Step;
}

/// Makes the work on the thread that does it: it may hold what must not change threads.
pub type MakeWork = Box<dyn FnOnce() -> Box<dyn Work> + Send>;

/// Work that was started.
pub trait ThreadHandle: Send {
    /// Waits until it is over. Returns at once when it is this work itself that asks.
    fn join(self: Box<Self>);
    /// True once the work has ended.
    fn is_over(&self) -> bool;
}

/// Starts work, and knows how to wait for it. Waits are methods of `dyn Threads`.
pub trait Threads: Send + Sync {
    /// Starts a work under this name. `make` makes it on the thread that runs it. Err: the system has no thread for it.
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>>;

    /// Starts work like `start`, for work that others wait for: it runs soon after it is woken, even while other threads keep the
    /// processors busy.
    fn start_prompt(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        self.start(name, make)
    }

    /// Threads that can work at the same time.
    fn cores(&self) -> usize;

    /// Releases the caller's locks through `let_go`, then steps other works or lets time pass, if all share the caller's thread.
    /// False: works have threads of their own, so the caller sleeps. Used by the waits of `dyn Threads`.
    fn give_way(&self, let_go: &mut dyn FnMut()) -> bool;

    /// Polls `is_there` for this time; true as soon as it holds. Other threads that need the processor go first.
    fn poll(&self, time: Duration, is_there: &dyn Fn() -> bool) -> bool;

    /// Does the work, and meanwhile shows its progress at intervals, at least once.
    fn beside(&self, every: Duration, show: &(dyn Fn() + Sync), work: &mut dyn FnMut());
}

impl dyn Threads {
    /// Waits for the next item of `receiver`. Err: all senders are gone.
    pub fn receive<T>(&self, receiver: &Receiver<T>) -> Result<T, RecvError> {
        loop {
            match receiver.try_recv() {
                Ok(received) => return Ok(received),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) if self.give_way(&mut || {}) => {}
                Err(TryRecvError::Empty) => return receiver.recv(),
            }
        }
    }

    /// Waits like `receive`, and meanwhile has `work` process the items of `others`.
    pub fn receive_beside<T, W>(
        &self,
        receiver: &Receiver<T>,
        others: &Receiver<W>,
        work: impl Fn(W),
    ) -> Result<T, RecvError> {
        loop {
            match receiver.try_recv() {
                Ok(received) => return Ok(received),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => {}
            }
            match others.try_recv() {
                Ok(other) => work(other),
                Err(TryRecvError::Disconnected) => return self.receive(receiver),
                Err(TryRecvError::Empty) if self.give_way(&mut || {}) => {}
                Err(TryRecvError::Empty) => {
                    let mut select = Select::new();
                    select.recv(receiver);
                    select.recv(others);
                    select.ready();
                }
            }
        }
    }

    /// Waits for the next item of `receiver`, for `time`; if all share a thread, for a turn of the others.
    pub fn receive_for<T>(&self, receiver: &Receiver<T>, time: Duration) -> Result<T, RecvTimeoutError> {
        match receiver.try_recv() {
            Ok(received) => Ok(received),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if self.give_way(&mut || {}) => receiver.recv_timeout(Duration::ZERO),
            Err(TryRecvError::Empty) => receiver.recv_timeout(time),
        }
    }

    /// Releases the lock until another thread notifies `condvar`, for `time`; if all share a thread, for a turn of the others. True:
    /// the time is over.
    pub fn wait_on<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let mut held = Some(guard);
        self.give_way(&mut || held = None);
        let Some(guard) = held else {
            return (lock.lock().expect("nothing panics under this lock"), false);
        };
        let waited = condvar.wait_timeout(guard, time);
        let (guard, waited) = waited.expect("nothing panics under this lock");
        (guard, waited.timed_out())
    }

    /// Runs `ask` on a thread of its own and waits for at most `time`: `ask` may hang. None: it did not end in time and is left
    /// running, or it panicked. If all share a thread nothing hangs, and the time is not used.
    pub fn within<T: Send + 'static>(
        &self,
        name: &str,
        time: Duration,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let ask = move || {
            let _ = answer.send(ask()); // the caller may have gone
        };
        self.start(name, Box::new(move || Box::new(OneTask(Some(ask)))))?;
        loop {
            match answered.try_recv() {
                Ok(found) => return Ok(Some(found)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) if self.give_way(&mut || {}) => {}
                Err(TryRecvError::Empty) => return Ok(answered.recv_timeout(time).ok()),
            }
        }
    }

    /// Lets this time pass. If all share a thread, the others take a turn.
    pub fn sleep(&self, time: Duration) {
        if !self.give_way(&mut || {}) {
            thread::sleep(time);
        }
    }
}

/// Work of one piece.
struct OneTask<F>(Option<F>);

impl<F: FnOnce()> Work for OneTask<F> {
    fn run(mut self: Box<Self>) {
        self.step();
    }

    fn step(&mut self) -> Step {
        if let Some(work) = self.0.take() {
            work();
        }
        Step::Over
    }
}

/// Threads of the operating system.
#[derive(Debug, Default)]
pub struct RealThreads;

struct RealThread(JoinHandle<()>);

impl Threads for RealThreads {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        let thread = thread::Builder::new().name(name.to_owned());
        Ok(Box::new(RealThread(thread.spawn(move || make().run())?)))
    }

    fn start_prompt(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        let prompt = move || {
            ask_for_short_slices();
            make()
        };
        self.start(name, Box::new(prompt))
    }

    fn cores(&self) -> usize {
        thread::available_parallelism().map_or(1, |cores| cores.get())
    }

    fn give_way(&self, _: &mut dyn FnMut()) -> bool {
        false
    }

    fn poll(&self, time: Duration, is_there: &dyn Fn() -> bool) -> bool {
        let until = Instant::now() + time;
        loop {
            for _ in 0..32 {
                if is_there() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                return false;
            }
            thread::yield_now();
        }
    }

    fn beside(&self, every: Duration, show: &(dyn Fn() + Sync), work: &mut dyn FnMut()) {
        let (over, is_over) = crossbeam_channel::bounded::<()>(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                show();
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    show();
                }
            });
            // The drop also comes after a panic of the work.
            let _over = over;
            work();
        });
    }
}

impl ThreadHandle for RealThread {
    fn join(self: Box<Self>) {
        if self.0.thread().id() != thread::current().id() {
            // The thread's owner already reported a panic in there.
            let _ = self.0.join();
        }
    }

    fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}
