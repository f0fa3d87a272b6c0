//! `landfall verify`: the tables of a captured database against the tables they landed in, at one position (P105–P108).
//!
//! A temporary slot gives a position S and a snapshot of the source at S; the pipeline says when everything before S is
//! durable in its sinks. Then both sides are read, brought to the same types and hashed. No lock is taken and no writer
//! or pipeline waits. Memory does not grow with the tables. It repairs nothing (P109), and it keeps no rate and no
//! schedule (P110).

mod compare;
mod digest;
mod source;
mod standing;
mod target;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arrow_schema::{FieldRef, Schema};
use landfall_engine::SourceRecordPlace;
use landfall_engine::contract::{PipelineId, is_hidden};
use landfall_postgres::{
    CaptureOptions, Lsn, RowPlan, SourceRecord, SqlConnection, TableFacts, has_pending_changes, meta_columns,
};
use landfall_state::{StateLook, StateReader};

use crate::assembly;
use crate::cli::{ServerArgs, VerifyArgs};
use crate::config::{self, Config, PipelineConfig, PostgresConfig, SinkKind};
use crate::endpoint::{Endpoint, EndpointError};
use crate::exit::Exit;
use crate::logging;

use compare::{Compared, compare};
use standing::{Served, Standing, TableStanding};
use target::TargetTable;
use verdict::{TableVerdict, Verdict, Word};

pub(crate) use compare::Side;
pub(crate) use source::SourceSnapshot;

/// Runs it. What keeps it from an answer is printed, and is exit code 2: 1 says that tables are unequal.
pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<Exit> {
    logging::start(false, "error");
    let loaded = config::load(&args.config);
    if !loaded.findings.is_empty() {
        eprintln!("{}", loaded.render());
    }
    let Some(config) = loaded.config else { return Ok(Exit::Second) };
    let runtime = crate::run::runtime(2)?;
    match runtime.block_on(verify(&config, args)) {
        Ok(verdict) => {
            verdict.print(args.json)?;
            Ok(verdict.exit())
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            Ok(Exit::Second)
        }
    }
}

/// What is compared with what.
struct Subject<'a> {
    config: &'a Config,
    pipeline: &'a PipelineConfig,
    capture: &'a PostgresConfig,
    options: CaptureOptions,
    /// The paths of the Delta tables, with the place of the table's name, by sink.
    targets: Vec<(&'a str, &'a Path)>,
}

impl<'a> Subject<'a> {
    fn of(config: &'a Config, name: &str) -> anyhow::Result<Self> {
        let pipeline = config.pipelines.iter().find(|pipeline| pipeline.name == name).with_context(|| {
            let known: Vec<&str> = config.pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect();
            format!("there is no pipeline `{name}` in the configuration; there are: {}", known.join(", "))
        })?;
        let capture = pipeline.capture();
        let capture =
            capture.with_context(|| format!("pipeline `{name}` captures no database: nothing to compare with"))?;
        let targets = pipeline.sinks.iter().filter_map(|sink| match &sink.kind {
            SinkKind::Delta(delta) => Some((sink.name.as_str(), Path::new(&delta.path))),
            _ => None,
        });
        let targets: Vec<_> = targets.collect();
        anyhow::ensure!(!targets.is_empty(), "pipeline `{name}` has no Delta sink: only those can be read back");
        Ok(Subject {
            config,
            pipeline,
            capture,
            options: assembly::capture::options(&pipeline.id, capture, true),
            targets,
        })
    }

