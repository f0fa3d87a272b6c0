//! The decoder behind the queue: log records become rows of rounds, and rounds become source batches (P65–P78, P97–P103).
//!
//! Synchronous but for two waits before a record: for room in the hand-over, and for an answer that the next record needs
//! (types of a new shape, or the stored note of a table that is parked, P87). A bad value is its row's affair, a bad
//! message its table's; only a broken stream ends the connection (I13, P89).

mod parking;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use landfall_types::{Coded, PartitionId, Place, Timestamp};

use super::handover::{Generation, Ready, StreamNumber};
use super::reshape::{Follow, Found, Reshaped};
use super::rounds::{Change, LostRow, Rounds};
use super::shared::Shared;
use super::table::{Captured, Parked};
use crate::decode::{Message, OversizedMessage, decode};
use crate::feedback::{KeepAliveAdvance, Pending};
use crate::log_record::{LogRecord, RecordKind, RecordSink, RecordSinkError, hand_over};
use crate::meters::table_changed;
use crate::queue::BundleView;
use crate::record::TableNote;
use crate::relations::{Relation, RelationError, Relations};
use crate::rows::Sequencer;
use crate::sql::SqlError;
use crate::{Lsn, RelationId, code};

/// Characters of what is noted of a table.
const NOTE_MAX: usize = 1_000;

/// What the next record waits for.
enum Answer {
    /// The stored note of a parked table.
    Stored,
    /// What the catalog says of a table's new shape.
    Found(Arc<Relation>, Result<Found, SqlError>),
}

/// See the module. One per connection.
pub(crate) struct Decoder {
    shared: Arc<Shared>,
    tables: BTreeMap<RelationId, Captured>,
    relations: Relations,
    /// The relation of the last change, which is known: changes of one relation mostly follow each other.
    described: Option<RelationId>,
    rounds: Rounds,
    transaction: Option<Sequencer>,
    /// Partitions whose rows of this round were cut before it.
    cut_before: Vec<(PartitionId, Place)>,
    keepalive: KeepAliveAdvance,
    answer: Option<BoxFuture<'static, Answer>>,
    /// When the bundle at work was picked up: no clock is read per transaction.
    now: Instant,
    /// There was room, and nothing was handed over since.
    has_room: bool,
    /// The last commit, until the status has it.
    committed: Option<(Lsn, Timestamp, Lsn)>,
    passed_by: u64,
    /// Of parked tables, the last commit that passed by since the last cut.
    passed: HashMap<RelationId, Lsn>,
    generation: Generation,
    number: StreamNumber,
}

impl Decoder {
    pub(crate) fn new(
        shared: Arc<Shared>,
        generation: Generation,
        tables: impl IntoIterator<Item = Captured>,
        through: Lsn,
    ) -> Self {
        let interval = shared.options.feedback_interval.min(Duration::from_secs(1));
        let number = shared.handover.begin_stream();
        Decoder {
            rounds: Rounds::new(Arc::clone(&shared.issued)),
            shared,
            tables: tables.into_iter().map(|table| (table.relation, table)).collect(),
            relations: Relations::new(),
            described: None,
            transaction: None,
            cut_before: Vec::new(),
            keepalive: KeepAliveAdvance::new(interval, through),
            answer: None,
            now: Instant::now(),
            has_room: false,
            committed: None,
            passed_by: 0,
            passed: HashMap::new(),
            generation,
            number,
        }
    }

    fn on_message(&mut self, record: &LogRecord<'_>, message: Message<'_>) -> Result<(), RecordSinkError> {
        match message {
            Message::Begin(begin) => {
                self.transaction = Some(Sequencer::new(begin));
                self.rounds.begin();
            }
            Message::Commit(commit) => {
                self.transaction = None;
                self.rounds.commit(commit.end_lsn);
                self.committed = Some((commit.commit_lsn, commit.commit_time, commit.end_lsn));
            }
            Message::Relation(body) => {
                self.relations.take(record.lsn, &body)?;
                self.follow(body.id, record.lsn)?;
            }
            Message::Type { oid, schema, name } => self.relations.take_type(oid, schema, name),
            Message::Insert { relation, new } => self.change(record, relation, Change::Insert(new))?,
            Message::Update { relation, old, new } => self.change(record, relation, Change::Update(old, new))?,
            Message::Delete { relation, old } => self.change(record, relation, Change::Delete(old))?,
            Message::Truncate(truncate) => {
                for relation in truncate.relations() {
                    self.change(record, relation, Change::Truncate)?;
                }
            }
            // A note of ours may come later; others, and strays, move nothing (P76, P79).
            Message::Note(_) | Message::Origin { .. } | Message::StreamAbort { .. } => {}
        }
        Ok(())
    }

