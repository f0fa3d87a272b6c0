//! Orders to the tables of a capture (P1, P63, P86–P88): each is one change of the stored record, and the record alone says
//! what follows from it.
//!
//! The change is the same whether the record lies in the data directory of a stopped process or is that of a running
//! capture: a start carries it out in either case, now or later. There is no half of an order after a crash.

use landfall_types::{Code, Coded, Kind, Retry};

use crate::record::{ParkNote, SourceRecord, TablePhase, TableRecord};
use crate::{PatternError, RelationId, TablePattern, code};

/// What is done with tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderCommand {
    /// Their rows pass by until they are copied again.
    Park,
    /// Parked ones are copied again, then followed; what was noted of others is put away.
    Resume,
    /// They are copied again, then followed; all of them: with a new slot.
    Resync,
    /// They are not carried any more; what landed of them stays.
    Remove,
    /// Ones that are new on the server, or were removed, are copied, then followed.
    Add,
}

impl OrderCommand {
    /// Every command.
    pub const ALL: [OrderCommand; 5] =
        [OrderCommand::Park, OrderCommand::Resume, OrderCommand::Resync, OrderCommand::Remove, OrderCommand::Add];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            OrderCommand::Park => "park",
            OrderCommand::Resume => "resume",
            OrderCommand::Resync => "resync",
            OrderCommand::Remove => "remove",
            OrderCommand::Add => "add",
        }
    }

    /// The command of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.word() == word)
    }

    fn copies(self) -> bool {
        matches!(self, OrderCommand::Resume | OrderCommand::Resync | OrderCommand::Add)
    }
}

/// Which tables an order is about.
#[derive(Clone, Debug)]
pub enum OrderedTables {
    /// Every one that is carried.
    All,
    /// Those of a name or a pattern.
    Named(TablePattern),
}

/// An order.
#[derive(Clone, Debug)]
pub struct Order {
    /// What is to be done.
    pub command: OrderCommand,
    /// With which tables.
    pub tables: OrderedTables,
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The names of the tables that it changed something for.
    pub tables: Vec<String>,
    /// Whether everything begins anew with a new slot.
    pub starts_over: bool,
    /// Partitions whose rows nobody waits for any more.
    pub(crate) given_up: Vec<u32>,
}

/// An order that was not carried out; the record is as it was, unless the error says that it may not be.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The name does not parse.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// It names no table.
    #[error("no table `{name}` is carried (LF-PG0701); {}", known_tables(known))]
    NotCarried {
        /// What was named.
        name: String,
        /// Some that are carried.
        known: Vec<String>,
    },
    /// `tables` of the configuration chooses no such table of the database.
    #[error(
        "the database has no table `{name}` that `tables` of the configuration chooses (LF-PG0701): create it, or add it \
         to `tables` and start the process again"
    )]
    NotChosen {
        /// What was named.
        name: String,
    },
    /// Nothing is stored yet.
    #[error("nothing is stored of this capture yet (LF-PG0702): its first start copies every table")]
    NothingStored,
    /// Copies are switched off.
    #[error("`snapshot.mode` is `never`, so nothing would be copied (LF-PG0703): set it to `initial` first")]
    NeverCopies,
    /// There is no number left.
    #[error("the record has no partition number or epoch left (LF-PG0704): give the pipeline a new `id`")]
    Spent,
    /// The capture did not come to take the order.
    #[error(
        "the capture took no order within {seconds} s (LF-PG0705), and this one was withdrawn: nothing is changed. The \
         status says what it waits for; give the order again, or stop the process and give it then"
    )]
    NotTaken {
        /// How long it was given.
        seconds: u64,
    },
    /// It was taken, and its end was not seen.
    #[error(
        "the order was taken, and whether it is stored was not seen (LF-PG0706): `landfall tables CONFIG PIPELINE list` \
         shows it; giving it again does no harm"
    )]
    Unresolved,
    /// The server was asked, and did not answer.
    #[error("the database could not be asked (LF-PG0707): {text}")]
    NotAsked {
        /// Why.
        text: String,
    },
}

