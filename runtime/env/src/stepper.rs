//! Every thread's work in one thread, a step at a time, in an order that a seed decides.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    sim::FaultRandom,
    simclock::SimClock,
    threads::{MakeWork, Step, ThreadHandle, Threads, Work},
};

/// Microseconds that the clock moves when all works wait.
const IDLE_US: i64 = 5_000;
/// Idle rounds after which a work must be waiting for an event that never comes.
const STUCK_ROUNDS: u32 = 40_000;

thread_local! {
    static WORKS: RefCell<BTreeMap<u64, Rc<RefCell<Works>>>> = const { RefCell::new(BTreeMap::new()) };
}

static STEPPERS: AtomicU64 = AtomicU64::new(0);

/// Work that was started on a stepper.
struct WorkSlot {
    name: String,
    /// How many chances in a hundred it gets when its turn comes: slow devices and starved threads.
    share: u64,
    /// None while it takes its step, and once it is over.
    work: Option<Box<dyn Work>>,
    is_over: bool,
}

struct Works {
    slots: Vec<WorkSlot>,
    random: FaultRandom,
    idle_rounds: u32,
    is_killed: bool,
    steps: u64,
    /// Works whose steps are running, each within the one before.
    stepping: Vec<usize>,
}

/// Steps work on the thread that made it, and on no other. Clones are the same stepper.
#[derive(Clone)]
pub struct Stepper {
    number: u64,
    clock: Arc<SimClock>,
}

struct SteppedWork {
    stepper: Stepper,
    slot: usize,
}

impl Stepper {
    /// Works are stepped in an order that `seed` decides.
    pub fn new(seed: u64, clock: Arc<SimClock>) -> Self {
        let number = STEPPERS.fetch_add(1, Ordering::Relaxed);
        let works = Works {
            slots: Vec::new(),
            random: FaultRandom::new(seed),
            idle_rounds: 0,
            is_killed: false,
            steps: 0,
            stepping: Vec::new(),
        };
        let works = Rc::new(RefCell::new(works));
        WORKS.with_borrow_mut(|all| all.insert(number, works));
        Self { number, clock }
    }

    fn works(&self) -> Rc<RefCell<Works>> {
        let works = WORKS.with_borrow(|all| all.get(&self.number).cloned());
        works.expect("a stepper stays on its thread, and is not used once it was killed and dropped")
    }

    /// Steps taken until now.
    pub fn steps(&self) -> u64 {
        self.works().borrow().steps
    }

    /// Steps one work; false if all must wait until time passes. Within a step it only picks works that started before the running
    /// one: a later one might wait for that step's end.
    pub fn step(&self) -> bool {
        let works = self.works();
        let (count, first) = {
            let mut works = works.borrow_mut();
            let count = works.stepping.last().copied().unwrap_or(works.slots.len());
            (count, works.random.below(count.max(1) as u64) as usize)
        };
        for is_patient in [true, false] {
            for at in (0..count).map(|turn| (first + turn) % count) {
                if self.step_slot(&works, at, is_patient) {
                    return true;
                }
            }
        }
        false
    }

    /// Lets one work do something, unless it has bad luck and this is no hurry.
    fn step_slot(&self, works: &RefCell<Works>, at: usize, is_patient: bool) -> bool {
        let mut work = {
            let mut works = works.borrow_mut();
            let luck = works.random.below(100);
            let slot = &mut works.slots[at];
            let work = match slot.work.is_some() && (!is_patient || luck < slot.share) {
                true => slot.work.take().expect("checked above"),
                false => return false,
            };
            works.stepping.push(at);
            work
        };
        let step = work.step();
        let mut state = works.borrow_mut();
        state.stepping.pop();
        state.slots[at].is_over = step == Step::Over;
        if step != Step::Over && !state.is_killed {
            state.slots[at].work = Some(work);
        } else {
            drop(state);
            drop(work);
            state = works.borrow_mut();
        }
        if step != Step::Idle {
            state.idle_rounds = 0;
            state.steps += 1;
        }
        step != Step::Idle
    }