    fn change(
        &mut self,
        record: &LogRecord<'_>,
        relation: RelationId,
        change: Change<'_>,
    ) -> Result<(), RecordSinkError> {
        let Some(transaction) = &mut self.transaction else {
            return Err(format!("a change at {} outside of any transaction (LF-PG0117)", record.lsn).into());
        };
        // Numbers do not depend on which tables are followed (P94).
        let stamp = match change {
            Change::Update(..) | Change::Lost(LostRow { is_update: true, .. }) => transaction.update()?,
            _ => transaction.row()?,
        };
        let Some(table) = self.tables.get(&relation) else { return Ok(()) };
        if table.is_parked {
            self.passed_by += 1;
            self.passed.insert(relation, stamp.commit_lsn);
            return Ok(());
        }
        if stamp.commit_lsn < table.begins {
            self.passed_by += 1;
            return Ok(());
        }
        if matches!(change, Change::Truncate) {
            self.shared.truncate_told(relation, stamp.commit_lsn);
        }
        // The log keeps it: it is read again once the table's copy is settled.
        if table.set_back.is_some() {
            return Ok(());
        }
        if self.described != Some(relation) {
            if let Err(error @ RelationError::Unknown { .. }) = self.relations.get(record.lsn, relation) {
                let parked = Parked { code: error.code(), reason: error.to_string() };
                self.park(relation, stamp.commit_lsn, &parked);
                return Ok(());
            }
            self.described = Some(relation);
        }
        let made = (table.shape, &table.plan);
        if let Err(count) = self.rounds.push(relation, table.stream, made, stamp, change, self.now) {
            let parked = Parked { code: count.code(), reason: count.to_string() };
            self.park(relation, stamp.commit_lsn, &parked);
        }
        if self.rounds.is_due(self.now, self.shared.options.linger) {
            self.cut();
        }
        Ok(())
    }

    /// A row that is too large is set aside with what was read of it, and the stream lives on (P5); any other message of such
    /// a size is none that a table needs.
    fn oversized(&mut self, record: &LogRecord<'_>, len: u64) -> Result<(), RecordSinkError> {
        let limit = self.shared.options.max_message as u64;
        let message = OversizedMessage::new(record.lsn, record.bytes, len, limit);
        let (Some(relation), Some(b'I' | b'U' | b'D'), Some(_)) = (message.relation, message.kind, &self.transaction)
        else {
            return Err(message.into());
        };
        let (code, text) = (message.code(), message.to_string());
        let lost = LostRow { is_update: message.kind == Some(b'U'), code, text: &text, head: record.bytes };
        self.change(record, relation, Change::Lost(lost))
    }

    fn wait(&mut self, answer: BoxFuture<'static, Answer>) {
        self.answer = Some(match self.answer.take() {
            None => answer,
            Some(before) => Box::pin(async move {
                before.await;
                answer.await
            }),
        });
    }

    fn follow(&mut self, relation: RelationId, lsn: Lsn) -> Result<(), RecordSinkError> {
        let now = Arc::clone(self.relations.get(lsn, relation)?);
        let Some(table) = self.tables.get(&relation).filter(|table| !table.is_parked) else { return Ok(()) };
        match table.follow(&now, self.shared.options.abilities) {
            Follow::AsIs => {}
            Follow::Park(parked) => {
                let at = self.commit_or(lsn);
                self.park(relation, at, &parked);
            }
            Follow::Reshape(unknown) if unknown.is_nothing() => self.reshape(&now, &Found::default()),
            Follow::Reshape(unknown) => {
                let connect = self.shared.options.connect.clone();
                self.wait(Box::pin(async move { Answer::Found(now, unknown.look_up(&connect, relation).await) }));
            }
        }
        Ok(())
    }

    /// Of the open transaction.
    fn commit_or(&self, lsn: Lsn) -> Lsn {
        self.transaction.as_ref().map_or(lsn, |transaction| transaction.begin().commit_lsn)
    }

    fn answered(&mut self, answer: Answer) -> Result<(), RecordSinkError> {
        if let Answer::Found(now, found) = answer {
            self.reshape(&now, &found?);
        }
        Ok(())
    }

    /// Rows from here on have another shape, or the table is parked.
    fn reshape(&mut self, now: &Relation, found: &Found) {
        if let Some((partition, ready)) = self.rounds.cut_table(now.id) {
            // Rows of the shape before go first.
            self.cut_before.push((partition, ready.end));
            self.hand_over(partition, ready);
        }
        let at = self.commit_or(Lsn::ZERO);
        let Some(table) = self.tables.get(&now.id) else { return };
        let shape = self.shared.next_shape(now.id);
        match table.reshaped(now, found, shape, self.shared.options.abilities) {
            Ok(Reshaped { table: reshaped, notes }) => {
                tracing::info!(pipeline = %self.shared.options.pipeline, table = %table.target, shape,
                    columns = now.columns.len(), "the table has another shape");
                self.shared.has_shape(reshaped.spec());
                if !notes.is_empty() {
                    self.note_change(&reshaped, at, &notes.join("; "));
                }
                self.tables.insert(now.id, reshaped);
            }
            Err(parked) => self.park(now.id, at, &parked),
        }
    }

