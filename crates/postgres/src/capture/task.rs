//! The task of a capture: from what the server shows to a stream, over every connection of one opening (P50, P52, P57).
//!
//! Each attempt decides anew by the facts; nothing is guessed and nothing is skipped. What is wrong for good ends the
//! opening with its cause, and the pipeline asks again by its own back-off, so what an operator mends is found; what
//! passes by itself is waited for here. Tables whose copy was not settled are copied anew under a fresh snapshot (P56).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use landfall_engine::contract::{SourceError, TableSpec};
use landfall_types::{Code, Coded};
use tokio::sync::watch;

use super::catalog_watch;
use super::copies::Copies;
use super::options::{CaptureOptions, TableChoice};
use super::orders::{self, Desk, Mailbox};
use super::report::Stage;
use super::shared::Shared;
use super::starts::{adopt, first_start, fresh, resume};
use super::stream::{Starting, stream};
use super::table::{Captured, Parked};
use crate::catalog::{MatchedTables, ServerFacts, read_tables};
use crate::check::{Choice, nearest_tables, unused};
use crate::publication::{PublicationFacts, add_table_locked, plan_publication};
use crate::reconnect::Backoff;
use crate::record::TablePhase;
use crate::slot::SlotFacts;
use crate::sql::SqlConnection;
use crate::startup::{Decision, Facts, decide, switch_point};
use crate::transport::ReplicationConnection;
use crate::{Lsn, code};

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The source was told to stop.
    Stopped,
    /// The lane was opened anew: at once again.
    Again,
    /// Passes by itself.
    Later { code: Code, text: String },
    /// Somebody has to do something.
    Final { code: Code, text: String },
}

impl Ended {
    pub(super) fn later<E: Coded + std::fmt::Display>(error: &E) -> Self {
        Ended::Later { code: error.code(), text: error.to_string() }
    }

    fn last<E: Coded + std::fmt::Display>(error: &E) -> Self {
        Ended::Final { code: error.code(), text: error.to_string() }
    }
}

/// How long the server may take to end a stream that we left, and how often it is asked.
const LEFT_WITHIN: Duration = Duration::from_secs(5);
const LEFT_EVERY: Duration = Duration::from_millis(50);

/// Runs until the source is stopped or cannot go on. Orders are taken all the while.
pub(super) async fn run(shared: Arc<Shared>, mailbox: Arc<Mailbox>) {
    let desk = Desk::open(&shared, &mailbox).await;
    let is_busy = desk.is_busy();
    let mut serving = std::pin::pin!(desk.serve());
    let ended = tokio::select! {
        ended = attempts(&shared) => ended,
        never = catalog_watch::run(&shared) => match never {},
        // What is stored now begins anew, and so does whoever reads it.
        () = &mut serving => {
            let text = "ordered to begin anew with a new slot: the pipeline starts again with it".to_owned();
            Ended::Final { code: code::STARTS_OVER, text }
        }
    };
    if let Ended::Final { code, text } = ended {
        // An order that is being stored is answered first: behind this, nothing is stored for it.
        orders::finish(serving, &is_busy).await;
        tracing::error!(pipeline = %shared.options.pipeline, %code, "the source cannot go on: {text}");
        shared.set_stage(Stage::Waiting { cause: text.clone(), code: code.to_string(), attempt: 0 });
        shared.fail(SourceError::Fatal { code, text });
        return;
    }
    shared.set_stage(Stage::Stopped);
    shared.handover.finish();
}