    /// The process that runs it, if one answers.
    async fn served(&self, args: &VerifyArgs) -> anyhow::Result<Option<Endpoint>> {
        let server = match &args.server {
            Some(server) => server.clone(),
            None => format!("http://{}", self.config.server.listen),
        };
        let endpoint = Endpoint::new(&ServerArgs { server, token: args.token.clone() })?;
        match endpoint.status().await {
            Ok(_) => Ok(Some(endpoint)),
            Err(error) => match error.downcast_ref::<EndpointError>() {
                // A server that was named must answer; one that was not may not be there.
                Some(EndpointError::Unreachable { .. }) if args.server.is_none() => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Where the pipeline stands by what is stored, while no process runs.
    fn stored(&self) -> anyhow::Result<Standing> {
        let directory = &self.config.data_dir;
        let reader = match StateReader::look(directory)? {
            StateLook::Readable(reader) => reader,
            StateLook::Absent => {
                anyhow::bail!("nothing is stored in {}: start `landfall run` once", directory.display())
            }
            StateLook::InUse => anyhow::bail!(
                "a process runs on {} and does not answer at {}: name its address with --server",
                directory.display(),
                self.config.server.listen
            ),
            StateLook::NeedsRecovery => anyhow::bail!(
                "the last process on {} was killed: start `landfall run`, and verify beside it",
                directory.display()
            ),
        };
        let place = SourceRecordPlace::of(
            &PipelineId(self.pipeline.id.clone()),
            &assembly::source_identity(&self.options.slot),
        );
        let record = reader.read(place.table, &place.key)?;
        let record = record.context("no progress of this pipeline is stored: start `landfall run` once")?;
        Ok(Standing::of_record(&SourceRecord::decode(&record)?))
    }

    /// A pipeline that does not run has everything before S only if its slot holds nothing more.
    async fn must_be_complete(&self, standing: &Standing, position: Lsn) -> anyhow::Result<()> {
        let sql = SqlConnection::open(&self.options.connect).await?;
        let (slot, publication) = (&self.options.slot, &self.options.publication);
        let is_behind = standing.through < position
            && has_pending_changes(&sql, slot, publication, standing.through, position).await?;
        anyhow::ensure!(
            !is_behind,
            "pipeline `{}` does not run and has not taken all changes before {position} (it stands at {}): start \
             `landfall run`, and verify beside it",
            self.pipeline.name,
            standing.through
        );
        Ok(())
    }
}

/// Compares, and says what was found.
pub(crate) async fn verify(config: &Config, args: &VerifyArgs) -> anyhow::Result<Verdict> {
    let subject = Subject::of(config, &args.pipeline)?;
    let endpoint = subject.served(args).await?;
    let served = endpoint.as_ref().map(|endpoint| Served { endpoint, pipeline: &args.pipeline });
    // Asked before the snapshot is taken: a pipeline that cannot be found must not cost the source a snapshot.
    let before = match &served {
        Some(served) => served.look().await?,
        None => subject.stored()?,
    };
    let snapshot = SourceSnapshot::take(&subject.options).await?;
    let position = snapshot.position();
    let standing = match &served {
        Some(served) => served.wait_until(position, Duration::from_secs(args.within)).await?,
        None => {
            subject.must_be_complete(&before, position).await?;
            before
        }
    };
    let mut verdicts = Vec::new();
    for name in chosen(&args.tables, &standing, &snapshot)? {
        for (sink, template) in &subject.targets {
            let label = if subject.targets.len() > 1 { format!("{name} at {sink}") } else { name.clone() };
            let mut verdict = match comparable(&subject, &standing, &snapshot, &name) {
                Ok((facts, table)) => {
                    let path = assembly::table_sinks::place_of(template, &table.target);
                    of_table(&subject, &snapshot, facts, path, args, &label)
                        .await
                        .unwrap_or_else(|error| TableVerdict::unknown(&label, format!("{error:#}")))
                }
                Err(verdict) => *verdict,
            };
            if let (Word::Unequal, Some(served)) = (verdict.verdict, &served) {
                // A copy that began since then takes rows out of the table that its state at S needs.
                let now = served.look().await?;
                if !now.table(&name).is_some_and(TableStanding::follows) {
                    verdict =
                        TableVerdict::unknown(&label, "it is being copied again: verify it afterwards".to_owned());
                }
            }
            verdicts.push(verdict);
        }
    }
    Ok(Verdict::new(&args.pipeline, position.to_string(), verdicts))
}

/// The tables to look at: those that were named, else all that the pipeline carries or should.
fn chosen(named: &[String], standing: &Standing, snapshot: &SourceSnapshot) -> anyhow::Result<Vec<String>> {
    let mut known: Vec<String> = standing.tables.iter().map(|table| table.name.clone()).collect();
    known.extend(snapshot.tables().iter().map(|table| table.shape.name.to_string()));
    known.sort_unstable();
    known.dedup();
    if named.is_empty() {
        // A table that was dropped at the source and is not followed any more is no part of the comparison.
        let is_removed = |name: &String| standing.table(name).is_some_and(|table| table.phase == "removed");
        return Ok(known.into_iter().filter(|name| !is_removed(name)).collect());
    }
    let mut tables = Vec::new();
    for text in named {
        let fits = |name: &&String| *name == text || name.strip_suffix(text).is_some_and(|front| front.ends_with('.'));
        let found: Vec<&String> = known.iter().filter(fits).collect();
        match found.as_slice() {
            [one] => tables.push((*one).clone()),
            [] => anyhow::bail!("there is no table `{text}` in this pipeline; there are: {}", known.join(", ")),
            several => anyhow::bail!("`{text}` may be {several:?}: write schema.table"),
        }
    }
    Ok(tables)
}

/// The table on both sides, or why it is not compared.
fn comparable<'s>(
    subject: &Subject<'_>,
    standing: &'s Standing,
    snapshot: &'s SourceSnapshot,
    name: &str,
) -> Result<(&'s TableFacts, &'s TableStanding), Box<TableVerdict>> {
    let unknown = |reason: String| Box::new(TableVerdict::unknown(name, reason));
    let Some(table) = standing.table(name) else {
        return Err(unknown("the pipeline does not carry it yet".to_owned()));
    };
    if let Some(reason) = &table.parked {
        return Err(Box::new(TableVerdict::parked(name, reason)));
    }
    if !table.follows() {
        return Err(unknown(format!("its phase is `{}`: verify it once it is streaming", table.phase)));
    }
    let facts = snapshot.tables().iter().find(|facts| facts.shape.name.to_string() == name);
    let Some(facts) = facts else {
        return Err(unknown("the source has no table of this name: it was dropped or renamed".to_owned()));
    };
    if assembly::capture::query_of(&subject.capture.tables, name).is_some() {
        return Err(unknown("it has a query of its own (`sql`): its target is not a copy of it".to_owned()));
    }
    if facts.shape.key().next().is_none() {
        return Err(unknown("it has no key: equal rows cannot be told apart".to_owned()));
    }
    Ok((facts, table))
}

async fn of_table(
    subject: &Subject<'_>,
    snapshot: &SourceSnapshot,
    facts: &TableFacts,
    path: PathBuf,
    args: &VerifyArgs,
    label: &str,
) -> anyhow::Result<TableVerdict> {
    let (schema, table) = (&facts.shape.name.schema, &facts.shape.name.table);
    let choice = subject.options.tables.iter().find(|choice| choice.pattern.matches(schema, table));
    let rows = choice.context("no pattern of the configuration means it")?.rows.clone();
    let plan = Arc::new(RowPlan::new(Arc::new(facts.shape.clone()), rows)?);
    let key = facts.shape.key().filter_map(|at| facts.shape.columns.get(at)).map(|column| column.name.to_string());
    let target = TargetTable::open(&path, key.collect(), snapshot.position()).await?;
    if args.counts {
        let (own, other) = futures::try_join!(snapshot.count(facts), target.count())?;
        return Ok(TableVerdict::counted(label, own, other));
    }
    let compared = compared_columns(&plan, target.schema());
    let (present, only_there) = target_columns(&compared, target.schema());
    let target = target.with_columns(present);
    let source = snapshot.table(facts, plan);
    let found = compare(&source, &target, &compared, uuid::Uuid::new_v4().as_u64_pair()).await?;
    let verdict = TableVerdict::compared(label, &found, &compared, args.show_values)?;
    Ok(TableVerdict { refused_rows: source.refused(), columns_not_compared: only_there, ..verdict })
}

/// The source's columns, in the target's types where it has them.
fn compared_columns(plan: &RowPlan, target: &Schema) -> Compared {
    let columns = &plan.shape().columns;
    let fields = plan.schema().fields().iter().take(columns.len()).map(|field| -> FieldRef {
        let at_target = target.field_with_name(field.name()).ok();
        Arc::new(
            field.as_ref().clone().with_data_type(at_target.unwrap_or(field).data_type().clone()).with_nullable(true),
        )
    });
    Compared { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())), key: plan.shape().key().collect() }
}

/// Of the target's columns: those that are compared, and those that only it has.
fn target_columns(compared: &Compared, target: &Schema) -> (Vec<String>, Vec<String>) {
    let is_ours = |name: &str| {
        is_hidden(name)
            || [
                meta_columns::OP,
                meta_columns::COMMIT_LSN,
                meta_columns::SEQ,
                meta_columns::COMMIT_TS,
                meta_columns::XID,
            ]
            .contains(&name)
    };
    let names = target.fields().iter().map(|field| field.name().clone()).filter(|name| !is_ours(name));
    names.partition(|name| compared.schema.field_with_name(name).is_ok())
}
