//! What a capture is made with: the server, the tables, and the numbers of `cdc.md` §12.

use std::sync::Arc;
use std::time::Duration;

use landfall_engine::contract::TableAbilities;
use landfall_types::Code;

use crate::rows::RowOptions;
use crate::sql::{SqlConnection, SqlError};
use crate::{ConnectOptions, CopyOptions, OptionSet, QueueSettings, StartupOptions, TablePattern};

/// Tables that are captured, and how their rows are made.
#[derive(Clone, Debug)]
pub struct TableChoice {
    /// Which tables.
    pub pattern: TablePattern,
    /// How their rows are made.
    pub rows: RowOptions,
    /// `dropped_partitions: keep`: rows of partitions that are dropped, detached or emptied by themselves stay in the target.
    pub keeps_dropped: bool,
}

/// One source: one slot of one database.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The pipeline's id.
    pub pipeline: String,
    /// The server.
    pub connect: ConnectOptions,
    /// The tables; where several patterns match one, the first decides.
    pub tables: Vec<TableChoice>,
    /// `slot.name`.
    pub slot: String,
    /// `slot.create`.
    pub creates_slot: bool,
    /// `slot.adopt`.
    pub adopts_slot: bool,
    /// `publication.name`.
    pub publication: String,
    /// `publication.create`.
    pub creates_publication: bool,
    /// `origin`.
    pub origin: Option<String>,
    /// `snapshot.mode: initial`; else `never`.
    pub copies: bool,
    /// `snapshot.connections` and `.range`; what is known of the server only is filled in at the start.
    pub copy: CopyOptions,
    /// `snapshot.slot_timeout`: how long the creation of a slot may wait for open writers.
    pub slot_timeout: Duration,
    /// `queue`.
    pub queue: QueueSettings,
    /// `max_message`.
    pub max_message: usize,
    /// `feedback_interval`.
    pub feedback_interval: Duration,
    /// `liveness_timeout`.
    pub liveness_timeout: Duration,
    /// `linger`: how long rows may wait for others before they become a source batch.
    pub linger: Duration,
    /// Memory of source batches that the engine has not taken yet.
    pub ready_bytes: usize,
    /// A table of which nothing was taken for so long, and which fills a quarter of that memory, is parked.
    pub backlog_patience: Duration,
    /// Codes with which a destination says that it cannot hold a table as it is shaped: the table is parked at once, since
    /// waiting would hold the slot and mend nothing (P86).
    pub shape_refusals: Vec<Code>,
    /// What every destination of the tables can carry on with. Where one does not order changes by their position, a table's
    /// stream waits until its copy is settled (P59); what one cannot take parks a table (P84).
    pub abilities: TableAbilities,
    /// Whether the destinations hold events and no state: what no event tells is noted, and sets no table aside.
    pub only_events: bool,
    /// `schema.poll`: how often the catalog is asked for what no event tells, and for tables that are new.
    pub schema_poll: Duration,
    /// Whether the server must not be asked (`check --offline`).
    pub is_offline: bool,
}

impl CaptureOptions {
    /// With the defaults of `cdc.md` §12.
    pub fn new(pipeline: &str, connect: ConnectOptions, tables: Vec<TableChoice>) -> Self {
        let slot = crate::default_slot_name(pipeline);
        CaptureOptions {
            pipeline: pipeline.to_owned(),
            connect,
            tables,
            publication: slot.clone(),
            slot,
            creates_slot: true,
            adopts_slot: false,
            creates_publication: true,
            origin: None,
            copies: true,
            copy: CopyOptions::default(),
            slot_timeout: Duration::from_secs(60),
            queue: QueueSettings::default(),
            max_message: 64 << 20,
            feedback_interval: Duration::from_secs(10),
            liveness_timeout: Duration::from_secs(90),
            linger: Duration::from_millis(20),
            ready_bytes: 64 << 20,
            backlog_patience: Duration::from_secs(120),
            shape_refusals: Vec::new(),
            abilities: TableAbilities { orders_by_position: true, takes_new_types: false, takes_new_keys: false },
            only_events: false,
            schema_poll: Duration::from_secs(60),
            is_offline: false,
        }
    }

    /// What changes rows or their numbers.
    pub(crate) fn option_set(&self) -> OptionSet {
        OptionSet { publications: vec![self.publication.clone()], origin: self.origin.clone(), messages: false }
    }

    pub(crate) fn startup(&self) -> StartupOptions {
        StartupOptions {
            pipeline: self.pipeline.clone(),
            slot: self.slot.clone(),
            creates_slot: self.creates_slot,
            adopts_slot: self.adopts_slot,
            copies: self.copies,
            creates_publication: self.creates_publication,
            row_options: self.option_set(),
        }
    }

    pub(crate) fn patterns(&self) -> Vec<TablePattern> {
        self.tables.iter().map(|choice| choice.pattern.clone()).collect()
    }

    /// What decides about a table: the first pattern that matches it.
    pub(crate) fn choice_of(&self, schema: &str, table: &str) -> Option<&TableChoice> {
        self.tables.iter().find(|choice| choice.pattern.matches(schema, table))
    }

    /// How rows of a table are made.
    pub(crate) fn rows_of(&self, schema: &str, table: &str) -> Option<&RowOptions> {
        self.choice_of(schema, table).map(|choice| &choice.rows)
    }

    /// A connection for questions, which a server that says nothing does not hold up for longer than a stream.
    pub(crate) async fn sql(&self) -> Result<SqlConnection, SqlError> {
        SqlConnection::open_within(&self.connect, self.liveness_timeout).await
    }

    /// The identity that stored positions are kept under. The slot's own identity is in the source's record: under
    /// another one, nothing of it is used (P51).
    pub fn identity(&self) -> Arc<str> {
        identity_of(&self.slot)
    }
}

/// The identity of a slot's source, by which its stored record is found.
pub fn identity_of(slot: &str) -> Arc<str> {
    format!("postgres/{slot}").into()
}
