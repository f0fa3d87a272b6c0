use landfall_types::Offset;

use super::*;
use crate::group::Span;

const P: PartitionId = PartitionId(0);
const Q: PartitionId = PartitionId(1);

fn at(offset: u64) -> Place {
    Place::of(Offset(offset))
}

fn spans(ranges: &[(PartitionId, u64, u64)]) -> Spans {
    ranges
        .iter()
        .map(|(partition, start, end)| (*partition, Span { epoch: Epoch(3), start: at(*start), end: at(*end) }))
        .collect()
}

fn table(positions: &[(PartitionId, u64)]) -> Positions {
    positions.iter().map(|(partition, end)| (*partition, at(*end))).collect()
}

/// Catches T1: the library takes the same Txn twice.
#[test]
fn a_group_that_is_in_is_held() {
    let group = spans(&[(P, 0, 5), (Q, 3, 9)]);
    assert_eq!(stand(&table(&[(P, 5), (Q, 9)]), &group, &Ours::new()), Standing::Held);
    assert_eq!(stand(&table(&[(P, 7), (Q, 9)]), &group, &Ours::new()), Standing::Held);
}

/// Catches a first commit after a restart that is refused, because a filtered range came between.
#[test]
fn after_a_restart_a_position_below_the_start_is_no_other_writer() {
    let group = spans(&[(P, 5, 8)]);
    for positions in [table(&[]), table(&[(P, 0)]), table(&[(P, 5)])] {
        assert_eq!(stand(&positions, &group, &Ours::new()), Standing::Absent);
    }
    // Of an epoch that is over.
    let old = Ours::from([(P, (Epoch(2), at(7)))]);
    assert_eq!(stand(&table(&[(P, 5)]), &group, &old), Standing::Absent);
}

/// Catches another writer that goes unseen because its position is below our start.
#[test]
fn a_position_that_is_not_where_it_was_left_is_another_writer() {
    let group = spans(&[(P, 8, 12)]);
    let ours = Ours::from([(P, (Epoch(3), at(8)))]);
    assert_eq!(stand(&table(&[(P, 8)]), &group, &ours), Standing::Absent);
    for positions in [table(&[(P, 7)]), table(&[(P, 9)]), table(&[])] {
        assert_eq!(stand(&positions, &group, &ours), Standing::Foreign(vec![P]), "{positions:?}");
    }
}

/// Catches a group of which a part is in: its rows would be there twice.
#[test]
fn a_group_that_is_partly_in_is_not_written() {
    let group = spans(&[(P, 0, 5), (Q, 0, 9)]);
    let Standing::Foreign(partitions) = stand(&table(&[(P, 5)]), &group, &Ours::new()) else {
        panic!("half of it is in");
    };
    assert_eq!(partitions, [P]);
    assert!(matches!(stand(&table(&[(P, 3)]), &group, &Ours::new()), Standing::Foreign(_)));
}

/// Catches an empty range that stands for rows it does not have.
#[test]
fn an_empty_range_decides_nothing() {
    let group = spans(&[(P, 4, 4), (Q, 0, 2)]);
    assert_eq!(stand(&table(&[(P, 9)]), &group, &Ours::new()), Standing::Absent);
}
