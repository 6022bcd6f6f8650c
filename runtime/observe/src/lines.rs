//! The newest lines that procedures logged. Each procedure has a list of its own: who writes much drives out its own lines alone.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard},
};

use reprise_base::TxnId;

/// Bytes of lines kept at most: of all procedures, and of one.
const LINES_BYTES_MAX: usize = 4 << 20;
const PROCEDURE_BYTES_MAX: usize = 512 << 10;
/// Bytes of one call's lines; lines beyond it are counted only.
const CALL_BYTES_MAX: usize = 16 << 10;

/// Levels by their numbers in the guest interface.
const LEVEL_WARN: u8 = 2;

/// A line that a procedure logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentLine {
    /// Counts all lines since the start, from 0.
    pub number: u64,
    /// Transaction of the call, committed or not.
    pub txn_id: TxnId,
    /// Its name.
    pub module: String,
    /// Its name.
    pub procedure: String,
    /// 0 debug, 1 info, 2 warn, 3 error.
    pub level: u8,
    /// The text as the procedure logged it.
    pub text: String,
}

/// Which lines.
#[derive(Clone, Debug, Default)]
pub struct LineFilter {
    /// Lines of this module only.
    pub module: Option<String>,
    /// Lines of procedures with this name only.
    pub procedure: Option<String>,
    /// This level and above.
    pub level_min: u8,
    /// Lines of this transaction only.
    pub txn_id: Option<TxnId>,
    /// Lines with this number or a later one.
    pub since: Option<u64>,
}

#[derive(Clone, Copy)]
struct ProcedureName<'a> {
    module: &'a str,
    name: &'a str,
}

struct KeptLine {
    number: u64,
    txn_id: TxnId,
    level: u8,
    text: String,
}

impl KeptLine {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }
}

/// Lines of one procedure.
#[derive(Default)]
struct ProcedureLines {
    lines: VecDeque<KeptLine>,
    bytes: usize,
}

impl ProcedureLines {
    /// Drops the oldest line and returns its bytes.
    fn forget_one(&mut self) -> usize {
        let bytes = self.lines.pop_front().map_or(0, |line| line.bytes());
        self.bytes -= bytes;
        bytes
    }
}

#[derive(Default)]
struct LinesByProcedure {
    /// The lines by module and procedure.
    lists: BTreeMap<(String, String), ProcedureLines>,
    bytes: usize,
    next_number: u64,
}

/// Recent lines, bounded in bytes. To make room, the procedure with the most lines loses its oldest.
#[derive(Default)]
pub struct RecentLines(Mutex<LinesByProcedure>);

impl RecentLines {
    /// Makes a list without a line.
    pub fn new() -> Self {
        Self::default()
    }

    fn lists(&self) -> MutexGuard<'_, LinesByProcedure> {
        self.0.lock().expect("nothing panics in here")
    }

    /// The lines of one call, each with its level.
    pub fn push(&self, txn_id: TxnId, module: &str, procedure: &str, lines: impl Iterator<Item = (u8, String)>) {
        let procedure = ProcedureName {
            module,
            name: procedure,
        };
        let mut lists = self.lists();
        let (mut taken, mut left_out) = (0, 0);
        for (level, text) in lines {
            taken += size_of::<KeptLine>() + text.len();
            match taken <= CALL_BYTES_MAX {
                true => lists.push(procedure, txn_id, level, text),
                false => left_out += 1,
            }
        }
        if left_out > 0 {
            let text =
                format!("{left_out} more lines of this call are not kept: {CALL_BYTES_MAX} bytes of one call are");
            lists.push(procedure, txn_id, LEVEL_WARN, text);
        }
    }

    /// Returns at most `limit` lines, the newest first.
    pub fn newest(&self, filter: &LineFilter, limit: usize) -> Vec<RecentLine> {
        let lists = self.lists();
        let mut found = Vec::new();
        for ((module, procedure), list) in &lists.lists {
            let is_asked = |asked: &Option<String>, name: &String| asked.as_ref().is_none_or(|asked| asked == name);
            if !is_asked(&filter.module, module) || !is_asked(&filter.procedure, procedure) {
                continue;
            }
            let wanted = list.lines.iter().rev().filter(|line| filter.passes(line));
            found.extend(wanted.take(limit).map(|line| (module, procedure, line)));
        }
        found.sort_unstable_by_key(|(.., line)| std::cmp::Reverse(line.number));
        let shown = found.into_iter().take(limit);
        shown
            .map(|(module, procedure, line)| RecentLine {
                number: line.number,
                txn_id: line.txn_id,
                module: module.clone(),
                procedure: procedure.clone(),
                level: line.level,
                text: line.text.clone(),
            })
            .collect()
    }
}