fn known_tables(known: &[String]) -> String {
    if known.is_empty() { "none is yet".to_owned() } else { format!("these are: {}", known.join(", ")) }
}

impl Coded for OrderError {
    fn code(&self) -> Code {
        match self {
            OrderError::Pattern(_) => code::TABLE_PATTERN,
            OrderError::NotCarried { .. } | OrderError::NotChosen { .. } => code::ORDER_TABLE,
            OrderError::NothingStored => code::ORDER_EARLY,
            OrderError::NeverCopies => code::ORDER_NEVER_COPIES,
            OrderError::Spent => code::ORDER_SPENT,
            OrderError::NotTaken { .. } => code::ORDER_NOT_TAKEN,
            OrderError::Unresolved => code::ORDER_UNRESOLVED,
            OrderError::NotAsked { .. } => code::ORDER_NOT_ASKED,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            OrderError::Pattern(_) | OrderError::NotCarried { .. } | OrderError::NotChosen { .. } => Kind::Invalid,
            OrderError::NothingStored | OrderError::NeverCopies | OrderError::Spent => Kind::Conflict,
            OrderError::NotTaken { .. } | OrderError::NotAsked { .. } => Kind::Unavailable,
            OrderError::Unresolved => Kind::Unresolved,
        }
    }

    fn retry(&self) -> Retry {
        match self.kind() {
            Kind::Unavailable | Kind::Unresolved => Retry::Later,
            _ => Retry::Never,
        }
    }
}

impl Order {
    /// About one table like `public.orders`, or those of a pattern.
    pub fn named(command: OrderCommand, table: &str) -> Result<Self, OrderError> {
        Ok(Order { command, tables: OrderedTables::Named(table.parse()?) })
    }

    /// Whether everything is to begin anew with a new slot.
    pub fn starts_over(&self) -> bool {
        self.command == OrderCommand::Resync && matches!(self.tables, OrderedTables::All)
    }

