//! First steps of an author: names, keys, ranges, changes without a loop, times, money, ids, callers for tests.
use reprise_procedure::{prelude::*, testkit::TestDb};

/// A seat; the index is named like its column.
#[table(name = "seats", primary_key(event, row, number), index(state, event, state, row), unique(by_code, event, code), partition_by = event)]
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    pub event: i64,
    pub row: i16,
    pub number: i16,
    pub state: u8,
    pub code: SmallText<8>,
    pub price: Decimal<2>,
    pub visits: i32,
}

fn seat(event: i64, row: i16, number: i16, state: u8) -> Seat {
    let code = SmallText::new(&format!("{row}-{number}")).unwrap();
    Seat {
        event,
        row,
        number,
        state,
        code,
        price: Decimal::from_whole(10),
        visits: 0,
    }
}

/// Parameters with the names of the procedure and of what its entry uses.
#[procedure(partition_by(order))]
pub fn order(tx: &Txn, order: i64, tx_: i64, args: i64, reader: i64) -> i64 {
    tx.info("called");
    order + tx_ + args + reader
}

#[procedure(
    partition_by(a),
    fuel_max = 5_000_000_000,
    aborts(zero = "The first number is zero", "not-listed")
)]
#[allow(clippy::too_many_arguments)]
pub fn many(
    _tx: &Txn,
    a: i64,
    b: i8,
    c: &str,
    d: Option<i64>,
    e: Vec<i16>,
    f: bool,
    g: u64,
    h: Timestamp,
    i: Uuid,
    j: Decimal<2>,
    k: f64,
    l: reprise_procedure::advanced::ListRef<'_, i32>,
) -> Result<String, Abort> {
    if a < 0 {
        abort!("below_zero", "{a} is less than zero, {c:?}");
    }
    if a == 0 {
        abort!("zero");
    }
    let sum: i32 = l.iter().sum();
    Ok(format!("{a} {b} {c} {d:?} {e:?} {f} {g} {h} {i} {j} {k} {sum}"))
}

reprise_procedure::module! {
    tables: [Seat],
    procedures: [order, many],
}

#[derive(Clone, Debug, PartialEq, ProcedureStruct)]
pub struct SeatView {
    pub code: String,
}

#[test]
fn a_description_lists_fuel_abort_codes_and_names_of_structs() {
    use reprise_procedure::{abi::Type, value::ValueType};

    let schema = MODULE.schema();
    let many = &schema.procedures[1];
    assert_eq!(many.fuel_max, Some(5_000_000_000));
    let aborts: Vec<_> = many
        .aborts
        .iter()
        .map(|abort| (&abort.code[..], &abort.docs[..]))
        .collect();
    // Codes of the option first, then codes in the body.
    assert_eq!(
        aborts,
        [
            ("zero", "The first number is zero"),
            ("not-listed", ""),
            ("below_zero", "")
        ]
    );
    assert!(schema.procedures[0].aborts.is_empty() && schema.procedures[0].fuel_max.is_none());
    match SeatView::value_type() {
        Type::Struct(of) => assert_eq!(of.name.as_deref(), Some("SeatView")),
        other => panic!("{other:?}"),
    }
}

