//! `from.postgres`: a captured database, its tables, and the numbers of the capture (`cdc.md` §12).
//!
//! What the connector itself knows of a value (an URL, a pattern, a policy, the queue's bounds) is asked of it, and its
//! answer is shown where the value stands. Keys of later versions are refused by name, never passed over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use landfall_postgres::{ConnectOptions, Policies, QueueSettings, TablePattern, TlsMode, TlsOptions, check_slot_name};
use landfall_types::{ByteSize, Code, Coded};

use super::finding::{Finding, codes};
use super::pipelines::QueryText;
use super::section::{Section, spell};
use super::text::{Mark, Node, Value};

/// `from.postgres`.
#[derive(Clone, Debug)]
pub(crate) struct PostgresConfig {
    /// Where it stands.
    pub(crate) mark: Mark,
    /// `url`, `password`, `tls`.
    pub(crate) connect: ConnectOptions,
    /// `tables`, in the order of the file: the first pattern that matches a table decides.
    pub(crate) tables: Vec<TableConfig>,
    /// `slot.name`; unset: from the pipeline's id.
    pub(crate) slot: Option<String>,
    /// `slot.create`.
    pub(crate) creates_slot: bool,
    /// `slot.adopt`.
    pub(crate) adopts_slot: bool,
    /// `publication.name`; unset: as the slot.
    pub(crate) publication: Option<String>,
    /// `publication.create`.
    pub(crate) creates_publication: bool,
    /// `origin`, where it is not `any`.
    pub(crate) origin: Option<String>,
    /// `snapshot.mode: initial`; else `never`.
    pub(crate) copies: bool,
    /// `snapshot.connections`.
    pub(crate) copy_connections: Option<usize>,
    /// `snapshot.range`.
    pub(crate) copy_range: Option<ByteSize>,
    /// `snapshot.slot_timeout`.
    pub(crate) slot_timeout: Option<Duration>,
    /// `queue`.
    pub(crate) queue: QueueSettings,
    /// `max_message`.
    pub(crate) max_message: Option<ByteSize>,
    /// `feedback_interval`.
    pub(crate) feedback_interval: Option<Duration>,
    /// `liveness_timeout`.
    pub(crate) liveness_timeout: Option<Duration>,
    /// `linger`.
    pub(crate) linger: Option<Duration>,
    /// `schema.poll`.
    pub(crate) schema_poll: Option<Duration>,
}

/// In a destination's path: the table's own name.
pub(crate) const TABLE_PLACE: &str = "{table}";

impl PostgresConfig {
    /// The replication slot of the pipeline with this id.
    pub(crate) fn slot_name(&self, pipeline: &str) -> String {
        self.slot.clone().unwrap_or_else(|| landfall_postgres::default_slot_name(pipeline))
    }

    /// Whether more than one table may be meant, so that each needs a place of its own.
    pub(crate) fn may_be_several(&self) -> bool {
        self.tables.len() != 1 || self.tables.iter().any(|table| !table.pattern.is_exact())
    }
}

/// `tables.<pattern>`.
#[derive(Clone, Debug)]
pub(crate) struct TableConfig {
    /// Which tables.
    pub(crate) pattern: TablePattern,
    /// `sql`.
    pub(crate) sql: Option<QueryText>,
    /// `values`, over those of the source.
    pub(crate) values: Policies,
    /// `columns.<name>.values`, over those of the table.
    pub(crate) columns: HashMap<Arc<str>, Policies>,
    /// `dropped_partitions: keep`; else `park`.
    pub(crate) keeps_dropped: bool,
}

const SECOND: Duration = Duration::from_secs(1);
const PATTERNS_MAX: usize = 1_000;
/// Columns with policies of their own: a table has no more.
const COLUMNS_MAX: usize = 1_600;