/// One connection after the other: until told to stop, or for good.
async fn attempts(shared: &Arc<Shared>) -> Ended {
    let mut backoff = Backoff::new();
    let mut copies = Copies::new();
    let mut stop = shared.stop.subscribe();
    let mut left: Option<Instant> = None;
    loop {
        let ended = tokio::select! {
            ended = attempt(shared, &mut copies, &mut backoff) => {
                let Err(ended) = ended;
                ended
            }
            // Only what is not streaming is cut off here; a stream ends in order by itself.
            () = stopped_before_streaming(shared) => Ended::Stopped,
        };
        match ended {
            Ended::Again => left = Some(Instant::now()),
            // The server has not seen yet that we left: no failure, and soon over.
            Ended::Later { code: code::SLOT_BUSY, .. } if left.is_some_and(|left| left.elapsed() < LEFT_WITHIN) => {
                tokio::select! {
                    () = tokio::time::sleep(LEFT_EVERY) => {}
                    () = told_to_stop(&mut stop) => return Ended::Stopped,
                }
            }
            Ended::Later { code, text } => {
                let delay = backoff.next_delay(&mut rand::rng());
                tracing::warn!(pipeline = %shared.options.pipeline, %code, attempt = backoff.failures(),
                    delay_ms = delay.as_millis() as u64, "the source waits: {text}");
                shared.set_stage(Stage::Waiting { cause: text, code: code.to_string(), attempt: backoff.failures() });
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = told_to_stop(&mut stop) => return Ended::Stopped,
                }
            }
            Ended::Stopped | Ended::Final { .. } => return ended,
        }
    }
}

pub(super) async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

async fn stopped_before_streaming(shared: &Arc<Shared>) {
    told_to_stop(&mut shared.stop.subscribe()).await;
    if shared.sight.lock().stage == Stage::Streaming {
        std::future::pending::<()>().await;
    }
}

/// What the server shows.
pub(super) struct Seen {
    pub(super) server: ServerFacts,
    slot: Option<SlotFacts>,
    publication: Option<PublicationFacts>,
    pub(super) tables: MatchedTables,
}

async fn see(sql: &SqlConnection, options: &CaptureOptions) -> Result<Seen, Ended> {
    let server = ServerFacts::read(sql).await.map_err(|error| Ended::later(&error))?;
    let slot = SlotFacts::read(sql, server.major(), &options.slot).await.map_err(|error| Ended::later(&error))?;
    let publication = PublicationFacts::read(sql, server.major(), &options.publication).await;
    let publication = publication.map_err(|error| Ended::later(&error))?;
    let tables = tables(sql, options, publication.as_ref()).await?;
    Ok(Seen { server, slot, publication, tables })
}

pub(super) async fn tables(
    sql: &SqlConnection,
    options: &CaptureOptions,
    publication: Option<&PublicationFacts>,
) -> Result<MatchedTables, Ended> {
    let published = publication.map(|facts| facts.tables.as_slice()).unwrap_or_default();
    read_tables(sql, &options.patterns(), published).await.map_err(|error| Ended::later(&error))
}

/// The tables as they are now, for a plan, and a note of each that would be parked. No side effect.
pub(super) async fn look(options: &CaptureOptions) -> Result<(Vec<TableSpec>, Vec<String>), Ended> {
    let sql = options.sql().await.map_err(|error| Ended::later(&error))?;
    let seen = see(&sql, options).await?;
    let plan = plan_publication(&options.publication, seen.publication.as_ref(), &seen.tables.tables);
    let (mut specs, mut notes) = (Vec::new(), Vec::new());
    for facts in seen.tables.tables.iter().filter(|facts| !plan.refused.contains(&facts.shape.name)) {
        let record = fresh(facts, 0, TablePhase::Waiting, None);
        match Captured::new(&record, facts, options) {
            Ok(table) => specs.push(table.spec()),
            Err(Parked { code, reason }) => {
                notes.push(format!("{} would be parked, its neighbours go on: {reason} ({code})", facts.shape.name));
            }
        }
    }
    Ok((specs, notes))
}