fn filled() -> TestDb {
    let mut db = TestDb::new(&MODULE);
    db.run(|tx| {
        for event in [1, 2] {
            for row in 1..=3 {
                for number in 1..=4 {
                    Seat::insert(tx, &seat(event, row, number, (number % 2) as u8))?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
    db
}

#[test]
fn procedures_are_called_by_name_with_any_number_of_parameters() {
    let mut db = TestDb::new(&MODULE);
    assert_eq!(order::call(&mut db, 1, 20, 300, 4_000), Ok(4_321));
    let id = Uuid(0x018f_4f0c_2d3a_7000_8000_0000_0000_0001_u128.to_be_bytes());
    let time = "2026-03-01T18:00:00Z".parse().unwrap();
    let call = |db: &mut TestDb, a| {
        many::call(
            db,
            a,
            -1,
            "x",
            None,
            vec![1, 2],
            true,
            u64::MAX,
            time,
            id,
            "9.95".parse().unwrap(),
            0.5,
            vec![3, 4],
        )
    };
    let text = call(&mut db, 7).unwrap();
    assert_eq!(
        text,
        "7 -1 x None [1, 2] true 18446744073709551615 2026-03-01T18:00:00Z 018f4f0c-2d3a-7000-8000-000000000001 9.95 0.5 7"
    );
    let aborted = call(&mut db, -3).unwrap_err();
    assert_eq!(aborted.to_string(), "aborted: below_zero: -3 is less than zero, \"x\"");
    assert_eq!(call(&mut db, 0).unwrap_err().code(), Some("zero"));
}

#[test]
fn rows_are_changed_and_deleted_by_key() {
    let mut db = filled();
    db.run(|tx| {
        assert_eq!(Seat::update(tx, (1, 1, 1), |seat| seat.state = 9), Ok(true));
        assert_eq!(Seat::get(tx, (1, 1, 1)).unwrap().state, 9);
        assert_eq!(
            Seat::update(tx, (1, 9, 1), |_| unreachable!("there is none")),
            Ok(false)
        );
        let taken = Seat::update(tx, (1, 1, 1), |seat| seat.code = SmallText::new("1-2").unwrap());
        assert_eq!(taken.unwrap_err().index_name(), "by_code");
        assert!(Seat::delete(tx, (1, 1, 1)) && !Seat::delete(tx, (1, 1, 1)));
        assert!(Seat::get(tx, (1, 1, 1)).is_none());
        let mut row = Seat::get_by_code(tx, (1, "1-2")).unwrap();
        assert_eq!((row.add(tx, Seat::VISITS, 3), row.visits), (3, 3));
        assert_eq!(Seat::find(tx, (1, 1, 2)).unwrap().add(tx, Seat::VISITS, -5), -2);
        Ok(())
    })
    .unwrap();
    let beyond = db.run(|tx| {
        Ok(Seat::find(tx, (1, 1, 2))
            .unwrap()
            .add(tx, Seat::VISITS, i64::from(i32::MAX) + 3))
    });
    assert!(beyond.is_err(), "a sum that does not fit ends the call");
}

fn places(rows: impl IntoIterator<Item = Row<Seat>>) -> Vec<(i64, i16, i16)> {
    rows.into_iter()
        .map(|seat| (seat.event, seat.row, seat.number))
        .collect()
}

#[test]
fn ranges_lie_within_prefixes_with_open_bounds_both_ways() {
    let mut db = filled();
    db.run(|tx| {
        let all = |event| Seat::scan(tx).prefix((event,));
        assert_eq!(places(all(1).after((3, 2))), [(1, 3, 3), (1, 3, 4)]);
        assert_eq!(places(all(1).from((3, 4))), [(1, 3, 4)]);
        assert_eq!(places(all(2).before((1, 3))), [(2, 1, 1), (2, 1, 2)]);
        assert_eq!(
            places(all(2).to((1,))).len(),
            4,
            "a shorter key takes in all that begin with it"
        );
        assert_eq!(places(all(1).after((1,)).before((3,))).len(), 4);
        assert_eq!(places(all(1).after((1, 4)).to((2, 1)).reverse()), [(1, 2, 1)]);
        assert_eq!(places(all(1).range((2, 2)..=(2, 3))), [(1, 2, 2), (1, 2, 3)]);
        let of_row = || Seat::scan(tx).prefix((1, 2));
        assert_eq!(
            places(of_row().range(2..4)),
            [(1, 2, 2), (1, 2, 3)],
            "of the last column the bare value"
        );
        assert_eq!(places(of_row().after(3)), [(1, 2, 4)]);
        assert_eq!(
            places(Seat::scan(tx).range((2, 3, 4)..)),
            [(2, 3, 4)],
            "ranges know no prefix, too"
        );
        assert_eq!(places(of_row().after(4)), []);
        assert_eq!(places(of_row().from(3).to(2)), []);
        let free = || Seat::scan_by_state(tx).prefix((1, 0));
        assert_eq!(places(free().range(2..3)), [(1, 2, 2), (1, 2, 4)]);
        assert_eq!(places(free().first()), [(1, 1, 2)]);
        assert_eq!(places(free().last()), [(1, 3, 4)]);
        assert_eq!(places(free().reverse().last()), [(1, 1, 2)]);
        assert_eq!(places(free().before(2).last()), [(1, 1, 4)]);
        assert_eq!(free().after(2).count(), 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranges_are_changed_and_deleted_without_a_loop() {
    let mut db = filled();
    db.run(|tx| {
        // Moves each row within the index that is read: every one is met once.
        let changed = Seat::scan_by_state(tx).prefix((1,)).update(|seat| {
            seat.state += 1;
            seat.visits += 1;
        });
        assert_eq!(changed, Ok(12));
        assert!(Seat::scan(tx).prefix((1,)).into_iter().all(|seat| seat.visits == 1));
        assert_eq!(Seat::scan(tx).prefix((2, 1)).range(2..=3).delete(), 2);
        assert_eq!(Seat::scan(tx).prefix((2, 1)).count(), 2);
        assert_eq!(Seat::scan_by_state(tx).prefix((1, 2)).delete(), 6);
        assert_eq!(Seat::scan(tx).prefix((9,)).delete(), 0);
        let taken = Seat::scan(tx)
            .prefix((1, 1))
            .update(|seat| seat.code = SmallText::new("3-2").unwrap());
        assert_eq!(taken.unwrap_err().index_name(), "by_code");
        Ok(())
    })
    .unwrap();
    assert_eq!(db.count("seats"), 16);
}

#[test]
fn new_uuids_grow_and_tell_their_time() {
    let mut db = TestDb::new(&MODULE);
    let (mut last, mut seen) = (None, 0);
    for second in 0..20 {
        let now = Timestamp(reprise_procedure::testkit::START_US) + Duration::from_millis(100 * second);
        db.set_now_us(now.0);
        db.run(|tx| {
            for _ in 0..100 {
                let id = tx.new_uuid();
                assert!(last < Some(id), "{last:?} {id}");
                assert_eq!((id.0[6] >> 4, id.0[8] >> 6), (7, 2), "version and variant");
                let ms = u64::from_be_bytes([&[0, 0], &id.0[..6]].concat().try_into().unwrap());
                assert_eq!(ms as i64, tx.now().0 / 1_000);
                (last, seen) = (Some(id), seen + 1);
            }
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(seen, 2_000);
    let id = last.unwrap();
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(id.to_string().replace('-', "").parse(), Ok(id));
    for text in [
        "",
        "018f4f0c-2d3a-7000-8000-00000000000",
        "018f4f0c-2d3a-7000-8000-00000000000g",
        "018f4f0c2d3a-7000-8000-0000-00000000",
    ] {
        assert!(text.parse::<Uuid>().is_err(), "{text}");
    }
}