pub(super) fn read(section: Section<'_>) -> Option<PostgresConfig> {
    let connect = read_connect(&section);
    let values = read_values(&section, Policies::default());
    let tables = read_tables(&section, values);
    let (slot, creates_slot, adopts_slot) = read_slot(&section);
    let (publication, creates_publication) = read_publication(&section);
    let snapshot = read_snapshot(&section);
    let queue = read_queue(&section);
    let feedback_interval = section.duration("feedback_interval", SECOND..=60 * SECOND);
    let liveness_timeout = section.duration("liveness_timeout", 3 * SECOND..=3_600 * SECOND);
    let feedback = feedback_interval.unwrap_or(10 * SECOND);
    let liveness = liveness_timeout.unwrap_or(90 * SECOND);
    if liveness <= 3 * feedback {
        let text = format!(
            "`{0}.liveness_timeout` is {1}, not above three times `{0}.feedback_interval` ({2})",
            section.path(),
            spell(liveness),
            spell(feedback)
        );
        let help = "a server that answers in time would count as gone: raise the first or lower the second";
        contradiction(&section, "liveness_timeout", text, help);
    }
    if adopts_slot && snapshot.copies {
        let text = format!(
            "`{0}.slot.adopt` takes a slot over as it stands, `{0}.snapshot.mode: initial` copies",
            section.path()
        );
        contradiction(&section, "slot", text, "add `snapshot: { mode: never }`, or remove `adopt`");
    }
    let origin = section.choice("origin", &[("any", None), ("none", Some("none"))]).flatten();
    let max_message = section.size("max_message", ByteSize::mib(1)..=ByteSize::gib(1));
    let linger = section.duration("linger", Duration::ZERO..=10 * SECOND);
    let schema_poll = read_schema(&section);
    let mark = section.mark();
    refuse_later_keys(&section);
    section.finish();
    Some(PostgresConfig {
        mark,
        connect: connect?,
        tables: tables?,
        slot,
        creates_slot,
        adopts_slot,
        publication,
        creates_publication,
        origin: origin.map(str::to_owned),
        copies: snapshot.copies,
        copy_connections: snapshot.connections,
        copy_range: snapshot.range,
        slot_timeout: snapshot.slot_timeout,
        queue,
        max_message,
        feedback_interval,
        liveness_timeout,
        linger,
        schema_poll,
    })
}

fn contradiction(section: &Section<'_>, key: &str, text: String, help: &str) {
    let finding = Finding::error(codes::CONTRADICTION, Some(section.mark_of(key)), text);
    section.findings().push(finding.help(help));
}

fn refused(section: &Section<'_>, key: &str, code: Code, text: &str) {
    // The connector's messages end with their code, which the finding shows by itself.
    let text = text.strip_suffix(&format!(" ({code})")).unwrap_or(text);
    section.error(code, key, format!("`{}.{key}`: {text}", section.path()));
}

fn read_connect(section: &Section<'_>) -> Option<ConnectOptions> {
    // A variable that is set to nothing is no password.
    let is_empty = |node: &Node| matches!(&node.value, Value::Text { text, substituted: true } if text.is_empty());
    let password = section.get("password").filter(|node| !is_empty(node)).and_then(|_| section.text("password"));
    let tls = section.section("tls").map(|tls| {
        let mode = tls.choice(
            "mode",
            &[
                ("disable", TlsMode::Disable),
                ("prefer", TlsMode::Prefer),
                ("require", TlsMode::Require),
                ("verify_full", TlsMode::VerifyFull),
            ],
        );
        let options = TlsOptions { mode: mode.unwrap_or_default(), ca: tls.text("ca").map(Into::into) };
        tls.finish();
        options
    });
    let Some(url) = section.text("url") else {
        if section.get("url").is_none() {
            section.missing("url", "\"postgres://USER@HOST/DATABASE\"");
        }
        return None;
    };
    match ConnectOptions::parse(url, password, tls) {
        Ok(connect) => Some(connect),
        Err(error) => {
            refused(section, "url", error.code(), &error.to_string());
            None
        }
    }
}

fn read_tables(section: &Section<'_>, of_source: Policies) -> Option<Vec<TableConfig>> {
    const EXAMPLE: &str = "{ \"public.*\": {} }";
    let tables = match section.section("tables") {
        Some(tables) => tables,
        None => {
            if section.get("tables").is_none() {
                section.missing("tables", EXAMPLE);
            }
            return None;
        }
    };
    let entries = tables.entries();
    if entries.is_empty() {
        section.missing("tables", EXAMPLE);
    }
    if entries.len() > PATTERNS_MAX {
        let text = format!("`{}` has {} entries; at most {PATTERNS_MAX} are taken", tables.path(), entries.len());
        section.error(codes::OUT_OF_BOUNDS, "tables", text);
        return None;
    }
    let mut read = Vec::with_capacity(entries.len());
    for (key, node) in entries {
        let pattern = key.name.parse::<TablePattern>();
        if let Err(error) = &pattern {
            let text = error.to_string();
            section.findings().push(Finding::error(codes::WRONG_TYPE, Some(key.mark), text));
        }
        let table = Section::of(format!("{}.{}", tables.path(), key.name), node, section.findings());
        if let (Some(table), Ok(pattern)) = (table, pattern) {
            read.push(read_table(table, pattern, of_source));
        }
    }
    Some(read)
}

