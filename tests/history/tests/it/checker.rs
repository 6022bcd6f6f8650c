//! Histories judged by the linearizability checker of `todc-utils` (Wing and Gong's algorithm with Lowe's memory, as in
//! porcupine). With whole transactions over a handful of registers as its operations, linearizable means strictly
//! serializable.

use reprise_database::LogPolicy;
use reprise_test_crash::{Launch, Server};
use reprise_test_history::{Client, Done, Http, Local, Mix, Model, Op, Ret, deploy, history_of, open};
use todc_utils::{
    linearizability::{
        WGLChecker,
        history::{Action, History},
    },
    specifications::Specification,
};

/// The registers as one object.
struct Registers;

#[derive(Clone, Debug)]
enum Step {
    /// The registers as they were before the history began.
    Start(Model),
    Call(Op, Ret),
}

impl Specification for Registers {
    type State = Model;
    type Operation = Step;

    fn init() -> Model {
        Model::default()
    }

    fn apply(step: &Step, state: &Model) -> (bool, Model) {
        match step {
            Step::Start(model) => (true, model.clone()),
            Step::Call(op, ret) => {
                let mut next = state.clone();
                match next.apply(op) == *ret {
                    true => (true, next),
                    false => (false, state.clone()),
                }
            }
        }
    }
}

/// Returns whether some serial order explains the answers from `start` on, and keeps real time.
fn is_strictly_serializable(start: &Model, history: &[Done]) -> bool {
    let mut events = Vec::new();
    for done in history {
        let step = Step::Call(done.op.clone(), done.ret.clone());
        events.push((done.invoked, done.client, Action::Call(step.clone())));
        events.push((done.returned, done.client, Action::Response(step)));
    }
    events.sort_unstable_by_key(|(at, ..)| *at);
    let start = Step::Start(start.clone());
    let mut actions = vec![(0, Action::Call(start.clone())), (0, Action::Response(start))];
    actions.extend(events.into_iter().map(|(_, client, action)| (client, action)));
    WGLChecker::<Registers>::is_linearizable(History::from_actions(actions))
}

/// `(client, invoked, returned, call, answer)`
fn history(seen: &[(usize, u64, u64, Op, Ret)]) -> Vec<Done> {
    let done = |(client, invoked, returned, op, ret): &(usize, u64, u64, Op, Ret)| Done {
        client: *client,
        op: op.clone(),
        ret: ret.clone(),
        txn_id: Default::default(),
        invoked: *invoked,
        returned: *returned,
    };
    seen.iter().map(done).collect()
}

fn read(ids: &[i64]) -> Op {
    Op::Read(ids.to_vec())
}

fn write(ids: &[i64], value: i64) -> Op {
    Op::Write {
        ids: ids.to_vec(),
        values: vec![Some(value); ids.len()],
        abort: false,
    }
}

fn values(values: &[i64]) -> Ret {
    Ret::Values(values.iter().map(|value| Some(*value)).collect())
}

#[test]
fn the_checker_refuses_histories_that_are_wrong() {
    let start = Model([(0, 10), (1, 11)].into());
    let check = |seen: &[(usize, u64, u64, Op, Ret)], expected: bool, what: &str| {
        assert_eq!(is_strictly_serializable(&start, &history(seen)), expected, "{what}");
    };
    let overwrite = || (0, 0, 3, write(&[0, 1], 5), values(&[10, 11]));
    check(
        &[overwrite(), (1, 1, 2, read(&[0, 1]), values(&[10, 11]))],
        true,
        "read before",
    );
    check(
        &[overwrite(), (1, 1, 2, read(&[0, 1]), values(&[5, 5]))],
        true,
        "read behind",
    );
    check(
        &[overwrite(), (1, 1, 2, read(&[0, 1]), values(&[5, 11]))],
        false,
        "half a write",
    );
    check(
        &[overwrite(), (1, 4, 5, read(&[0]), values(&[10]))],
        false,
        "stale read",
    );
    let other = (1, 1, 2, write(&[0], 6), values(&[10]));
    check(&[overwrite(), other], false, "lost update: both saw the same value");
    let aborted = Op::Write {
        ids: vec![0],
        values: vec![Some(7)],
        abort: true,
    };
    let seen = (1, 2, 3, read(&[0]), values(&[7]));
    check(
        &[(0, 0, 1, aborted, Ret::Aborted), seen],
        false,
        "read of what was undone",
    );
    let readers = [
        (0, 0, 9, write(&[0], 5), values(&[10])),
        (1, 0, 9, write(&[1], 6), values(&[11])),
        (2, 1, 2, read(&[0, 1]), values(&[5, 11])),
        (3, 1, 2, read(&[0, 1]), values(&[10, 6])),
    ];
    check(&readers, false, "two readers saw two orders");
    let backwards = [
        (0, 0, 9, write(&[0], 5), values(&[10])),
        (1, 1, 2, read(&[0]), values(&[5])),
        (2, 3, 4, read(&[0]), values(&[10])),
    ];
    check(&backwards, false, "time went back between two clients");
}

const CLIENTS: usize = 4;
const CALLS: usize = 40;

fn rounds<C: Client + Send>(rounds: u64, connect: &dyn Fn() -> C) {
    for round in 0..rounds {
        let Ret::Rows(rows) = connect().call(&[Op::All]).remove(0).0 else {
            unreachable!("`all` answers with rows");
        };
        let start = Model(rows.into_iter().collect());
        let clients = (0..CLIENTS).map(|number| {
            let mut mix = Mix::new(round, number, 4, 60);
            mix.all_permille = 100;
            (connect(), mix.take(CALLS).collect())
        });
        let history = history_of(clients.collect(), 1);
        assert!(
            is_strictly_serializable(&start, &history),
            "round {round}: {history:#?}"
        );
    }
}

#[test]
fn random_transactions_are_strictly_serializable() {
    for (partitions, sites) in [(4, 2), (3, 3)] {
        let database = open(None, partitions, sites, LogPolicy::None);
        deploy(&database);
        rounds(40, &|| Local(database.router().clone()));
        database.close().expect("close");
    }
}

#[test]
fn random_transactions_over_http_are_strictly_serializable() {
    let dir = tempfile::tempdir().expect("a directory");
    let launch = Launch::new(&dir.path().join("data"));
    let launch = launch.args(&["--partitions", "4", "--sites", "2"]);
    let server = Server::start(&launch).expect("start the server");
    server.deploy("registers").expect("deploy");
    rounds(4, &|| Http(server.connect().expect("connect")));
}
