//! Random transactions against the model; after each one everything observable is compared, also with a store that only
//! ever saw what survived.

use crate::common::{PLAIN, hashed, keyless, model::ModelTable, table};
use proptest::prelude::*;
use reprise_abi::{ColumnSet, Field, IndexKind, RowLayout, ScalarType, ScanFlags, TableSchema};
use reprise_storage::{Range, Rid, ScanPosition, Store, StoreSavepoint, TableId, Visit, WriteError};

use ScalarType::*;

fn schemas() -> Vec<TableSchema> {
    let mut schemas = ordered_schemas();
    schemas.extend(hashed_schemas());
    schemas
}

fn hashed_schemas() -> [TableSchema; 4] {
    let hashed = hashed(&[("by_rank", &[1], false), ("by_total_rank", &[2, 1], true)]);
    let mut hashed_ints = table(
        "hashed_ints",
        &[("a", I32, false), ("b", U8, false), ("sum", U16, true)],
        &[0, 1],
        &[],
    );
    hashed_ints.primary_kind = IndexKind::Hash;
    let mut dense = table(
        "dense",
        &[("a", I8, false), ("b", I64, false), ("text", Text, true)],
        &[0, 1],
        &[("by_text", &[2], false)],
    );
    dense.primary_kind = IndexKind::Dense;
    let mut dense_text = table("dense_text", &[("key", Text, false)], &[0], &[]);
    dense_text.primary_kind = IndexKind::Dense;
    [hashed, hashed_ints, dense, dense_text]
}

fn ordered_schemas() -> Vec<TableSchema> {
    vec![
        table(
            "plain",
            &PLAIN,
            &[0],
            &[
                ("by_name", &[2], false),
                ("by_tag_id", &[3, 0], true),
                ("by_tag", &[3], false),
            ],
        ),
        keyless(),
        table(
            "wide",
            &[
                ("a", I64, false),
                ("b", F64, false),
                ("c", Timestamp, false),
                ("d", I32, true),
                ("e", Uuid, false),
            ],
            &[0, 1, 2],
            &[("by_d", &[3], false), ("by_c", &[2], false), ("by_e", &[4, 3], true)],
        ),
        table(
            "decimals",
            &[("d", Decimal { scale: 2 }, true), ("u", U32, false)],
            &[0],
            &[],
        ),
    ]
}

/// A choice that picks columns' values, rows and bounds; small, so that keys meet.
type Seed = Vec<u8>;

const TEXTS: [&str; 8] = [
    "",
    "a",
    "a\0",
    "\0",
    "ab",
    "b",
    "\u{e4}",
    "a text of more than forty bytes, so that rows move",
];

fn field(ty: ScalarType, nullable: bool, pick: u8) -> Field<'static> {
    let signed = [0, 1, -1, 2, 3, 120, -128, 7][pick as usize % 8];
    match ty {
        _ if nullable && pick % 4 == 3 => Field::Null,
        I8 | I16 | I32 | I64 | Timestamp => Field::Int(signed),
        U8 | U16 | U32 | U64 => Field::Uint(pick as u64 % 8 * 30),
        Bool => Field::Bool(pick % 2 == 1),
        F64 => Field::F64(signed as f64 / 2.0),
        Decimal { .. } => Field::Decimal(signed as i128),
        Text => Field::Text(TEXTS[pick as usize % 8]),
        Bytes => Field::Bytes(TEXTS[pick as usize % 8].as_bytes()),
        Uuid => Field::Uuid([pick % 8; 16]),
    }
}

fn make_row(schema: &TableSchema, layout: &RowLayout, seed: &[u8]) -> Vec<u8> {
    let pick = |at: usize| seed[at % seed.len()];
    let columns = schema.columns.iter().enumerate();
    let fields: Vec<_> = columns.map(|(at, c)| field(c.ty, c.nullable, pick(at))).collect();
    layout.build(&fields)
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, Seed),
    Update(u8, u16, Seed),
    Patch(u8, u16, u8, Seed),
    Delete(u8, u16),
    Add(u8, u16, u8, i64),
    Savepoint,
    RollbackTo(u8),
    Scan(u8, u8, u16, u16, u8, u32),
    ScanWhileChanging(u8, u8, u32, Seed),
}