fn read_table(table: Section<'_>, pattern: TablePattern, of_source: Policies) -> TableConfig {
    let values = read_values(&table, of_source);
    let mut columns = HashMap::new();
    if let Some(section) = table.section("columns") {
        if section.entries().len() > COLUMNS_MAX {
            let text = format!("`{}` names more than {COLUMNS_MAX} columns, the most of a table", section.path());
            table.error(codes::OUT_OF_BOUNDS, "columns", text);
        }
        for (key, node) in section.entries().iter().take(COLUMNS_MAX) {
            let path = format!("{}.{}", section.path(), key.name);
            if let Some(column) = Section::of(path, node, section.findings()) {
                columns.insert(Arc::from(key.name.as_str()), read_values(&column, values));
                column.finish();
            }
        }
    }
    refuse_unless_full(&table);
    for key in ["key", "mode", "table", "order_by", "partition_by", "deletes", "truncate", "nulls", "drop", "on_park"] {
        table.not_yet(key, "remove it: it comes later. A Delta table holds the history of changes, a row each");
    }
    let keeps_dropped = table.choice("dropped_partitions", &[("park", false), ("keep", true)]).unwrap_or(false);
    let sql = table.text("sql").map(|text| QueryText { text: text.to_owned(), mark: table.mark_of("sql") });
    table.finish();
    TableConfig { pattern, sql, values, columns, keeps_dropped }
}

/// `toast`: what this version serves is the default.
fn refuse_unless_full(section: &Section<'_>) {
    if section.choice("toast", &[("require_full", false), ("merge", true)]) == Some(true) {
        let text = format!("`{}.toast: merge` is not served by this version", section.path());
        let finding = Finding::error(codes::NOT_YET, Some(section.mark_of("toast")), text);
        section.findings().push(finding.help("it comes later: set REPLICA IDENTITY FULL on tables with large values"));
    }
}

/// `values` over those of the level above.
fn read_values(section: &Section<'_>, above: Policies) -> Policies {
    let mut policies = above;
    let Some(values) = section.section("values") else { return policies };
    fn set<T: std::str::FromStr<Err = landfall_postgres::PolicyError>>(
        values: &Section<'_>,
        key: &'static str,
        take: impl FnOnce(T),
    ) {
        match values.word(key).map(str::parse::<T>) {
            Some(Ok(policy)) => take(policy),
            Some(Err(error)) => refused(values, key, error.code(), &error.to_string()),
            None => {}
        }
    }
    set(&values, "nan", |policy| policies.nan = policy);
    set(&values, "infinity", |policy| policies.infinity = policy);
    set(&values, "out_of_range", |policy| policies.out_of_range = Some(policy));
    set(&values, "invalid_text", |policy| policies.invalid_text = policy);
    set(&values, "numeric_unbounded", |policy| policies.numeric_unbounded = policy);
    set(&values, "array_shape", |policy| policies.array_shape = policy);
    values.finish();
    policies
}

fn read_slot(section: &Section<'_>) -> (Option<String>, bool, bool) {
    let Some(slot) = section.section("slot") else { return (None, true, false) };
    let name = slot.text("name").map(str::to_owned);
    if let Some(Err(error)) = name.as_deref().map(check_slot_name) {
        slot.error(codes::WRONG_TYPE, "name", format!("`{}.name`: {error}", slot.path()));
    }
    let read = (name, slot.boolean("create").unwrap_or(true), slot.boolean("adopt").unwrap_or(false));
    slot.not_yet("failover", "remove it: slots that follow a failover come later");
    slot.finish();
    read
}

