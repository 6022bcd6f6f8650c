//! The sample module `voter`: a television show's phone votes, the benchmark of the same name.
//! Owns: the tables `contestants`, `votes`, `vote_counts`; the procedures `initialize`, `vote`, `phone_votes`, `results`.
//! Does not: know partitions; votes lie by phone number, each partition counts its own.
//! Invariants: a phone's votes are numbered from 1 without gaps; counts are those of the votes.
//! Called by: users of the sample, the driver, benchmarks, the crash and process tests.
#![deny(unsafe_code)]

mod area_codes;

use reprise_procedure::prelude::*;

pub use area_codes::{all as area_codes, area_code_of, state_of};

/// The contestants. The table is replicated, so that a vote finds its contestant on its own partition.
#[table(
    name = "contestants",
    primary_key(contestant_number),
    dense,
    index(number, contestant_number),
    replicated
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    pub contestant_number: i32,
    pub contestant_name: String,
}

/// One vote. `vote_number` counts the votes of its phone. The key is hashed, so a first vote costs one look-up: its own insertion.
#[table(name = "votes", primary_key(phone_number, vote_number), hash, partition_by = phone_number)]
#[derive(Clone, Debug, PartialEq)]
pub struct Vote {
    pub phone_number: i64,
    pub vote_number: i32,
    pub contestant_number: i32,
    pub state: SmallText<2>,
}

/// One partition's votes by contestant and area code: numbers close together, and in order for `results`.
#[table(
    name = "vote_counts",
    primary_key(contestant_number, area_code),
    dense,
    index(contestant, contestant_number, area_code),
    local
)]
#[derive(Clone, Debug, PartialEq)]
pub struct VoteCount {
    pub contestant_number: i32,
    pub area_code: i32,
    pub state: SmallText<2>,
    pub votes: i64,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureEnum)]
pub enum VoteOutcome {
    Accepted,
    InvalidContestant,
    OverLimit,
}

/// The answer of `vote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct VoteResult {
    pub outcome: VoteOutcome,
}

/// A line of `phone_votes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct PhoneVote {
    pub vote_number: i32,
    pub contestant_number: i32,
}

/// The answer of `initialize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct Initialized {
    pub contestants: i64,
}

/// A line of `results`.
#[derive(Clone, Debug, PartialEq, Eq, ProcedureStruct)]
pub struct ContestantVotes {
    pub contestant_number: i32,
    pub contestant_name: String,
    pub votes: i64,
}

/// Names the contestants, numbered from 1. Again with the same names it changes nothing; with others it renames and adds.
#[procedure(all_partitions)]
pub fn initialize(tx: &Txn, contestants: Vec<&str>) -> Result<Initialized, Abort> {
    for (contestant_number, name) in (1_i32..).zip(contestants) {
        match Contestant::get(tx, contestant_number) {
            None => {
                let row = Contestant {
                    contestant_number,
                    contestant_name: name.into(),
                };
                Contestant::insert(tx, &row)?;
            }
            Some(row) if row.contestant_name == name => {}
            Some(mut row) => {
                row.contestant_name = name.into();
                row.update(tx)?;
            }
        }
    }
    Ok(Initialized {
        contestants: Contestant::scan_by_number(tx).count() as i64,
    })
}

/// Takes one vote of a phone, at most `max_votes_per_phone` of each.
#[procedure(partition_by(phone_number), prefetch(Vote(phone_number, 1)))]
pub fn vote(
    tx: &Txn,
    phone_number: i64,
    contestant_number: i32,
    max_votes_per_phone: i64,
) -> Result<VoteResult, Abort> {
    if !Contestant::exists(tx, contestant_number) {
        return Ok(VoteResult {
            outcome: VoteOutcome::InvalidContestant,
        });
    }
    let state = state_of(phone_number);
    let vote = Vote {
        phone_number,
        vote_number: 1,
        contestant_number,
        state,
    };
    // The first vote of a phone is the usual one, and its row is the look-up.
    if max_votes_per_phone < 1 || Vote::insert(tx, &vote).is_err() {
        let votes = count_votes(tx, phone_number);
        if votes as i64 >= max_votes_per_phone {
            return Ok(VoteResult {
                outcome: VoteOutcome::OverLimit,
            });
        }
        let vote_number = votes.checked_add(1).ok_or_else(too_many)?;
        Vote::insert(tx, &Vote { vote_number, ..vote })?;
    }
    let area_code = area_code_of(phone_number);
    if VoteCount::add_votes(tx, (contestant_number, area_code), 1).is_none() {
        let count = VoteCount {
            contestant_number,
            area_code,
            state,
            votes: 1,
        };
        VoteCount::insert(tx, &count)?;
    }
    Ok(VoteResult {
        outcome: VoteOutcome::Accepted,
    })
}

/// How many votes a phone has. They are numbered without gaps: doubling finds a number that is free, halving the last one.
fn count_votes(tx: &Txn, phone_number: i64) -> i32 {
    let has = |number: i32| Vote::exists(tx, (phone_number, number));
    let (mut taken, mut free) = (0, 1);
    while has(free) {
        if free == i32::MAX {
            return free;
        }
        (taken, free) = (free, free.saturating_mul(2));
    }
    while free - taken > 1 {
        let middle = taken + (free - taken) / 2;
        *(if has(middle) { &mut taken } else { &mut free }) = middle;
    }
    taken
}

/// The votes of one phone, in their order.
#[procedure(partition_by(phone_number), read_only)]
pub fn phone_votes(tx: &Txn, phone_number: i64) -> Vec<PhoneVote> {
    let rows = (1..).map_while(|number| Vote::get(tx, (phone_number, number)));
    rows.map(|vote| PhoneVote {
        vote_number: vote.vote_number,
        contestant_number: vote.contestant_number,
    })
    .collect()
}

#[cold]
fn too_many() -> Abort {
    Abort::new("too_many_votes", "this phone's votes can't be numbered any more")
}

/// All contestants by votes, most first; equal ones by number.
#[procedure(all_partitions, read_only)]
pub fn results(tx: &Txn) -> Vec<ContestantVotes> {
    // Counts come in order of the contestant, so each contestant's lie side by side.
    let mut sums = Vec::<(i32, i64)>::new();
    for count in VoteCount::scan_by_contestant(tx) {
        match sums.last_mut() {
            Some((contestant, sum)) if *contestant == count.contestant_number => *sum += count.votes,
            _ => sums.push((count.contestant_number, count.votes)),
        }
    }
    let mut lines = Vec::<ContestantVotes>::new();
    for row in Contestant::scan_by_number(tx) {
        let Contestant {
            contestant_number,
            contestant_name,
        } = row.into_inner();
        let found = sums.binary_search_by_key(&contestant_number, |(contestant, _)| *contestant);
        let votes = found.ok().and_then(|at| sums.get(at)).map_or(0, |(_, sum)| *sum);
        // The rows also come in the order in which equal ones are to stay.
        let place = lines.partition_point(|line| line.votes >= votes);
        lines.insert(
            place,
            ContestantVotes {
                contestant_number,
                contestant_name,
                votes,
            },
        );
    }
    lines
}

reprise_procedure::module! {
    tables: [Contestant, Vote, VoteCount],
    procedures: [initialize, vote, phone_votes, results],
}