fn op() -> impl Strategy<Value = Op> {
    let t = 0..8u8;
    let seed = prop::collection::vec(any::<u8>(), 5);
    prop_oneof![
        8 => (t.clone(), seed.clone()).prop_map(|(t, s)| Op::Insert(t, s)),
        5 => (t.clone(), any::<u16>(), seed.clone()).prop_map(|(t, n, s)| Op::Update(t, n, s)),
        5 => (t.clone(), any::<u16>(), any::<u8>(), seed.clone())
            .prop_map(|(t, n, c, s)| Op::Patch(t, n, c, s)),
        4 => (t.clone(), any::<u16>()).prop_map(|(t, n)| Op::Delete(t, n)),
        3 => (t.clone(), any::<u16>(), 0..5u8, prop_oneof![-3..4i64, any::<i64>()])
            .prop_map(|(t, n, c, d)| Op::Add(t, n, c, d)),
        1 => Just(Op::Savepoint),
        1 => any::<u8>().prop_map(Op::RollbackTo),
        2 => (t.clone(), any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>(), 0..8u32)
            .prop_map(|(t, i, a, b, l, f)| Op::Scan(t, i, a, b, l, f)),
        1 => (t, any::<u8>(), 0..8u32, seed).prop_map(|(t, i, f, s)| Op::ScanWhileChanging(t, i, f, s)),
    ]
}

/// A change that was not refused, by keys, as a replay would do it.
#[derive(Clone, Debug)]
enum Done {
    Insert(usize, Vec<u8>),
    Update(usize, Vec<u8>, Vec<u8>),
    Patch(usize, Vec<u8>, ColumnSet, Vec<u8>),
    Delete(usize, Vec<u8>),
    Add(usize, Vec<u8>, u16, i64),
}

struct World {
    store: Store,
    /// Saw only committed changes, never a rollback.
    survivor: Store,
    model: Vec<ModelTable>,
    done: Vec<Done>,
    savepoints: Vec<(StoreSavepoint, Vec<ModelTable>, usize)>,
}

fn id(table: usize) -> TableId {
    TableId(table as u16)
}

fn is_ordered(model: &ModelTable, index: usize) -> bool {
    index > 0 || model.schema.primary_key.is_empty() || model.schema.primary_kind == IndexKind::Ordered
}