fn read_publication(section: &Section<'_>) -> (Option<String>, bool) {
    const NAME_BYTES_MAX: usize = 63;
    let Some(publication) = section.section("publication") else { return (None, true) };
    let name = publication.text("name").map(str::to_owned);
    if let Some(long) = name.as_ref().filter(|name| name.len() > NAME_BYTES_MAX) {
        let text = format!(
            "`{}.name` has {} bytes; a name of Postgres has at most {NAME_BYTES_MAX}",
            publication.path(),
            long.len()
        );
        publication.error(codes::OUT_OF_BOUNDS, "name", text);
    }
    let creates = publication.boolean("create").unwrap_or(true);
    publication.finish();
    (name, creates)
}

struct Snapshot {
    copies: bool,
    connections: Option<usize>,
    range: Option<ByteSize>,
    slot_timeout: Option<Duration>,
}

fn read_snapshot(section: &Section<'_>) -> Snapshot {
    let Some(snapshot) = section.section("snapshot") else {
        return Snapshot { copies: true, connections: None, range: None, slot_timeout: None };
    };
    let read = Snapshot {
        copies: snapshot.choice("mode", &[("initial", true), ("never", false)]).unwrap_or(true),
        connections: snapshot.length("connections", 1..=64, "connections"),
        range: snapshot.size("range", ByteSize::mib(8)..=ByteSize::gib(16)),
        slot_timeout: snapshot.duration("slot_timeout", SECOND..=3_600 * SECOND),
    };
    snapshot.not_yet("lock_timeout", "remove it: it comes later");
    snapshot.not_yet("add", "remove it: it comes later");
    snapshot.finish();
    read
}

/// How often the catalog is asked for tables that are new.
fn read_schema(section: &Section<'_>) -> Option<Duration> {
    let schema = section.section("schema")?;
    let poll = schema.duration("poll", SECOND..=86_400 * SECOND);
    schema.not_yet("event_trigger", "remove it: it comes later");
    schema.finish();
    poll
}

fn read_queue(section: &Section<'_>) -> QueueSettings {
    let default = QueueSettings::default();
    let Some(queue) = section.section("queue") else { return default };
    let bytes = |size: ByteSize| usize::try_from(size.get()).unwrap_or(usize::MAX);
    let read = QueueSettings {
        batch_records: queue.length("batch_records", 1..=65_536, "records").unwrap_or(default.batch_records),
        batch_bytes: queue.size("batch_bytes", ByteSize::kib(4)..=ByteSize::mib(16)).map_or(default.batch_bytes, bytes),
        max_records: queue.count("max_records", 2..=1_000_000_000, "records").unwrap_or(default.max_records),
        max_bytes: queue
            .size("max_bytes", ByteSize::mib(1)..=ByteSize::gib(8))
            .map_or(default.max_bytes, |size| size.get()),
        idle_interval: queue
            .duration("idle_interval", Duration::from_millis(1)..=10 * SECOND)
            .unwrap_or(default.idle_interval),
    };
    // What the bounds of single keys leave open: that two bundles fit.
    if let Err(error) = read.check() {
        queue.error(
            codes::CONTRADICTION,
            error.key,
            format!("`{}.{}` is {}; it may be {}", queue.path(), error.key, error.value, error.bounds),
        );
    }
    queue.finish();
    read
}

fn refuse_later_keys(section: &Section<'_>) {
    refuse_unless_full(section);
    for (key, instead) in [
        ("transport_events", "remove it: the transport reads no further ahead than one message"),
        ("heartbeat", "remove it: keepalives move the slot of an idle database"),
        ("streaming", "remove it: a large transaction flows through once it is committed, in constant memory"),
        ("txn", "remove it: it belongs to `streaming`, which comes later"),
        ("net_keys", "remove it: tables with a deferrable key come later"),
        ("order", "remove it: rows keep their order within a table"),
        ("on_park", "remove it: a parked table waits for `landfall tables … resync`"),
        ("row_error_limit", "use `max_bad_rows` and `max_bad_fraction` of the pipeline"),
        ("backlog", "remove it: a slow table holds its own rows back in memory"),
        ("wal_held_warn", "remove it: `landfall check` and the status show what the slot holds"),
        ("resync", "remove it: nothing is copied again by itself"),
        ("primary_url", "name the primary in `url`; a standby as the source comes later"),
        ("before", "remove it: the row before a change comes later"),
        ("messages", "remove it: logical messages come later"),
        ("verify", "remove it: `landfall verify` comes later"),
    ] {
        section.not_yet(key, instead);
    }
}
