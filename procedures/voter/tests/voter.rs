//! The voter module on the test kit.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use reprise_procedure::testkit::TestDb;
use voter::{ContestantVotes, Initialized, MODULE, PhoneVote, VoteOutcome, VoteResult, area_codes, state_of};

fn started(names: &[&str]) -> TestDb {
    let mut db = TestDb::new(&MODULE);
    let answer: Initialized = db.call("initialize", (names.to_vec(),)).unwrap();
    assert_eq!(answer.contestants, names.len() as i64);
    db
}

fn vote(db: &mut TestDb, phone: i64, contestant: i32, max: i64) -> VoteOutcome {
    db.call::<VoteResult>("vote", (phone, contestant, max)).unwrap().outcome
}

fn results(db: &mut TestDb) -> Vec<(i32, String, i64)> {
    let lines: Vec<ContestantVotes> = db.call("results", ()).unwrap();
    lines
        .into_iter()
        .map(|line| (line.contestant_number, line.contestant_name, line.votes))
        .collect()
}

#[test]
fn votes_are_counted_and_limited_per_phone() {
    let mut db = started(&["Edwina", "Tabatha", "Kelly"]);
    assert_eq!(vote(&mut db, 2_025_550_100, 2, 2), VoteOutcome::Accepted);
    assert_eq!(vote(&mut db, 2_025_550_100, 2, 2), VoteOutcome::Accepted);
    assert_eq!(vote(&mut db, 2_025_550_100, 1, 2), VoteOutcome::OverLimit);
    assert_eq!(vote(&mut db, 2_025_550_101, 3, 2), VoteOutcome::Accepted);
    assert_eq!(vote(&mut db, 2_025_550_101, 0, 2), VoteOutcome::InvalidContestant);
    assert_eq!(vote(&mut db, 2_025_550_101, 4, 2), VoteOutcome::InvalidContestant);
    assert_eq!(db.count("votes"), 3);
    let expected = [
        (2, "Tabatha".to_owned(), 2),
        (3, "Kelly".into(), 1),
        (1, "Edwina".into(), 0),
    ];
    assert_eq!(results(&mut db), expected);
}

#[test]
fn the_votes_of_a_phone_are_numbered_without_gaps_up_to_any_limit() {
    let mut db = started(&["Edwina", "Tabatha"]);
    let phone = 2_025_550_100;
    for vote_number in 1..=70 {
        let contestant = 1 + vote_number % 2;
        assert_eq!(vote(&mut db, phone, contestant, i64::MAX), VoteOutcome::Accepted);
        for max in [1, vote_number as i64 - 1, vote_number as i64] {
            assert_eq!(vote(&mut db, phone, 1, max), VoteOutcome::OverLimit);
        }
    }
    let votes: Vec<PhoneVote> = db.call("phone_votes", (phone,)).unwrap();
    let expected = (1..=70).map(|vote_number| PhoneVote {
        vote_number,
        contestant_number: 1 + vote_number % 2,
    });
    assert_eq!(votes, expected.collect::<Vec<_>>());
    let none: Vec<PhoneVote> = db.call("phone_votes", (phone + 1,)).unwrap();
    assert_eq!(none, []);
}

#[test]
fn a_limit_of_none_or_less_accepts_nothing() {
    let mut db = started(&["Edwina"]);
    for max in [0, -1, i64::MIN] {
        assert_eq!(vote(&mut db, 4_165_550_100, 1, max), VoteOutcome::OverLimit);
    }
    assert_eq!(db.count("votes"), 0);
}

#[test]
fn any_number_is_a_phone() {
    let mut db = started(&["Edwina"]);
    for phone in [i64::MIN, -1, 0, 1, 999_999_999, 9_999_999_999, 10_000_000_000, i64::MAX] {
        assert_eq!(state_of(phone), "XX", "{phone}");
        assert_eq!(vote(&mut db, phone, 1, 1), VoteOutcome::Accepted);
        assert_eq!(vote(&mut db, phone, 1, 1), VoteOutcome::OverLimit);
    }
    assert_eq!(results(&mut db), [(1, "Edwina".into(), 8)]);
}

#[test]
fn initializing_again_keeps_votes_and_follows_the_names() {
    let mut db = started(&["Edwina", "Tabatha"]);
    vote(&mut db, 2_125_550_100, 2, 9);
    for _ in 0..2 {
        let answer: Initialized = db.call("initialize", (vec!["Edwina", "Tabatha"],)).unwrap();
        assert_eq!(answer.contestants, 2);
    }
    let renamed: Initialized = db.call("initialize", (vec!["Edwina Burnam"],)).unwrap();
    assert_eq!(renamed.contestants, 2, "nobody is taken out");
    assert_eq!(
        results(&mut db),
        [(2, "Tabatha".into(), 1), (1, "Edwina Burnam".into(), 0)]
    );
}

#[test]
fn votes_are_refused_before_initialize() {
    let mut db = TestDb::new(&MODULE);
    assert_eq!(vote(&mut db, 2_125_550_100, 1, 9), VoteOutcome::InvalidContestant);
    assert_eq!(results(&mut db), []);
    assert_eq!(
        db.call::<Initialized>("initialize", (Vec::<&str>::new(),))
            .unwrap()
            .contestants,
        0
    );
}

#[test]
fn area_codes_lie_in_their_states() {
    let expected = [
        (212, "NY"),
        (415, "CA"),
        (202, "DC"),
        (312, "IL"),
        (907, "AK"),
        (808, "HI"),
        (787, "PR"),
        (671, "GU"),
        (416, "ON"),
        (514, "QC"),
        (604, "BC"),
        (867, "YT"),
        (902, "NS"),
        (506, "NB"),
        (306, "SK"),
        (204, "MB"),
        (200, "XX"),
        (800, "XX"),
        (900, "XX"),
        (911, "XX"),
        (999, "XX"),
        (555, "XX"),
    ];
    for (code, state) in expected {
        assert_eq!(state_of(code * 10_000_000 + 5_550_100), state, "{code}");
    }
    let by_state = area_codes().fold(BTreeMap::<_, Vec<_>>::new(), |mut states, (code, state)| {
        states.entry(state).or_default().push(code);
        states
    });
    assert_eq!(
        by_state.len(),
        51 + 5 + 10,
        "states and DC, territories, provinces with codes of their own"
    );
    assert!(area_codes().all(|(code, state)| state_of(code as i64 * 10_000_000) == state));
    assert!(area_codes().count() > 380);
}