/// `snapshot.lock_timeout`.
pub(super) const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// One connection, from the decision to the stream's end.
async fn attempt(
    shared: &Arc<Shared>,
    copies: &mut Copies,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, Ended> {
    // Before anything is looked at: what comes meanwhile is seen, or starts this anew.
    let (mut reopened, mut ordered) = (shared.reopened.subscribe(), shared.ordered.subscribe());
    reopened.mark_unchanged();
    ordered.mark_unchanged();
    // Each attempt asks the destinations anew: who has mended one has the table copied again.
    shared.unfit.send_modify(std::collections::BTreeMap::clear);
    shared.set_stage(Stage::Starting);
    let generation = shared.handover.generation();
    shared.progress.lock().restart();
    let options = &shared.options;
    let sql = options.sql().await.map_err(|error| Ended::later(&error))?;
    let seen = see(&sql, options).await?;
    let publication = plan_publication(&options.publication, seen.publication.as_ref(), &seen.tables.tables);
    warn_of_unused(shared, &sql, &seen).await?;
    let record = shared.record();
    let switch = match &record {
        Some(record) if record.timeline != seen.server.timeline => {
            history(options, seen.server.timeline, record.timeline).await?
        }
        _ => None,
    };
    let facts =
        Facts { server: &seen.server, slot: seen.slot.as_ref(), publication: &publication, switch_point: switch };
    let decision = decide(&options.startup(), &facts, record.as_ref());
    tracing::debug!(pipeline = %options.pipeline, ?decision, "start of the source");
    let starts = match decision {
        Decision::Refuse(problem) => return Err(Ended::last(&problem)),
        Decision::Wait(problem) => return Err(Ended::later(&problem)),
        Decision::FirstStart { drops_orphan } => {
            first_start(shared, &sql, &seen, &publication, drops_orphan, generation).await?
        }
        Decision::Adopt { at } => adopt(shared, &seen, at, generation).await?,
        Decision::Resume { raises_epoch, adds, .. } => {
            for table in &adds {
                match add_table_locked(&sql, &options.publication, table, LOCK_WITHIN).await {
                    Ok(()) => {
                        tracing::info!(pipeline = %options.pipeline, %table, "table added to the publication");
                    }
                    // Somebody writes to it for long: its neighbours do not wait for that, and it is looked for again.
                    Err(error) => tracing::warn!(pipeline = %options.pipeline, %table, "not added yet: {error}"),
                }
            }
            resume(shared, &sql, &seen, raises_epoch, copies, generation).await?
        }
    };
    drop(sql);
    let starting = Starting { generation, starts, copies, reopened: &mut reopened, ordered: &mut ordered };
    stream(shared, starting, backoff).await
}

/// Says once what of `tables` decides nothing: it may be a name that was meant otherwise.
async fn warn_of_unused(shared: &Shared, sql: &SqlConnection, seen: &Seen) -> Result<(), Ended> {
    if shared.has_judged_choices.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let options = &shared.options;
    let near = nearest_tables(sql, &options.patterns(), &seen.tables).await.map_err(|error| Ended::later(&error))?;
    let choices: Vec<Choice<'_>> = options.tables.iter().map(choice_of).collect();
    for finding in unused(&seen.tables, &choices, &near) {
        let code = finding.code.map(|code| code.to_string()).unwrap_or_default();
        let help = finding.help.unwrap_or_default();
        tracing::warn!(pipeline = %options.pipeline, code, "{}; {help}", finding.text);
    }
    Ok(())
}

fn choice_of(choice: &TableChoice) -> Choice<'_> {
    Choice { pattern: &choice.pattern, columns: choice.rows.columns.keys().collect() }
}

/// Where the server left the record's timeline.
async fn history(options: &CaptureOptions, now: u32, stored: u32) -> Result<Option<Lsn>, Ended> {
    let mut connection =
        ReplicationConnection::connect(&options.connect).await.map_err(|error| Ended::later(&error))?;
    let switches = connection.timeline_history(now).await.map_err(|error| Ended::later(&error))?;
    Ok(switch_point(switches.into_iter().map(|switch| (switch.timeline, switch.at)), stored))
}
