//! Prefetches the calls that follow, and the rows that they will read, while one call runs. A look-up waits for memory two or three times,
//! and other calls can run meanwhile.

use reprise_storage::{PrefetchState, Store};

use crate::prefetch::PrefetchRow;

/// Distances in calls at which each step is done. A step must be further ahead than one cache miss takes, and nearer than the first-level
/// cache keeps lines. Each step reads the lines that the step before it brought.
const INDEX: usize = 3;
const PLACE: usize = 2;
const ROW: usize = 1;

/// Number of calls whose state is kept from step to step, by position.
const RING: usize = 4;
/// Rows of a call that are prefetched at most.
const ROWS: usize = 3;

const _: () = assert!(RING > INDEX && RING.is_power_of_two());

/// Calls that run one after the other, by position. `'m`: their modules.
pub trait NextCalls<'m> {
    /// Returns the rows that the call's procedure declares to prefetch, and its encoded arguments. None for a call that is skipped, and
    /// behind the last one.
    fn call(&self, at: usize) -> Option<(&'m [PrefetchRow], &[u8])>;
    /// Returns the store on which the call will run, for a call that `call` returned.
    fn store(&self, at: usize) -> &Store;
}

/// A call that follows: the rows that it will read, and the state of each prefetch.
#[derive(Clone, Copy, Default)]
struct UpcomingCall<'m> {
    rows: &'m [PrefetchRow],
    found: [PrefetchState; ROWS],
}

/// The calls that follow, and the known part of the way to their rows.
#[derive(Default)]
pub struct LookAhead<'m>([UpcomingCall<'m>; RING]);

impl<'m> LookAhead<'m> {
    /// Does the first step for the calls that follow soon. The caller does so before the call at `first` runs.
    pub fn begin(first: usize, calls: &impl NextCalls<'m>) -> Self {
        let mut ahead = Self::default();
        for at in first + 1..first + INDEX {
            ahead.touch(at, calls);
        }
        ahead
    }

    /// Does one step of each of some calls that follow. The caller does so before the call at `at` runs.
    #[inline(always)]
    pub fn step(&mut self, at: usize, calls: &impl NextCalls<'m>) {
        self.touch(at + INDEX, calls);
        self.touch_places(at + PLACE, calls);
        self.touch_rows(at + ROW, calls);
    }

    #[inline(always)]
    fn touch(&mut self, at: usize, calls: &impl NextCalls<'m>) {
        let UpcomingCall { rows, found } = &mut self.0[at % RING];
        *rows = &[];
        if let Some((declared, args)) = calls.call(at)
            && !declared.is_empty()
        {
            *rows = declared;
            let store = calls.store(at);
            for (row, found) in declared.iter().zip(found) {
                *found = row.touch(store, args);
            }
        }
    }

    #[inline(always)]
    fn touch_places(&mut self, at: usize, calls: &impl NextCalls<'m>) {
        let UpcomingCall { rows, found } = &mut self.0[at % RING];
        if !rows.is_empty() {
            let store = calls.store(at);
            for (row, found) in rows.iter().zip(found) {
                *found = row.touch_place(store, *found, || Some(calls.call(at)?.1));
            }
        }
    }

    #[inline(always)]
    fn touch_rows(&self, at: usize, calls: &impl NextCalls<'m>) {
        let UpcomingCall { rows, found } = &self.0[at % RING];
        if !rows.is_empty() {
            let store = calls.store(at);
            for (row, found) in rows.iter().zip(found) {
                row.touch_row(store, *found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{
        ColumnSchema, Field, IndexKind, LogDeclaration, ModuleSchema, Parameter, Partitioning, PrefetchKey,
        PrefetchPart, ProcedureSchema, RowLayout, ScalarType, TablePlacement, TableSchema, Type,
    };
    use reprise_storage::{Rid, TableId};

    use super::*;
    use crate::{module::TableBinding, prefetch::rows_of};

    /// Calls of `p(number)`, which reads the row of that number in a table of the rows 0 to 99.
    struct Numbers {
        store: Store,
        rows: Vec<PrefetchRow>,
        args: Vec<Vec<u8>>,
    }

    impl<'m> NextCalls<'m> for &'m Numbers {
        fn call(&self, at: usize) -> Option<(&'m [PrefetchRow], &[u8])> {
            Some((&self.rows, self.args.get(at)?))
        }
        fn store(&self, _: usize) -> &Store {
            &self.store
        }
    }

    fn numbers(kind: IndexKind) -> Numbers {
        let ty = ScalarType::I64;
        let table = TableSchema {
            primary_kind: kind,
            ..TableSchema::new("t", vec![ColumnSchema::new("number", ty)], &[0])
        };
        let layout = RowLayout::of_table(&table);
        let mut store = Store::new();
        let id = store.create_table(table.clone()).expect("a table");
        store.begin();
        for value in 0..100 {
            store
                .insert(id, &layout.build(&[Field::Int(value)]))
                .expect("a new row");
        }
        store.commit();
        let procedure = ProcedureSchema {
            docs: String::new(),
            name: "p".into(),
            params: vec![Parameter {
                name: "number".into(),
                ty: Type::Scalar(ty),
            }],
            returns: Type::Unit,
            read_only: true,
            partitioning: Partitioning::Any,
            log: LogDeclaration::Server,
            time_max_ms: None,
            fuel_max: None,
            aborts: Vec::new(),
            prefetch: vec![PrefetchKey {
                table: 0,
                key: vec![PrefetchPart::Param(0)],
            }],
        };
        let binding = TableBinding {
            is_own: true,
            table: id,
            placement: TablePlacement::Local,
            indexes: vec![0],
            places: vec![None],
            keys: Vec::new(),
            layout,
            projection: None,
        };
        let schema = ModuleSchema {
            abi: reprise_abi::ABI_VERSION,
            tables: vec![table],
            procedures: vec![procedure],
            ..ModuleSchema::default()
        };
        Numbers {
            store,
            rows: rows_of(&schema, &[binding]).remove(0),
            args: Vec::new(),
        }
    }

    fn row_of(store: &Store, value: i64) -> Rid {
        let key = (value as u64 ^ 1 << 63).to_be_bytes();
        store.get(TableId(0), 0, &key).expect("there is such a row")
    }

    #[test]
    fn the_row_of_the_call_that_comes_next_was_found() {
        for kind in [IndexKind::Hash, IndexKind::Dense, IndexKind::Ordered] {
            let mut numbers = numbers(kind);
            let value = |at: i64| at * 37 % 100;
            numbers.args = (0..50).map(|at| value(at).to_le_bytes().to_vec()).collect();
            numbers.args[20].clear();
            let calls = &numbers;
            let mut ahead = LookAhead::begin(0, &calls);
            for at in 0..50 {
                ahead.step(at, &calls);
                if at == 0 {
                    continue; // not every step was done for the call behind the first
                }
                let UpcomingCall { rows, found } = ahead.0[(at + ROW) % RING];
                let found = rows.first().map(|_| found[0]);
                let expected = match at + ROW {
                    20 => Some(PrefetchState::Nothing),
                    50 => None,
                    next => Some(PrefetchState::Row(row_of(&calls.store, value(next as i64)))),
                };
                // A hash index shows one cache line of those that may hold the entry.
                if !matches!((kind, found), (IndexKind::Hash, Some(PrefetchState::Tag(_)))) {
                    assert_eq!(found, expected, "{kind:?}, before call {at}");
                }
            }
        }
    }
}
