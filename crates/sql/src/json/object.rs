//! The fields of one JSON object, read into columns by name (E98, E100): wanted fields in any order, the last of two
//! with one name, defaults and nulls for those that are missing; all others are passed over.

use std::collections::HashMap;

use arrow_array::ArrayRef;
use arrow_schema::{ArrowError, Fields};

use super::column::Column;
use super::predict::Order;
use super::rules::{Rules, Unknown};
use super::scan::{Failed, Scanner};
use crate::code;
use crate::schema;

/// From this many columns on, names are looked up by hash.
const HASHED_FROM: usize = 16;

pub(super) struct Object {
    pub(super) columns: Vec<Column>,
    index: Option<HashMap<Box<str>, usize>>,
    /// Names that are declared but not wanted: no column, yet not unknown.
    unwanted: Vec<Box<str>>,
    pub(super) order: Order,
}

impl Object {
    pub(super) fn new(columns: &[schema::Column]) -> Self {
        let columns: Vec<Column> = columns.iter().map(Column::new).collect();
        let index = (columns.len() >= HASHED_FROM)
            .then(|| columns.iter().enumerate().map(|(at, column)| (column.name.clone(), at)).collect());
        let order = Order::declared(columns.iter().map(|column| &*column.name));
        Object { columns, index, unwanted: Vec::new(), order }
    }

    /// Tells which other names are declared, nested ones by path.
    pub(super) fn declare_unwanted(&mut self, declared: &[schema::Column]) {
        for column in declared {
            match self.columns.iter_mut().find(|wanted| *wanted.name == *column.name) {
                None => self.unwanted.push(column.name.as_str().into()),
                Some(wanted) => {
                    if let (super::column::Cells::Struct(object), schema::ColumnType::Struct(inner)) =
                        (&mut wanted.cells, &column.kind)
                    {
                        object.declare_unwanted(inner);
                    }
                }
            }
        }
    }

    pub(super) fn fields(&self) -> Fields {
        self.columns.iter().map(|column| column.field().clone()).collect()
    }

    pub(super) fn cut(&mut self, len: usize) {
        self.columns.iter_mut().for_each(|column| column.cut(len));
    }

    pub(super) fn push_null(&mut self) {
        self.columns.iter_mut().for_each(Column::push_null);
    }

    pub(super) fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        self.columns.iter_mut().map(Column::finish).collect()
    }

    /// The column of a name; `hint` is where it stands if the record keeps the declared order.
    #[inline]
    fn find(&self, key: &[u8], hint: usize) -> Option<usize> {
        if self.columns.get(hint).is_some_and(|column| column.name.as_bytes() == key) {
            return Some(hint);
        }
        match &self.index {
            Some(index) => std::str::from_utf8(key).ok().and_then(|key| index.get(key).copied()),
            None => self.columns.iter().position(|column| column.name.as_bytes() == key),
        }
    }

    /// The column of a name that was not predicted; the next record's is. Not where unknown names are told.
    pub(super) fn look_up_name(&mut self, name: &[u8], hint: usize, step: &mut usize) -> Option<usize> {
        let place = self.find(name, hint);
        // A name that is predicted is not looked at again: none is learnt that may not be UTF-8.
        if name.is_ascii() {
            self.order.learn(name, place, step);
        }
        place
    }

    /// Reads a name that was not predicted: its column, or else its name where that is told.
    fn look_up(
        &mut self,
        scanner: &mut Scanner<'_>,
        rules: &mut Rules,
        hint: usize,
        step: &mut usize,
    ) -> Result<(Option<usize>, Option<String>), Failed> {
        let key = scanner.key(&mut rules.key)?;
        let place = self.find(key, hint);
        let is_told = place.is_none() && rules.unknown != Unknown::Ignore;
        if is_told {
            let is_declared = self.unwanted.iter().any(|name| name.as_bytes() == key);
            return Ok((place, (!is_declared).then(|| excerpt(key))));
        }
        self.order.learn(key, place, step);
        Ok((place, None))
    }

    /// Reads an object, its opening brace being taken, as value number `len` of every column.
    pub(super) fn read(&mut self, scanner: &mut Scanner<'_>, rules: &mut Rules, len: usize) -> Result<(), Failed> {
        scanner.enter()?;
        let mut filled = 0;
        let (mut hint, mut step) = (0, 0);
        if !scanner.takes(b'}') {
            loop {
                scanner.peek();
                let at = scanner.position();
                let (place, unknown) = match self.order.predicted(scanner.rest(), &mut step) {
                    Some((place, len)) => {
                        scanner.pass(len);
                        (place, None)
                    }
                    None => self.look_up(scanner, rules, hint, &mut step)?,
                };
                match place.and_then(|place| self.columns.get_mut(place).map(|column| (place, column))) {
                    Some((place, column)) => {
                        if column.len() > len {
                            if rules.duplicates_are_errors {
                                scanner.fail_at(code::FIELD_TWICE, at, "the field is there twice");
                                scanner.inside_field(&column.name);
                                return Err(Failed);
                            }
                            rules.counters.count_duplicate();
                            column.cut(len);
                        } else {
                            filled += 1;
                        }
                        if let Err(failed) = column.read(scanner, rules) {
                            scanner.inside_field(&column.name);
                            return Err(failed);
                        }
                        hint = place + 1;
                    }
                    None => {
                        if let Some(name) = unknown {
                            rules.counters.count_unknown();
                            if rules.unknown == Unknown::Error {
                                return Err(scanner.fail_at(
                                    code::FIELD_UNKNOWN,
                                    at,
                                    format!("field `{name}` is not declared"),
                                ));
                            }
                        }
                        scanner.skip_value(false)?;
                    }
                }
                if !scanner.more(b'}')? {
                    break;
                }
            }
        }
        scanner.leave();
        if filled < self.columns.len() {
            for column in &mut self.columns {
                if column.len() == len
                    && let Err(failed) = column.read_absent(scanner, rules, true)
                {
                    scanner.inside_field(&column.name);
                    return Err(failed);
                }
            }
        }
        Ok(())
    }
}

fn excerpt(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().take(64).collect()
}