    /// The table goes on, and whoever reads behind it is told.
    fn note_change(&self, table: &Captured, at: Lsn, what: &str) {
        let text = format!("goes on since {at}: {}", what.chars().take(NOTE_MAX).collect::<String>());
        let note = TableNote { code: code::CHANGED.to_string(), text };
        let mut is_new = false;
        self.shared.change_record(|record| {
            is_new = record.table_mut(table.relation).is_some_and(|table| table.note(note));
        });
        // A replay comes by it again.
        if is_new {
            let pipeline = &self.shared.options.pipeline;
            tracing::warn!(%pipeline, table = %table.target, code = %code::CHANGED, lsn = %at,
                "the table is another one from here on, and goes on: {what}");
            table_changed(pipeline, &table.target);
        }
    }

    /// The status has the last commit.
    fn show_commit(&mut self) {
        if let Some((commit, time, end)) = self.committed.take() {
            let mut sight = self.shared.sight.lock();
            sight.last_commit = Some((commit, time));
            sight.server_end = sight.server_end.max(end);
        }
    }

    /// Cuts the round and hands it over.
    fn cut(&mut self) {
        // Before the engine can have settled what is cut: the record takes it from there.
        self.show_commit();
        let cut = self.rounds.cut();
        let mut parts = std::mem::take(&mut self.cut_before);
        parts.extend(cut.batches.iter().map(|(partition, ready)| (*partition, ready.end)));
        // Known before the engine can have settled it.
        self.shared.issued(parts, cut.end);
        for (partition, ready) in cut.batches {
            self.hand_over(partition, ready);
        }
        if !self.passed.is_empty() {
            self.shared.change_record(|record| {
                for (relation, commit) in self.passed.drain() {
                    if let Some(park) = record.table_mut(relation).and_then(|table| table.park.as_mut()) {
                        park.passed = park.passed.max(commit);
                    }
                }
            });
        }
        {
            let mut sight = self.shared.sight.lock();
            sight.passed_by += std::mem::take(&mut self.passed_by);
            for (relation, rows) in self.rounds.take_changes() {
                *sight.rows.entry(relation).or_default() += rows;
            }
        }
        self.park_backlogs();
    }

    fn hand_over(&mut self, partition: PartitionId, ready: Ready) {
        self.has_room = false;
        self.shared.handed_over(partition, ready.end);
        self.shared.handover.push_streamed(self.number, self.generation, partition, ready);
    }

    fn on_keepalive(&mut self, end: Lsn) {
        self.now = Instant::now();
        {
            let mut sight = self.shared.sight.lock();
            sight.server_end = sight.server_end.max(end);
        }
        if self.rounds.is_due(self.now, Duration::ZERO) {
            self.cut();
        }
        self.advance_by_keepalive(Some(end));
    }

    /// What keepalives allow: the one that just came, or one that could not set out before.
    fn advance_by_keepalive(&mut self, came: Option<Lsn>) {
        let mut progress = self.shared.progress.lock();
        let pending = Pending {
            has_open_transaction: self.rounds.is_inside(),
            has_unacked_rows: progress.has_unsettled() || !self.rounds.is_empty(),
        };
        self.keepalive.settled(progress.through());
        let allowed = match came {
            Some(end) => self.keepalive.offer(self.now, end, pending),
            None => self.keepalive.again(self.now, pending),
        };
        if let Some(end) = allowed {
            progress.idle(end);
        }
    }
}

impl RecordSink for Decoder {
    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        match record.kind {
            RecordKind::Message => {
                let message = decode(record.lsn, record.bytes)?;
                self.on_message(record, message)
            }
            RecordKind::KeepAlive => {
                self.on_keepalive(record.end_lsn);
                Ok(())
            }
            RecordKind::Oversized { len } => self.oversized(record, len),
            RecordKind::StreamStart => Ok(()),
            RecordKind::TimelineEnd { next } => {
                Err(format!("the log goes on in timeline {next}, which a logical stream does not follow (LF-PG0117)")
                    .into())
            }
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        while let Some(answer) = &mut self.answer {
            let answer = ready!(answer.as_mut().poll(cx));
            self.answer = None;
            self.answered(answer)?;
        }
        // Only what is handed over takes room: a copy beside the stream leaves half of it (P59).
        if !self.has_room {
            ready!(self.shared.handover.poll_room(cx));
            self.has_room = true;
        }
        Poll::Ready(Ok(()))
    }

    fn on_bundle(&mut self, cx: &mut Context<'_>, bundle: &mut BundleView<'_>) -> Poll<Result<(), RecordSinkError>> {
        self.now = Instant::now();
        self.has_room = false;
        hand_over(self, cx, bundle)
    }

    fn on_idle_advance(&mut self, _lsn: Lsn) -> Result<(), RecordSinkError> {
        self.show_commit();
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), RecordSinkError> {
        self.now = Instant::now();
        if self.rounds.is_due(self.now, self.shared.options.linger) {
            self.cut();
        } else {
            // Also while there is no room, when nothing is cut.
            self.park_backlogs();
        }
        if self.keepalive.is_held() {
            self.advance_by_keepalive(None);
        }
        Ok(())
    }

    fn on_close(&mut self) -> Result<(), RecordSinkError> {
        // Whole transactions that are in go on their way; of an open one nothing is kept (I11).
        if !self.rounds.is_inside() && !self.rounds.is_empty() {
            self.cut();
        }
        Ok(())
    }
}
