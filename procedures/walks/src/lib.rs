//! The sample module `walks`: walks over a table that is written meanwhile, by a script.
//! Owns: the table `steps`, the sequence `numbers` and the procedures `walk`, `walk_all`, `look`, `look_all`.
//! Does not: choose; each two bytes of a script are one thing to do, and what is seen of it is answered as numbers.
//! Invariants: a scan shows what there was when it began; what is answered depends on the script and the rows alone.
//! Called by: its tests, natively and in the database.
#![deny(unsafe_code)]

use std::ops::Range;

use reprise_procedure::{prelude::*, scan::Rows, txn::Savepoint};

/// A row in two orders: by its number and by its rank.
#[table(name = "steps", primary_key(place, id), index(rank_order, rank), partition_by = place)]
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub place: i64,
    pub id: i32,
    pub rank: i32,
    pub sum: i64,
}

sequence!(
    /// Numbers that scripts take.
    pub Numbers = "numbers"
);

/// Numbers of ids, ranks and places that scripts name.
const IDS: u8 = 24;
const RANKS: u8 = 6;
const PLACES: u8 = 4;

/// Follows a script on the partition of a place.
#[procedure(partition_by(place))]
pub fn walk(tx: &Txn, place: i64, script: &[u8]) -> Vec<i64> {
    Walk::new(tx, Some(place)).follow(script)
}

/// Follows a script over all partitions.
#[procedure(all_partitions)]
pub fn walk_all(tx: &Txn, script: &[u8]) -> Vec<i64> {
    Walk::new(tx, None).follow(script)
}

/// Follows a script that looks and writes nothing, on the partition of a place.
#[procedure(partition_by(place), read_only)]
pub fn look(tx: &Txn, place: i64, script: &[u8]) -> Vec<i64> {
    Walk::new(tx, Some(place)).look(script)
}

/// Follows a script like `look`, over all partitions.
#[procedure(all_partitions, read_only)]
pub fn look_all(tx: &Txn, script: &[u8]) -> Vec<i64> {
    Walk::new(tx, None).look(script)
}

struct Walk<'t, 'h> {
    tx: &'t Txn<'h>,
    /// The only place, or all of them.
    place: Option<i64>,
    rows: Vec<Row<Step>>,
    scans: Vec<Rows<'t, 'h, Step>>,
    savepoints: Vec<Savepoint>,
    seen: Vec<i64>,
}

