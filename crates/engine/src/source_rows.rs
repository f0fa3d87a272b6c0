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
        let places =
            self.places.as_ref().map(|places| Places { all: places.all.clone(), start: places.start + start });
        SourceRows { offsets: self.offsets.slice(start, length), places }
    }

    /// The offsets.
    pub(crate) fn offsets(&self) -> &UInt64Array {
        &self.offsets
    }
}