impl World {
    fn new() -> Self {
        let (mut store, mut survivor) = (Store::new(), Store::new());
        for schema in schemas() {
            store.create_table(schema.clone()).expect("schema is valid");
            survivor.create_table(schema).expect("schema is valid");
        }
        Self {
            store,
            survivor,
            model: schemas().into_iter().map(ModelTable::new).collect(),
            done: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    fn pick(&self, table: usize, number: u16) -> Option<Vec<u8>> {
        let rows = &self.model[table].rows;
        rows.keys().nth(number as usize % rows.len().max(1)).cloned()
    }

    fn rid(&self, table: usize, pk: &[u8]) -> Rid {
        self.store.get(id(table), 0, pk).expect("the model has the row")
    }

    fn insert(&mut self, table: usize, seed: &[u8]) {
        let row = make_row(&self.model[table].schema, &self.model[table].layout, seed);
        let expected = self.model[table].insert(&row);
        match (self.store.insert(id(table), &row), expected) {
            (Ok(rid), Ok(pk)) => {
                assert_eq!(rid, self.rid(table, &pk));
                self.done.push(Done::Insert(table, row));
            }
            (Err(WriteError::Duplicate { index }), Err(expected)) => assert_eq!(index, expected),
            (found, expected) => panic!("insert: {found:?}, expected {expected:?}"),
        }
    }

    fn update(&mut self, table: usize, pk: Vec<u8>, seed: &[u8]) {
        let row = make_row(&self.model[table].schema, &self.model[table].layout, seed);
        let rid = self.rid(table, &pk);
        let expected = self.model[table].update(&pk, &row);
        match (self.store.update(id(table), rid, &row), expected) {
            (Ok(()), Ok(new)) => {
                assert_eq!(rid, self.rid(table, &new));
                self.done.push(Done::Update(table, pk, row));
            }
            (Err(WriteError::Duplicate { index }), Err(expected)) => assert_eq!(index, expected),
            (found, expected) => panic!("update: {found:?}, expected {expected:?}"),
        }
    }

    /// Some columns of the row that the seed makes, over the row that there is.
    fn patch(&mut self, table: usize, pk: Vec<u8>, columns: u8, seed: &[u8]) {
        let rid = self.rid(table, &pk);
        let model = &mut self.model[table];
        let count = model.schema.columns.len() as u32;
        let set = ColumnSet((columns as u64 % (1 << count)).max(1));
        let other = make_row(&model.schema, &model.layout, seed);
        let mut values = vec![0; model.layout.columns_bytes(set, &other)];
        model.layout.read_columns(set, &other, &mut values);
        let source = |at: u16| if set.0 >> at & 1 == 1 { &other } else { &model.rows[&pk] };
        let fields = (0..count as u16).map(|at| model.layout.field(source(at), at));
        let row = model.layout.build(&fields.collect::<Vec<_>>());
        let expected = model.update(&pk, &row);
        match (self.store.patch(id(table), rid, set, &values), expected) {
            (Ok(()), Ok(new)) => {
                assert_eq!(rid, self.rid(table, &new));
                assert_eq!(self.store.row(id(table), rid), Some(&row[..]));
                self.done.push(Done::Patch(table, pk, set, values));
            }
            (Err(WriteError::Duplicate { index }), Err(expected)) => assert_eq!(index, expected),
            (found, expected) => panic!("patch: {found:?}, expected {expected:?}"),
        }
    }

    fn delete(&mut self, table: usize, pk: Vec<u8>) {
        let rid = self.rid(table, &pk);
        self.model[table].rows.remove(&pk);
        self.store.delete(id(table), rid).expect("row is live");
        assert_eq!(self.store.row(id(table), rid), None);
        assert_eq!(self.store.delete(id(table), rid), Err(WriteError::NotLive));
        self.done.push(Done::Delete(table, pk));
    }

    fn add(&mut self, table: usize, pk: Vec<u8>, column: u16, delta: i64) {
        let rid = self.rid(table, &pk);
        let found = self.store.add(id(table), rid, column, delta);
        match self.model[table].added(&pk, column, delta) {
            Some((row, sum)) => {
                assert_eq!(found, Ok(sum));
                self.model[table].rows.insert(pk.clone(), row);
                self.done.push(Done::Add(table, pk, column, delta));
            }
            None => {
                assert!(matches!(
                    found,
                    Err(WriteError::BadColumn { .. } | WriteError::Overflow)
                ));
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Insert(table, seed) => self.insert(*table as usize, seed),
            Op::Update(table, number, seed) => {
                if let Some(pk) = self.pick(*table as usize, *number) {
                    self.update(*table as usize, pk, seed);
                }
            }
            Op::Patch(table, number, columns, seed) => {
                if let Some(pk) = self.pick(*table as usize, *number) {
                    self.patch(*table as usize, pk, *columns, seed);
                }
            }
            Op::Delete(table, number) => {
                if let Some(pk) = self.pick(*table as usize, *number) {
                    self.delete(*table as usize, pk);
                }
            }
            Op::Add(table, number, column, delta) => {
                if let Some(pk) = self.pick(*table as usize, *number) {
                    self.add(*table as usize, pk, *column as u16, *delta);
                }
            }
            Op::Savepoint => {
                let point = self.store.savepoint();
                self.savepoints.push((point, self.model.clone(), self.done.len()));
            }
            Op::RollbackTo(number) => {
                if !self.savepoints.is_empty() {
                    self.savepoints.truncate(*number as usize % self.savepoints.len() + 1);
                    let (point, model, done) = self.savepoints.last().cloned().expect("not empty");
                    self.store.rollback_to(point);
                    self.model = model;
                    self.done.truncate(done);
                }
            }
            Op::Scan(table, index, low, high, len, flags) => {
                self.scan(*table as usize, *index, (*low, *high), *len, *flags);
            }
            Op::ScanWhileChanging(table, index, flags, seed) => {
                self.scan_while_changing(*table as usize, *index, *flags, seed);
            }
        }
    }

    fn scan(&self, table: usize, index: u8, picks: (u16, u16), len: u8, flags: u32) {
        let model = &self.model[table];
        let index = index as usize % model.index_count();
        let bound = |pick: u16, len: u8| {
            let entries = model.entries(index);
            let Some((key, _)) = entries.get(pick as usize % entries.len().max(1)) else {
                return Vec::new();
            };
            let mut key = key[..len as usize % (key.len() + 1)].to_vec();
            if pick.is_multiple_of(7) && !key.is_empty() {
                *key.last_mut().expect("not empty") = 0xff;
            }
            key
        };
        let (lower, upper) = (bound(picks.0, len % 16), bound(picks.1, len / 16));
        let range = Range::new(&lower, &upper, ScanFlags(flags));
        let expected = model.range(index, &range);
        let (store, index, table) = (&self.store, index as u16, id(table));
        if !is_ordered(model, index as usize) {
            return assert!(store.count(table, index, &range).is_err() && store.first(table, index, &range).is_err());
        }
        assert_eq!(store.count(table, index, &range), Ok(expected.len() as u64));
        let key_of = |rid| self.pk_of(table, rid);
        let first = store.first(table, index, &range).expect("ordered").map(key_of);
        assert_eq!(first.as_ref(), expected.first());
        // The scan takes bites of three rows, and shows one row twice at each end.
        let (mut position, mut found) = (ScanPosition::default(), Vec::new());
        while !position.is_end() {
            let mut bite = Vec::new();
            let visit = |rid, _: &[u8]| match bite.len() {
                3 => Visit::Again,
                2 if picks.0.is_multiple_of(2) => {
                    bite.push(rid);
                    Visit::Stop
                }
                _ => {
                    bite.push(rid);
                    Visit::Next
                }
            };
            store.scan(table, index, &range, &mut position, visit).expect("ordered");
            found.extend(bite.into_iter().map(key_of));
        }
        assert_eq!(found, expected);
    }

    /// The key under which the model has the row.
    fn pk_of(&self, table: TableId, rid: Rid) -> Vec<u8> {
        let model = &self.model[table.0 as usize];
        let row = self.store.row(table, rid).expect("an index names live rows");
        if !model.schema.primary_key.is_empty() {
            return model.key_of(row, &model.schema.primary_key);
        }
        let numbers = model.rows.keys();
        numbers
            .into_iter()
            .find(|pk| self.rid(table.0 as usize, pk) == rid)
            .expect("known row")
            .clone()
    }

    /// Takes rows one by one and deletes or inserts around them: the scan continues behind the last key it saw.
    fn scan_while_changing(&mut self, table: usize, index: u8, flags: u32, seed: &[u8]) {
        let index = index as usize % self.model[table].index_count();
        if !is_ordered(&self.model[table], index) {
            return;
        }
        let range = Range::new(&[], &[], ScanFlags(flags & ScanFlags::REVERSE));
        let is_reverse = flags & ScanFlags::REVERSE != 0;
        let (mut position, mut last) = (ScanPosition::default(), None);
        for step in 0..6u8 {
            let mut entries = self.model[table].entries(index);
            if is_reverse {
                entries.reverse();
            }
            // A unique index knows a row by its own key alone, also when the row's primary key changed.
            let by_key = index > 0 && self.model[table].schema.indexes[index - 1].unique;
            let place = |(key, pk): &(Vec<u8>, Vec<u8>)| match by_key {
                true => (key.clone(), Vec::new()),
                false => (key.clone(), pk.clone()),
            };
            let is_beyond = |entry: &(Vec<u8>, Vec<u8>)| match &last {
                None => true,
                Some(last) if is_reverse => place(entry) < place(last),
                Some(last) => place(entry) > place(last),
            };
            let expected = entries.into_iter().find(is_beyond);
            let mut found = None;
            let visit = |rid, _: &[u8]| {
                found = Some(rid);
                Visit::Stop
            };
            self.store
                .scan(id(table), index as u16, &range, &mut position, visit)
                .expect("ordered");
            assert_eq!(
                found.map(|rid| self.pk_of(id(table), rid)),
                expected.clone().map(|e| e.1)
            );
            let Some((_, pk)) = expected.clone() else {
                break;
            };
            last = expected;
            let seed: Vec<u8> = seed.iter().map(|s| s.wrapping_add(step)).collect();
            match seed[0] % 3 {
                0 => self.delete(table, pk),
                1 => self.insert(table, &seed),
                _ => self.update(table, pk, &seed),
            }
        }
    }

    fn finish(&mut self, commit: bool, before: Vec<ModelTable>) {
        self.savepoints.clear();
        if !commit {
            self.done.clear();
            self.store.rollback();
            self.model = before;
            return;
        }
        let summary = self.store.commit();
        self.survivor.begin();
        for done in std::mem::take(&mut self.done) {
            replay(&mut self.survivor, done);
        }
        assert_eq!(summary, self.survivor.commit());
    }

    fn compare(&self) {
        for (number, model) in self.model.iter().enumerate() {
            let table = id(number);
            let stats = self.store.stats(table);
            assert_eq!(stats.rows, model.rows.len() as u64);
            assert_eq!(stats, self.survivor.stats(table));
            for index in 0..model.index_count() {
                self.compare_index(table, model, index);
            }
            let sorted: Vec<_> = self.store.sorted_rids(table);
            let rows: Vec<_> = sorted
                .iter()
                .map(|rid| self.store.row(table, *rid).expect("live").to_vec())
                .collect();
            assert_eq!(rows, model.rows.values().cloned().collect::<Vec<_>>());
        }
        assert_eq!(self.store.digest(), self.survivor.digest());
    }

    fn compare_index(&self, table: TableId, model: &ModelTable, index: usize) {
        let entries = model.entries(index);
        for (position, (key, pk)) in entries.iter().enumerate() {
            let found = self.store.get(table, index as u16, key).expect("the model has the key");
            let is_first = position == 0 || entries[position - 1].0 != *key;
            if is_first {
                assert_eq!(self.store.row(table, found), Some(&model.rows[pk][..]));
            }
            assert_eq!(self.store.get(table, index as u16, &key[..key.len() - 1]), None);
        }
        if is_ordered(model, index) {
            let mut found = Vec::new();
            let visit = |_, row: &[u8]| {
                found.push(row.to_vec());
                Visit::Next
            };
            let mut position = ScanPosition::default();
            let all = Range::default();
            self.store
                .scan(table, index as u16, &all, &mut position, visit)
                .expect("ordered");
            let expected: Vec<_> = entries.iter().map(|(_, pk)| model.rows[pk].clone()).collect();
            assert_eq!(found, expected);
        }
    }
}

fn replay(store: &mut Store, done: Done) {
    let find = |store: &Store, table: usize, pk: &[u8]| store.get(id(table), 0, pk).expect("row exists");
    match done {
        Done::Insert(table, row) => {
            store.insert(id(table), &row).expect("it was accepted before");
        }
        Done::Update(table, pk, row) => {
            let rid = find(store, table, &pk);
            store.update(id(table), rid, &row).expect("it was accepted before");
        }
        Done::Patch(table, pk, set, values) => {
            let rid = find(store, table, &pk);
            store
                .patch(id(table), rid, set, &values)
                .expect("it was accepted before");
        }
        Done::Delete(table, pk) => {
            let rid = find(store, table, &pk);
            store.delete(id(table), rid).expect("row is live");
        }
        Done::Add(table, pk, column, delta) => {
            let rid = find(store, table, &pk);
            store
                .add(id(table), rid, column, delta)
                .expect("it was accepted before");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn a_store_is_its_model(
        txns in prop::collection::vec((prop::collection::vec(op(), 0..30), prop::bool::weighted(0.7)), 1..14)
    ) {
        let mut world = World::new();
        for (ops, commit) in &txns {
            let before = world.model.clone();
            world.store.begin();
            for op in ops {
                world.run(op);
            }
            world.finish(*commit, before);
            world.compare();
        }
    }
}