impl<'t, 'h> Walk<'t, 'h> {
    fn new(tx: &'t Txn<'h>, place: Option<i64>) -> Self {
        Self {
            tx,
            place,
            rows: Vec::new(),
            scans: Vec::new(),
            savepoints: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn follow(mut self, script: &[u8]) -> Vec<i64> {
        for step in script.as_chunks::<2>().0 {
            let [what, which] = *step;
            match what % 15 {
                0 => self.insert(which),
                1 => self.scan(which),
                2 => self.go_on(which),
                3 => self.update(which),
                4 => self.delete(which),
                5 => self.add(which),
                6 => self.add_by_key(which),
                7 => self.savepoint(),
                8 => self.roll_back(which),
                9 => self.get(which),
                10 => self.refresh(which),
                11 => self.close(which),
                12 => self.number(),
                13 => self.delete_range(which),
                _ => self.update_range(which),
            }
        }
        while !self.scans.is_empty() {
            self.go_on(0);
        }
        self.seen
    }

    fn look(mut self, script: &[u8]) -> Vec<i64> {
        for step in script.as_chunks::<2>().0 {
            let [what, which] = *step;
            match what % 8 {
                0 => self.scan(which),
                1 | 2 => self.go_on(which),
                3 => self.refresh(which),
                4 => self.close(which),
                5 => self.count(which),
                6 if which.is_multiple_of(4) => self.savepoint(),
                6 if which.is_multiple_of(5) => self.roll_back(which),
                _ => self.get(which),
            }
        }
        while !self.scans.is_empty() {
            self.go_on(0);
        }
        self.seen
    }

    fn count(&mut self, which: u8) {
        let (ids, ranks) = (ids_of(which), ranks_of(which));
        let count = match (which % 2, self.place) {
            (0, _) => Step::scan(self.tx).prefix((self.place_of(which),)).range(ids).count(),
            (_, Some(_)) => Step::scan_local_by_rank_order(self.tx).range(ranks).count(),
            (_, None) => Step::scan_by_rank_order(self.tx).range(ranks).count(),
        };
        self.seen.push(count as i64);
    }

    fn place_of(&self, which: u8) -> i64 {
        self.place.unwrap_or(i64::from(which / IDS % PLACES))
    }

    fn insert(&mut self, which: u8) {
        let step = Step {
            place: self.place_of(which),
            id: i32::from(which % IDS),
            rank: i32::from(which % RANKS),
            sum: 0,
        };
        self.seen.push(Step::insert(self.tx, &step).is_ok() as i64);
    }

    fn scan(&mut self, which: u8) {
        let all = |bytes| match self.place {
            Some(_) => Step::scan_local(self.tx).batch_bytes(bytes),
            None => Step::scan(self.tx).batch_bytes(bytes),
        };
        let of_one = |bytes| Step::scan(self.tx).prefix((self.place_of(which),)).batch_bytes(bytes);
        let by_rank = |bytes| match self.place {
            Some(_) => Step::scan_local_by_rank_order(self.tx).batch_bytes(bytes),
            None => Step::scan_by_rank_order(self.tx).batch_bytes(bytes),
        };
        let bytes = 64 << (which % 3);
        let rows = match (which / 2 % 2, which / 4 % 2) {
            (0, 0) if which.is_multiple_of(2) => all(bytes).iter(),
            (0, _) if which.is_multiple_of(2) => all(bytes).reverse().iter(),
            (0, 0) => of_one(bytes).iter(),
            (0, _) => of_one(bytes).reverse().iter(),
            (_, 0) => by_rank(bytes).iter(),
            (_, _) => by_rank(bytes).reverse().limit(5).iter(),
        };
        self.scans.push(rows);
    }

    /// The next row of an open scan.
    fn go_on(&mut self, which: u8) {
        let Some(at) = place_in(self.scans.len(), which) else {
            return;
        };
        match self.scans.get_mut(at).and_then(Iterator::next) {
            Some(row) => self.show(row),
            None => {
                self.seen.push(-1);
                self.scans.swap_remove(at);
            }
        }
    }

    fn show(&mut self, row: Row<Step>) {
        self.seen
            .extend([row.place, i64::from(row.id), i64::from(row.rank), row.sum]);
        self.rows.push(row);
    }

    fn update(&mut self, which: u8) {
        if let Some(at) = place_in(self.rows.len(), which)
            && let Some(row) = self.rows.get_mut(at)
        {
            row.rank = i32::from(which % RANKS);
            self.seen.push(row.update(self.tx).is_ok() as i64);
        }
    }

    fn delete(&mut self, which: u8) {
        if let Some(at) = place_in(self.rows.len(), which) {
            self.rows.swap_remove(at).delete(self.tx);
        }
    }

    fn add(&mut self, which: u8) {
        if let Some(at) = place_in(self.rows.len(), which)
            && let Some(row) = self.rows.get_mut(at)
        {
            self.seen.push(row.add(self.tx, Step::SUM, 1));
        }
    }

    fn add_by_key(&mut self, which: u8) {
        let key = (self.place_of(which), i32::from(which % IDS));
        self.seen.push(Step::add_sum(self.tx, key, 1).unwrap_or(-1));
    }

    fn savepoint(&mut self) {
        self.savepoints.push(self.tx.savepoint());
    }

    fn roll_back(&mut self, which: u8) {
        if let Some(at) = place_in(self.savepoints.len(), which) {
            self.savepoints.truncate(at + 1);
            if let Some(savepoint) = self.savepoints.get(at) {
                self.tx.rollback_to(*savepoint);
            }
        }
    }

    fn get(&mut self, which: u8) {
        match Step::get(self.tx, (self.place_of(which), i32::from(which % IDS))) {
            Some(row) => self.show(row),
            None => self.seen.push(-1),
        }
    }

    fn refresh(&mut self, which: u8) {
        if let Some(at) = place_in(self.rows.len(), which)
            && let Some(row) = self.rows.get_mut(at)
        {
            row.refresh(self.tx);
            self.seen.push(i64::from(row.rank));
        }
    }

    fn close(&mut self, which: u8) {
        if let Some(at) = place_in(self.scans.len(), which) {
            self.scans.swap_remove(at);
        }
    }

    /// The rows of some ids of a place, or of some ranks.
    fn delete_range(&mut self, which: u8) {
        let (ids, ranks) = (ids_of(which), ranks_of(which));
        let deleted = match (which % 2, self.place) {
            (0, _) => Step::scan(self.tx).prefix((self.place_of(which),)).range(ids).delete(),
            (_, Some(_)) => Step::scan_local_by_rank_order(self.tx).range(ranks).delete(),
            (_, None) => Step::scan_by_rank_order(self.tx).range(ranks).delete(),
        };
        self.seen.push(deleted as i64);
    }

    /// Moves the same on in the order of ranks.
    fn update_range(&mut self, which: u8) {
        let (ids, ranks) = (ids_of(which), ranks_of(which));
        let next = |step: &mut Step| step.rank = (step.rank + 1) % i32::from(RANKS);
        let updated = match (which % 2, self.place) {
            (0, _) => Step::scan(self.tx)
                .prefix((self.place_of(which),))
                .range(ids)
                .update(next),
            (_, Some(_)) => Step::scan_local_by_rank_order(self.tx).range(ranks).update(next),
            (_, None) => Step::scan_by_rank_order(self.tx).range(ranks).update(next),
        };
        self.seen.push(updated.map_or(-1, |count| count as i64));
    }

    /// Takes the next number of the sequence, if the call has one partition.
    fn number(&mut self) {
        if self.place.is_some() {
            self.seen.push(self.tx.next::<Numbers>());
        }
    }
}

fn ids_of(which: u8) -> Range<i32> {
    let first = i32::from(which % IDS);
    first..first + 1 + i32::from(which / 32)
}

fn ranks_of(which: u8) -> Range<i32> {
    let first = i32::from(which % RANKS);
    first..first + 1 + i32::from(which / 128)
}

fn place_in(length: usize, which: u8) -> Option<usize> {
    usize::from(which).checked_rem(length)
}

reprise_procedure::module! {
    tables: [Step, Numbers],
    procedures: [walk, walk_all, look, look_all],
}
