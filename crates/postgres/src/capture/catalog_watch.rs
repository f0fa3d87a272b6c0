//! The watch on the catalog (P82b, P83, F-P18): at the start of a stream and every `schema.poll`, each table that is
//! followed is looked at for what no event tells.
//!
//! A look is *now*, the stream is *then*: what a look shows is judged only once the stream has come as far, so that an
//! event that explains it has been seen. A table that has to be copied again is parked by whoever reads, its note stored
//! first (P87), and what is stored of its last look stays, so that a crash in between finds the same again. Waiting for
//! the stream or for the server holds up nobody.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use landfall_engine::FailCause;

use super::moves::{Answers, Changes, Move, Policy, judge};
use super::report::Stage;
use super::shared::Shared;
use crate::catalog::{TableSighting, holds_rows_of_before, log_end, major, names_of, read_origins, read_sightings};
use crate::publication::PublicationFacts;
use crate::record::{TableNote, TablePhase, TableRecord, WatchedRecord};
use crate::sql::{SqlConnection, SqlError};
use crate::{Lsn, RelationId, TableName};

/// How often it is asked whether the stream has come far enough.
const COME_EVERY: Duration = Duration::from_millis(100);
/// How often it is asked whether there is a stream at all.
const BEGIN_EVERY: Duration = Duration::from_millis(500);

/// A table that is followed.
struct Followed {
    name: TableName,
    /// Tells whether it was copied anew since.
    stream: u32,
    watched: Option<WatchedRecord>,
}

/// What a look leads to for a table that goes on.
struct Goes {
    stream: u32,
    sighting: TableSighting,
    /// Files changed, and a truncate that the stream told explains it.
    is_explained: bool,
    notes: Vec<TableNote>,
}

/// Looks, as long as it is polled.
pub(super) async fn run(shared: &Arc<Shared>) -> Infallible {
    let poll = shared.options.schema_poll;
    loop {
        if !is_streaming(shared) {
            tokio::time::sleep(poll.min(BEGIN_EVERY)).await;
            continue;
        }
        if let Err(error) = look(shared).await {
            tracing::warn!(pipeline = %shared.options.pipeline, "the catalog was not looked at: {error}");
        }
        tokio::time::sleep(poll).await;
    }
}

fn is_streaming(shared: &Shared) -> bool {
    shared.sight.lock().stage == Stage::Streaming
}

/// The table as it is followed, if it still is.
fn followed(table: &TableRecord) -> Option<Followed> {
    matches!(table.phase, TablePhase::Streaming | TablePhase::CatchingUp).then(|| Followed {
        name: table.name.clone(),
        stream: table.stream_partition,
        watched: table.watched.clone(),
    })
}

async fn look(shared: &Arc<Shared>) -> Result<(), SqlError> {
    let options = &shared.options;
    let streams: BTreeMap<RelationId, u32> = shared.with_record(|record| {
        let tables = record.iter().flat_map(|record| &record.tables);
        tables.filter_map(|table| Some((table.relation, followed(table)?.stream))).collect()
    });
    if streams.is_empty() {
        return Ok(());
    }
    let relations: Vec<RelationId> = streams.keys().copied().collect();
    let sql = options.sql().await?;
    // A publication that is gone ends the stream, and the start says what to do.
    let published = PublicationFacts::read(&sql, major(&sql).await?, &options.publication).await?;
    let Some(published) = published else { return Ok(()) };
    let begin = log_end(&sql).await?;
    let sightings = read_sightings(&sql, &options.publication, &relations).await?;
    let end = log_end(&sql).await?;
    // The stream may be far behind.
    drop(sql);
    while shared.sight.lock().server_end < end {
        tokio::time::sleep(COME_EVERY).await;
    }
    let mut asked: Option<SqlConnection> = None;
    let mut going: BTreeMap<RelationId, Goes> = BTreeMap::new();
    for (relation, sighting) in sightings {
        let now = shared.with_record(|record| record?.table(relation).and_then(followed));
        let stream = streams.get(&relation).copied();
        let Some(table) = now.filter(|now| stream == Some(now.stream)) else { continue };
        let is_published = published.tables.iter().any(|one| one.relation == relation);
        let (changes, is_told) = match &table.watched {
            Some(watched) => (Changes::between(watched, &sighting), watched.is_truncate_open()),
            None => (Changes::default(), false),
        };
        let mut moves = Vec::new();
        if !is_published {
            moves.push(Move::Left);
        } else if !changes.refiled.is_empty()
            && table.watched.as_ref().is_some_and(|watched| watched.is_truncated_within(begin, end))
        {
            // Is that file of this truncate, or of one before it? The next look sees.
            continue;
        } else if !changes.is_empty() {
            let sql = match asked.take() {
                Some(sql) => sql,
                None => options.sql().await?,
            };
            let horizon = table.watched.as_ref().map_or(0, |watched| watched.horizon);
            let answers = match ask(&sql, &changes, (!is_told).then_some(horizon)).await {
                Ok(answers) => answers,
                // Its neighbours are judged, and it is by the next look.
                Err(error) => {
                    tracing::warn!(pipeline = %options.pipeline, table = %table.name, "not looked at: {error}");
                    continue;
                }
            };
            asked = Some(sql);
            moves = changes.moves(relation, &answers, is_told);
        }
        let notes = match judged(shared, relation, &table.name, &moves) {
            Ok(notes) => notes,
            Err(cause) => {
                // Copied anew while the server was asked: what was found is of before.
                let now = shared.with_record(|record| record?.table(relation).and_then(followed));
                if now.is_some_and(|now| now.stream == table.stream) {
                    shared.set_unfit(relation, cause);
                }
                continue;
            }
        };
        let is_explained = is_told && !changes.refiled.is_empty();
        going.insert(relation, Goes { stream: table.stream, sighting, is_explained, notes });
    }
    take(shared, going, end);
    Ok(())
}

