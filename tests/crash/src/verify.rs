//! After a restart: what is there against what must be there.

use std::{collections::HashSet, thread, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    client::{KNOWN_REST, KNOWN_WAIT_MAX, ask, is_open, misses_standbys},
    http::{Answer, Connection},
    model::{Call, Effect, FIRST_BALANCE, Model, PAIRS_COUNT, Pair, amount, ids, number},
    rng::Rng,
    server::Server,
};

/// Acknowledged calls with keys that each client asks for again after a restart.
const REPEATS: u64 = 4;

/// Checks one client's part and settles its unknown calls. Transaction ids and positions must lie above `floor`.
pub fn settle(model: &mut Model, server: &Server, rng: &mut Rng, floor: (u64, u64)) -> Result<()> {
    let connection = &mut server.connect()?;
    let unknown = std::mem::take(&mut model.unknown);
    let committed = find_committed(model, connection, &unknown)?;
    for (call, was_there) in unknown.iter().zip(&committed) {
        if *was_there {
            model.counts.found += 1;
            model.apply(call);
        }
    }
    for (call, was_there) in unknown.iter().zip(committed) {
        if call.key.is_some() {
            ask_again(model, connection, call, was_there, floor)?;
        }
    }
    repeat_acknowledged(model, connection, rng)?;
    check_balances(model, connection)
}

/// Which of the unknown calls took place.
fn find_committed(model: &Model, connection: &mut Connection, unknown: &[Call]) -> Result<Vec<bool>> {
    let digits = (0..PAIRS_COUNT).map(|pair| pair_digits(model, connection, pair, unknown));
    let digits: Vec<u64> = digits.collect::<Result<_>>()?;
    let mut committed = Vec::new();
    for call in unknown {
        committed.push(match call.effect {
            Effect::Transfer { pair, digit, .. } => digits[pair] & amount(digit) as u64 != 0,
            Effect::Open { account } => balance(connection, account)?.is_some(),
            Effect::Vote { phone } => vote_was_there(connection, phone)?,
        });
    }
    Ok(committed)
}

/// Returns the payments on a pair beyond the model, in base 4: a 1 at each unknown transfer that took place.
fn pair_digits(model: &Model, connection: &mut Connection, pair: usize, unknown: &[Call]) -> Result<u64> {
    let Pair { accounts, balances } = &model.pairs[pair];
    let mut found = [0; 2];
    for (account, found) in accounts.iter().zip(&mut found) {
        let there = balance(connection, *account)?;
        *found = there.with_context(|| format!("lost: account {account} is gone"))?;
    }
    let expected: i64 = balances.iter().sum();
    ensure!(
        found.iter().sum::<i64>() == expected,
        "half a transfer: pair {accounts:?} has {found:?}, together it must have {expected}"
    );
    let transfers = unknown.iter().filter_map(|call| match call.effect {
        Effect::Transfer {
            pair: own,
            payer,
            digit,
        } if own == pair => Some((payer, digit)),
        _ => None,
    });
    let transfers: Vec<_> = transfers.collect();
    let payer = transfers.first().map_or(0, |(payer, _)| *payer);
    let paid = balances[payer] - found[payer];
    let possible = transfers.iter().fold(0, |sum, (_, digit)| sum | amount(*digit));
    ensure!(
        paid >= 0 && paid & !possible == 0,
        "lost or twice: pair {accounts:?} has {found:?}, acknowledged is {balances:?}; the difference {paid:#x} in base 4 is \
         no sum of the unknown transfers {possible:#x}"
    );
    Ok(paid as u64)
}

/// None: there is no such account.
fn balance(connection: &mut Connection, account: i64) -> Result<Option<i64>> {
    let body = json!({"account": account}).to_string();
    let answer = post(connection, "/v1/call/bank/balance", &body)?;
    match answer.status {
        200 => Ok(number(&answer.json()["result"]["balance"])),
        422 if answer.json()["code"] == "unknown_account" => Ok(None),
        _ => bail!("balance of {account}: {} {}", answer.status, answer.text()),
    }
}

fn post(connection: &mut Connection, path: &str, body: &str) -> Result<Answer> {
    let answer = connection.request("POST", path, &[], body.as_bytes());
    answer
        .map_err(|cut| cut.error)
        .with_context(|| format!("POST {path} after a restart"))
}

/// A vote has a number of its own: its row tells.
fn vote_was_there(connection: &mut Connection, phone: i64) -> Result<bool> {
    let path = "/v1/call/voter/phone_votes";
    let votes = post(connection, path, &format!("{{\"phone_number\":{phone}}}"))?;
    let count = votes.json()["result"].as_array().map(Vec::len);
    match count.with_context(|| format!("{path}: {}", votes.text()))? {
        0 => Ok(false),
        1 => Ok(true),
        more => bail!("twice: {more} votes of {phone}"),
    }
}

/// Sends it again while standbys are missing. True: it was left open meanwhile, and so it took place by then.
fn ask_until_known(model: &Model, connection: &mut Connection, call: &Call) -> Result<(Answer, bool)> {
    let (until, mut was_open) = (Instant::now() + KNOWN_WAIT_MAX, false);
    loop {
        let answer = ask(model, connection, call)
            .map_err(|cut| cut.error)
            .context("ask again")?;
        if !misses_standbys(&answer) || Instant::now() >= until {
            return Ok((answer, was_open));
        }
        was_open |= is_open(&answer.json());
        thread::sleep(KNOWN_REST);
    }
}