    /// Steps one work, or lets time pass. Panics if all works wait for too long: a deadlock.
    pub fn help(&self) {
        if self.step() {
            return;
        }
        self.clock.advance_us(IDLE_US);
        let works = self.works();
        let mut works = works.borrow_mut();
        works.idle_rounds += 1;
        if works.idle_rounds > STUCK_ROUNDS || works.is_killed {
            let waits = works.slots.iter().filter(|slot| !slot.is_over);
            let waits: Vec<_> = waits.map(|slot| slot.name.as_str()).collect();
            panic!("stuck: somebody waits, and nobody can do anything: {waits:?}");
        }
    }

    /// Ends the process: none of its works takes another step.
    pub fn kill(&self) {
        let works = self.works();
        works.borrow_mut().is_killed = true;
        let slots = works.borrow().slots.len();
        for at in 0..slots {
            // The work is dropped outside of the borrow, because its drop may drop other works.
            let work = works.borrow_mut().slots[at].work.take();
            drop(work);
        }
    }

    /// Forgets the stepper; it was killed, and its works will not be asked again.
    pub fn forget(&self) {
        WORKS.with_borrow_mut(|all| all.remove(&self.number));
    }
}

impl Threads for Stepper {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        let work = make();
        let works = self.works();
        let mut works = works.borrow_mut();
        if works.is_killed {
            return Err(io::Error::other("the process has ended"));
        }
        let share = [100, 100, 40, 5][works.random.below(4) as usize];
        works.slots.push(WorkSlot {
            name: name.to_owned(),
            share,
            work: Some(work),
            is_over: false,
        });
        Ok(Box::new(SteppedWork {
            stepper: self.clone(),
            slot: works.slots.len() - 1,
        }))
    }

    fn cores(&self) -> usize {
        1
    }

    fn give_way(&self, let_go: &mut dyn FnMut()) -> bool {
        let_go();
        self.help();
        true
    }

    fn poll(&self, _: Duration, is_there: &dyn Fn() -> bool) -> bool {
        is_there()
    }

    fn beside(&self, _: Duration, show: &(dyn Fn() + Sync), work: &mut dyn FnMut()) {
        show();
        work();
    }
}

impl ThreadHandle for SteppedWork {
    fn join(self: Box<Self>) {
        loop {
            let works = self.stepper.works();
            let is_waited_for = {
                let works = works.borrow();
                let slot = &works.slots[self.slot];
                // A work that is taking its step is the one that asks.
                !slot.is_over && !works.is_killed && slot.work.is_some()
            };
            if !is_waited_for {
                return;
            }
            self.stepper.help();
        }
    }

    fn is_over(&self) -> bool {
        let works = self.stepper.works();
        let works = works.borrow();
        works.is_killed || works.slots[self.slot].is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountedWork(u32, Rc<RefCell<Vec<u32>>>);

    impl Work for CountedWork {
        fn run(self: Box<Self>) {
            unreachable!("a stepper steps");
        }

        fn step(&mut self) -> Step {
            if self.0 % 10 == 3 {
                return Step::Over;
            }
            self.1.borrow_mut().push(self.0);
            self.0 += 1;
            Step::Done
        }
    }

    fn order_of(seed: u64) -> Vec<u32> {
        let stepper = Stepper::new(seed, Arc::default());
        let seen = Rc::new(RefCell::new(Vec::new()));
        SEEN.with_borrow_mut(|kept| *kept = Some(seen.clone()));
        for first in [10u32, 20, 30] {
            let make: MakeWork = Box::new(move || {
                let seen = SEEN.with_borrow(|kept| kept.clone().expect("set above"));
                Box::new(CountedWork(first, seen))
            });
            let started = stepper.start("count", make).expect("start");
            assert!(!started.is_over());
            if first == 30 {
                started.join();
            }
        }
        while stepper.step() {}
        stepper.kill();
        stepper.forget();
        seen.take()
    }

    thread_local! {
        static SEEN: RefCell<Option<Rc<RefCell<Vec<u32>>>>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_seed_decides_the_order_and_each_work_keeps_its_own() {
        let orders: Vec<_> = (0..20).map(order_of).collect();
        for order in &orders {
            for first in [10, 20, 30] {
                let own: Vec<_> = order.iter().filter(|n| **n / 10 == first / 10).collect();
                assert_eq!(own, [&first, &(first + 1), &(first + 2)]);
            }
        }
        assert_eq!(orders, (0..20).map(order_of).collect::<Vec<_>>());
        assert!(orders.iter().any(|order| *order != orders[0]));
    }
}