/// What only the server can tell of changes. `horizon`: of the look before, where the stream does not explain new files.
async fn ask(sql: &SqlConnection, changes: &Changes, horizon: Option<u32>) -> Result<Answers, SqlError> {
    let mut answers = Answers::default();
    if !changes.added.is_empty() {
        let added: Vec<RelationId> = changes.added.iter().map(|member| member.relation).collect();
        answers.origins = read_origins(sql, &added).await?;
    }
    if !changes.gone.is_empty() {
        answers.names = names_of(sql, &changes.gone).await?;
    }
    if let Some(horizon) = horizon {
        for member in changes.refiled.iter().filter(|member| member.parent != member.relation) {
            let has = holds_rows_of_before(sql, &member.name, horizon).await?;
            answers.has_older_rows.insert(member.relation, has);
        }
    }
    Ok(answers)
}

/// The notes of a table that goes on, or why it does not.
fn judged(
    shared: &Shared,
    relation: RelationId,
    name: &TableName,
    moves: &[Move],
) -> Result<Vec<TableNote>, FailCause> {
    let options = &shared.options;
    let policy = Policy {
        pipeline: &options.pipeline,
        table: name,
        publication: &options.publication,
        mends_publication: options.creates_publication,
        key: &shared.key_of(relation),
        keeps_dropped: options.choice_of(&name.schema, &name.table).is_some_and(|choice| choice.keeps_dropped),
        only_notes: options.only_events,
    };
    let judgement = judge(moves, &policy);
    match judgement.parked {
        Some(parked) => Err(FailCause::new(parked.code, parked.reason)),
        None => Ok(judgement.notes),
    }
}

/// The next look is judged by this one.
fn take(shared: &Shared, going: BTreeMap<RelationId, Goes>, end: Lsn) {
    let pipeline = &shared.options.pipeline;
    let mut is_noted = false;
    shared.change_record(|record| {
        for table in &mut record.tables {
            let Some(goes) = going.get(&table.relation) else { continue };
            // Copied again meanwhile: that look is older than its copy.
            if followed(table).is_none_or(|now| now.stream != goes.stream) {
                continue;
            }
            match &mut table.watched {
                Some(watched) => {
                    watched.take(&goes.sighting);
                    if goes.is_explained {
                        watched.explained = watched.truncated.min(end);
                    }
                }
                None => table.watched = Some(WatchedRecord::begin(&goes.sighting, end)),
            }
            for note in &goes.notes {
                if table.note(note.clone()) {
                    is_noted = true;
                    tracing::warn!(pipeline = %pipeline, table = %table.target, code = %note.code, "noted: {}", note.text);
                }
            }
        }
    });
    if is_noted {
        shared.want_stored();
    }
}