impl LineFilter {
    fn passes(&self, line: &KeptLine) -> bool {
        line.level >= self.level_min
            && self.txn_id.is_none_or(|txn_id| txn_id == line.txn_id)
            && self.since.is_none_or(|since| line.number >= since)
    }
}

impl LinesByProcedure {
    fn push(&mut self, procedure: ProcedureName<'_>, txn_id: TxnId, level: u8, text: String) {
        let line = KeptLine {
            number: self.next_number,
            txn_id,
            level,
            text,
        };
        self.next_number += 1;
        let list = self
            .lists
            .entry((procedure.module.to_owned(), procedure.name.to_owned()))
            .or_default();
        list.bytes += line.bytes();
        self.bytes += line.bytes();
        list.lines.push_back(line);
        while list.bytes > PROCEDURE_BYTES_MAX {
            self.bytes -= list.forget_one();
        }
        while self.bytes > LINES_BYTES_MAX {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        let largest = self.lists.iter_mut().max_by_key(|(_, list)| list.bytes);
        let Some((name, list)) = largest else {
            return;
        };
        self.bytes -= list.forget_one();
        if list.lines.is_empty() {
            let name = name.clone();
            self.lists.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(lines: &RecentLines, id: u64, procedure: &str, texts: &[&str]) {
        lines.push(
            TxnId(id),
            "m",
            procedure,
            texts.iter().map(|text| (1, (*text).to_owned())),
        );
    }

    fn numbers(lines: &RecentLines, filter: &LineFilter, limit: usize) -> Vec<u64> {
        lines.newest(filter, limit).iter().map(|line| line.number).collect()
    }

    #[test]
    fn a_noisy_procedure_drives_out_its_own_lines_alone() {
        let lines = RecentLines::new();
        push(&lines, 1, "quiet", &["kept"]);
        for id in 0..100_000 {
            push(&lines, id, "noisy", &["x"; 3]);
        }
        let quiet = LineFilter {
            procedure: Some("quiet".into()),
            ..LineFilter::default()
        };
        assert_eq!(numbers(&lines, &quiet, 10), [0]);
        assert_eq!(numbers(&lines, &LineFilter::default(), 2), [300_000, 299_999]);
        for procedure in 0..100 {
            for id in 0..200 {
                push(&lines, id, &format!("p{procedure}"), &[&"y".repeat(1000)]);
            }
        }
        assert!(lines.lists().bytes <= LINES_BYTES_MAX);
        assert_eq!(numbers(&lines, &quiet, 10), [0]);
        push(&lines, 1, "huge", &[&"z".repeat(2 * LINES_BYTES_MAX)]);
        assert!(lines.lists().bytes <= LINES_BYTES_MAX);
    }

    #[test]
    fn a_noisy_call_is_cut_and_its_left_out_lines_are_counted() {
        let lines = RecentLines::new();
        push(&lines, 1, "p", &["first"]);
        push(&lines, 2, "p", &["x"; 10_000]);
        let kept = lines.newest(&LineFilter::default(), usize::MAX);
        assert!(
            kept[0].text.contains("more lines of this call are not kept"),
            "{:?}",
            kept[0]
        );
        assert!(kept.len() < 1_000);
        assert_eq!(kept.last().map(|line| line.text.as_str()), Some("first"));
    }

    #[test]
    fn lines_are_found_by_procedure_level_transaction_and_number() {
        let lines = RecentLines::new();
        for id in 0..4u64 {
            let both = [(0, "debug".to_owned()), (3, "error".to_owned())];
            lines.push(
                TxnId(id),
                "m",
                if id % 2 == 0 { "even" } else { "odd" },
                both.into_iter(),
            );
        }
        let filter = |change: fn(&mut LineFilter)| {
            let mut filter = LineFilter::default();
            change(&mut filter);
            numbers(&lines, &filter, 100)
        };
        assert_eq!(filter(|f| f.procedure = Some("odd".into())), [7, 6, 3, 2]);
        assert_eq!(filter(|f| f.level_min = 2), [7, 5, 3, 1]);
        assert_eq!(filter(|f| f.txn_id = Some(TxnId(2))), [5, 4]);
        assert_eq!(filter(|f| f.since = Some(6)), [7, 6]);
        assert!(filter(|f| f.module = Some("n".into())).is_empty());
    }
}