    /// What it leads to, in words.
    pub fn outcome(&self, is_running: bool) -> &'static str {
        match (self.command, is_running) {
            (OrderCommand::Park, true) => {
                "parked: rows pass by from now on, the slot moves on, and only a new copy ends it"
            }
            (OrderCommand::Park, false) => {
                "parked from the next start on: rows pass by, the slot moves on, and only a new copy ends it"
            }
            (OrderCommand::Resume, true) => {
                "one that is parked is copied again now, then followed: rows that passed by meanwhile are in the copy; of one that is not, notes are put away"
            }
            (OrderCommand::Resume, false) => {
                "one that is parked is copied again at the next start, then followed: rows that passed by meanwhile are in the copy; of one that is not, notes are put away"
            }
            (OrderCommand::Resync, true) if self.starts_over() => {
                "the slot is dropped, a new one made, and every table copied"
            }
            (OrderCommand::Resync, false) if self.starts_over() => {
                "the next start drops the slot if it is still there, makes a new one, and copies every table"
            }
            (OrderCommand::Resync, true) => "copied again now, then followed; its neighbours go on",
            (OrderCommand::Resync, false) => "copied again at the next start, then followed",
            (OrderCommand::Remove, true) => "not carried any more: rows pass by, what landed stays",
            (OrderCommand::Remove, false) => "not carried any more from the next start on: what landed stays",
            (OrderCommand::Add, true) => "copied now, then followed; its neighbours go on",
            (OrderCommand::Add, false) => "copied at the next start, then followed",
        }
    }

    /// Carries it out on a record. `copies`: `snapshot.mode` is `initial`. On an error nothing is changed.
    pub fn apply(&self, record: &mut SourceRecord, copies: bool) -> Result<Ordered, OrderError> {
        let meant = self.meant(record)?;
        let only_clears = |relation: &RelationId| record.table(*relation).is_some_and(|table| self.only_clears(table));
        if self.command.copies() && !copies && !meant.iter().any(only_clears) {
            return Err(OrderError::NeverCopies);
        }
        let mut changed = record.clone();
        let chosen: Vec<RelationId> = meant
            .into_iter()
            .filter(|relation| record.table(*relation).is_some_and(|one| self.concerns(one)))
            .filter(|relation| copies || !self.command.copies() || only_clears(relation))
            .collect();
        let starts_over = self.starts_over();
        let given_up = record
            .tables
            .iter()
            .filter(|table| starts_over || (chosen.contains(&table.relation) && !self.only_clears(table)))
            .flat_map(|table| std::iter::once(table.stream_partition).chain(table.copy.as_ref().map(|c| c.partition)))
            .collect();
        let is_done = match self.command {
            _ if starts_over => changed.start_over(),
            OrderCommand::Resume | OrderCommand::Resync | OrderCommand::Add => chosen.iter().all(|relation| {
                match changed.table_mut(*relation).filter(|table| self.only_clears(table)) {
                    Some(table) => {
                        table.notes.clear();
                        true
                    }
                    None => changed.copy_again(*relation),
                }
            }),
            OrderCommand::Park | OrderCommand::Remove => {
                let through = changed.through;
                for relation in &chosen {
                    match changed.table_mut(*relation) {
                        Some(table) if self.command == OrderCommand::Park => park(table, through),
                        Some(table) => {
                            (table.phase, table.copy, table.park) = (TablePhase::Removed, None, None);
                            table.notes.clear();
                        }
                        None => {}
                    }
                }
                true
            }
        };
        if !is_done {
            return Err(OrderError::Spent);
        }
        let name_of = |relation: &RelationId| record.table(*relation).map(|table| table.name.to_string());
        let tables = chosen.iter().filter_map(name_of).collect();
        *record = changed;
        Ok(Ordered { tables, starts_over, given_up })
    }

    /// Whether it changes anything for a table.
    fn concerns(&self, table: &TableRecord) -> bool {
        match self.command {
            OrderCommand::Park => table.phase != TablePhase::Parked,
            OrderCommand::Resume => table.phase == TablePhase::Parked || self.only_clears(table),
            OrderCommand::Resync | OrderCommand::Remove => true,
            OrderCommand::Add => table.phase == TablePhase::Removed,
        }
    }

    /// A table that is not parked has nothing to resume but what was noted of it.
    fn only_clears(&self, table: &TableRecord) -> bool {
        self.command == OrderCommand::Resume && table.phase != TablePhase::Parked && !table.notes.is_empty()
    }

    fn meant(&self, record: &SourceRecord) -> Result<Vec<RelationId>, OrderError> {
        const SHOWN_MAX: usize = 20;
        // One that was removed is meant by `add` alone.
        let is_there = |table: &&TableRecord| self.command == OrderCommand::Add || table.phase != TablePhase::Removed;
        let pattern = match &self.tables {
            OrderedTables::All => {
                return Ok(record.tables.iter().filter(is_there).map(|table| table.relation).collect());
            }
            OrderedTables::Named(pattern) => pattern,
        };
        let is_named = |table: &&TableRecord| pattern.matches(&table.name.schema, &table.name.table);
        let found: Vec<RelationId> =
            record.tables.iter().filter(is_there).filter(is_named).map(|table| table.relation).collect();
        if found.is_empty() {
            let known = record.tables.iter().filter(|table| table.phase != TablePhase::Removed);
            let known = known.take(SHOWN_MAX).map(|table| table.name.to_string()).collect();
            return Err(OrderError::NotCarried { name: pattern.to_string(), known });
        }
        Ok(found)
    }
}

/// What is half copied is of no use to a table whose rows pass by.
fn park(table: &mut TableRecord, through: crate::Lsn) {
    if table.phase == TablePhase::Copying {
        table.copy = None;
    }
    table.phase = TablePhase::Parked;
    table.park = Some(ParkNote {
        at: through,
        passed: through,
        code: code::PARKED_BY_HAND.to_string(),
        reason: "parked by `landfall tables`".to_owned(),
    });
}

#[cfg(test)]
mod tests;