/// Sends an unknown call with its key again: it must be answered as a repeat exactly when it had taken place.
fn ask_again(
    model: &mut Model,
    connection: &mut Connection,
    call: &Call,
    was_there: bool,
    floor: (u64, u64),
) -> Result<()> {
    model.counts.repeated += 1;
    let (answer, was_open) = ask_until_known(model, connection, call)?;
    ensure!(
        answer.status == 200,
        "{call:?} again: {} {}",
        answer.status,
        answer.text()
    );
    let is_replayed = answer.header("idempotent-replayed") == Some("true");
    ensure!(
        is_replayed == (was_there || was_open),
        "{call:?} {}, but its repeat was {}: {}",
        if was_there {
            "had taken place"
        } else {
            "had not taken place"
        },
        if is_replayed { "answered as one" } else { "run" },
        answer.text()
    );
    let answer = answer.json();
    if was_there {
        return model.check_result(call, &answer["result"]);
    }
    check_above(&answer, floor)?;
    model.acknowledge(call, &answer)
}

/// A new transaction after a restart lies behind all before it.
pub fn check_above(answer: &Value, (txn_id_floor, lsn_floor): (u64, u64)) -> Result<()> {
    let (txn_id, lsn) = ids(answer)?;
    ensure!(
        txn_id > txn_id_floor,
        "transaction id {txn_id} after a restart, {txn_id_floor} before it"
    );
    ensure!(lsn > lsn_floor, "LSN {lsn} after a restart, {lsn_floor} before it");
    Ok(())
}

/// Acknowledged calls with keys, sent again: the same answer, and no second effect.
fn repeat_acknowledged(model: &mut Model, connection: &mut Connection, rng: &mut Rng) -> Result<()> {
    for _ in 0..REPEATS.min(model.remembered.len() as u64) {
        let at = rng.below(model.remembered.len() as u64) as usize;
        let known = model.remembered[at].clone();
        model.counts.repeated += 1;
        let answer = ask(model, connection, &known.call)
            .map_err(|cut| cut.error)
            .context("repeat")?;
        let is_replayed = answer.header("idempotent-replayed") == Some("true");
        let json = answer.json();
        ensure!(
            answer.status == 200 && is_replayed && json["result"] == known.result && ids(&json)?.0 == known.txn_id,
            "the key of {known:?} is forgotten: {} {}",
            answer.status,
            answer.text()
        );
    }
    Ok(())
}

fn check_balances(model: &Model, connection: &mut Connection) -> Result<()> {
    for Pair { accounts, balances } in &model.pairs {
        for (account, expected) in accounts.iter().zip(balances) {
            let found = balance(connection, *account)?;
            ensure!(
                found == Some(*expected),
                "account {account} has {found:?}, not {expected}"
            );
        }
    }
    Ok(())
}

/// Checks the sums that all clients together must have left.
pub fn check_sums(models: &[Model], server: &Server) -> Result<()> {
    let answer = server.call("bank/total", "{}")?;
    let total = &answer.json()["result"];
    let opened: usize = models.iter().map(|model| model.opened.len() + 2 * PAIRS_COUNT).sum();
    let sum = models.len() as i64 * 2 * PAIRS_COUNT as i64 * FIRST_BALANCE;
    let found = (number(&total["accounts"]), number(&total["sum"]));
    ensure!(
        found == (Some(opened as i64), Some(sum)),
        "total answered {}, but there must be {opened} accounts with {sum}",
        answer.text()
    );
    let answer = server.call("voter/results", "{}")?;
    let json = answer.json();
    let results = json["result"].as_array().context("results answered no list")?;
    for model in models {
        let own = results
            .iter()
            .find(|row| number(&row["contestant_number"]) == Some(model.contestant()));
        let votes = own.and_then(|row| number(&row["votes"])).unwrap_or(0);
        ensure!(
            votes == model.votes,
            "contestant {} has {votes} votes, must have {}",
            model.contestant(),
            model.votes
        );
    }
    Ok(())
}

/// Every account that was opened, by the table's rows: none missing, none too many.
pub fn check_rows(models: &[Model], server: &Server) -> Result<()> {
    let mut expected: HashSet<i64> = HashSet::new();
    for model in models {
        expected.extend(&model.opened);
        expected.extend(model.pairs.iter().flat_map(|pair| pair.accounts));
    }
    let connection = &mut server.connect()?;
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/tables/accounts/rows?limit=1000{cursor}");
        let answer = connection
            .get(&path)
            .map_err(|cut| cut.error)
            .context("read accounts")?;
        let page = answer.json();
        let rows = page["rows"]
            .as_array()
            .with_context(|| format!("{path}: {}", answer.text()))?;
        for row in rows {
            let account = number(&row["account"]).or_else(|| number(&row[0]));
            let account = account.with_context(|| format!("a row without its account: {row}"))?;
            ensure!(
                expected.remove(&account),
                "account {account} is there, and nobody opened it"
            );
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ensure!(
        expected.is_empty(),
        "lost: {} accounts, {:?} among them",
        expected.len(),
        expected.iter().next()
    );
    Ok(())
}
