//! Where source rows stand: the offset that names each inside its epoch, and its place. The two are one number for a
//! record source; for a table's rows places come beside the offsets, since offsets are not stable over restarts (P91).

use std::sync::Arc;

use arrow_array::UInt64Array;
use landfall_types::{Offset, Place};

/// See the module. Offsets and places rise; cheap to clone and to slice.
#[derive(Clone, Debug)]
pub(crate) struct SourceRows {
    offsets: UInt64Array,
    places: Option<Places>,
}

#[derive(Clone, Debug)]
struct Places {
    all: Arc<[Place]>,
    start: usize,
}

impl SourceRows {
    /// Rows of a record source.
    pub(crate) fn records(offsets: UInt64Array) -> Self {
        SourceRows { offsets, places: None }
    }

    /// A table's rows, or `None` if there is not a place for each.
    pub(crate) fn of_table(offsets: UInt64Array, places: Arc<[Place]>) -> Option<Self> {
        (offsets.len() == places.len())
            .then_some(SourceRows { offsets, places: Some(Places { all: places, start: 0 }) })
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    fn places(&self) -> Option<&[Place]> {
        let places = self.places.as_ref()?;
        places.all.get(places.start..places.start + self.offsets.len())
    }

    /// Whether places rise as they must: strictly, for a table's rows.
    pub(crate) fn rises(&self) -> bool {
        let values = self.offsets.values();
        match self.places() {
            None => values.windows(2).all(|pair| pair[0] <= pair[1]),
            Some(places) => {
                values.windows(2).all(|pair| pair[0] < pair[1]) && places.windows(2).all(|pair| pair[0] < pair[1])
            }
        }
    }

    /// The place of a row.
    pub(crate) fn place(&self, row: usize) -> Place {
        match self.places() {
            None => Place::of(Offset(self.offsets.value(row))),
            Some(places) => places[row],
        }
    }

    /// The row of an offset.
    pub(crate) fn row_of(&self, offset: u64) -> Option<usize> {
        self.offsets.values().binary_search(&offset).ok()
    }

    /// How many rows have an offset below this one.
    pub(crate) fn before(&self, offset: u64) -> usize {
        self.offsets.values().partition_point(|other| *other < offset)
    }

    /// The place of an offset.
    pub(crate) fn place_of(&self, offset: u64) -> Place {
        match (self.places(), self.row_of(offset)) {
            (Some(places), Some(row)) => places[row],
            _ => Place::of(Offset(offset)),
        }
    }

    /// How many rows lie below a place.
    pub(crate) fn below(&self, place: Place) -> usize {
        match self.places() {
            None => self.offsets.values().partition_point(|offset| Place::of(Offset(*offset)) < place),
            Some(places) => places.partition_point(|other| *other < place),
        }
    }

    /// The offset below which rows lie below the place.
    pub(crate) fn offset_at(&self, place: Place) -> u64 {
        let at = self.below(place);
        match self.offsets.values().get(at) {
            Some(offset) => *offset,
            None => self.offsets.values().last().map_or(u64::MAX, |last| last.saturating_add(1)),
        }
    }

    /// Some of the rows.
    pub(crate) fn slice(&self, start: usize, length: usize) -> SourceRows {
        let places = self.places.as_ref().map(|places| Places { all: places.all.clone(), start: places.start + start });
        SourceRows { offsets: self.offsets.slice(start, length), places }
    }

    /// The offsets.
    pub(crate) fn offsets(&self) -> &UInt64Array {
        &self.offsets
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(at: u64, within: u64) -> Place {
        Place { at, within }
    }

    proptest! {
        /// Catches a place that is looked up in the wrong rows after a slice, and a cut by place that differs from the cut
        /// by offset that stands for it.
        #[test]
        fn a_cut_by_place_and_by_offset_are_one(
            steps in prop::collection::vec((1u64..4, 0u64..3, 1u64..5), 0..40),
            first in 0usize..40,
            length in 0usize..40,
            looked_up in (0u64..60, 0u64..20),
        ) {
            let mut rows: Vec<(u64, Place)> = Vec::new();
            for (offset_step, at_step, within_step) in steps {
                let (offset, place) = rows.last().copied().unwrap_or((0, at(0, 0)));
                let within = if at_step == 0 { place.within + within_step } else { within_step };
                rows.push((offset + offset_step, at(place.at + at_step, within)));
            }
            let offsets = UInt64Array::from_iter_values(rows.iter().map(|(offset, _)| *offset));
            let places: Arc<[Place]> = rows.iter().map(|(_, place)| *place).collect();
            let whole = SourceRows::of_table(offsets, places).expect("as many places as rows");
            prop_assert!(whole.rises());
            let first = first.min(rows.len());
            let length = length.min(rows.len() - first);
            let (some, rows) = (whole.slice(first, length), &rows[first..first + length]);
            let place = at(looked_up.0, looked_up.1);
            let below = rows.iter().filter(|(_, other)| *other < place).count();
            prop_assert_eq!(some.below(place), below);
            prop_assert_eq!(some.before(some.offset_at(place)), below);
            for (row, (offset, place)) in rows.iter().enumerate() {
                prop_assert_eq!((some.place(row), some.place_of(*offset), some.row_of(*offset)), (*place, *place, Some(row)));
            }
        }
    }

    /// Catches rows without places, or places that stand still, which no position could tell apart.
    #[test]
    fn what_does_not_rise_is_found() {
        let offsets = || UInt64Array::from(vec![4, 5, 6]);
        let table = |places: [Place; 3]| SourceRows::of_table(offsets(), Arc::from(places)).expect("three").rises();
        assert!(table([at(1, 1), at(1, 2), at(2, 1)]));
        assert!(!table([at(1, 1), at(1, 1), at(2, 1)]));
        assert!(!table([at(2, 1), at(1, 9), at(3, 1)]));
        assert!(SourceRows::of_table(offsets(), Arc::from([at(1, 1)])).is_none());
        assert!(SourceRows::records(UInt64Array::from(vec![1, 1, 3])).rises());
        assert!(!SourceRows::records(UInt64Array::from(vec![1, 3, 2])).rises());
        assert_eq!(SourceRows::records(offsets()).offset_at(at(5, 0)), 5);
    }
}
