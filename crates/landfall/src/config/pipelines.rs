//! `pipelines`: the keys of E140, bounded, with the query's place in the file.

use std::time::Duration;

use landfall_types::{ByteSize, Timestamp};

use super::capture::{self, PostgresConfig};
use super::finding::{Finding, codes};
use super::process::ProcessConfig;
use super::section::Section;
use super::sinks::{self, SinkConfig};
use super::text::{Mark, Node, Value, excerpt};

/// One entry of `pipelines`. What is unset takes the engine's own default.
#[derive(Clone, Debug)]
pub(crate) struct PipelineConfig {
    /// Its name.
    pub(crate) name: String,
    /// `id`; the name if unset. Part of every stored position.
    pub(crate) id: String,
    /// Where it stands.
    pub(crate) mark: Mark,
    /// `from`.
    pub(crate) from: FromConfig,
    /// `threads`.
    pub(crate) threads: Option<usize>,
    /// `poll.max_rows`.
    pub(crate) poll_max_rows: usize,
    /// `poll.max_bytes`.
    pub(crate) poll_max_bytes: ByteSize,
    /// `decode`.
    pub(crate) decode: DecodeConfig,
    /// `sql`.
    pub(crate) sql: Option<QueryText>,
    /// `on_error`.
    pub(crate) on_error: Policies,
    /// `max_bad_fraction`.
    pub(crate) max_bad_fraction: Option<f64>,
    /// `max_bad_rows`.
    pub(crate) max_bad_rows: Option<u32>,
    /// `to`.
    pub(crate) sinks: Vec<SinkConfig>,
    /// `batch.rows`.
    pub(crate) batch_rows: Option<usize>,
    /// `batch.bytes`.
    pub(crate) batch_bytes: Option<ByteSize>,
    /// `batch.age`.
    pub(crate) batch_age: Option<Duration>,
    /// `queue.max_chunks`.
    pub(crate) queue_max_chunks: Option<usize>,
    /// `queue.max_bytes`.
    pub(crate) queue_max_bytes: Option<ByteSize>,
    /// `chunk.target_bytes`.
    pub(crate) chunk_target_bytes: Option<ByteSize>,
    /// `retry`.
    pub(crate) retry: RetryConfig,
    /// `checkpoint.interval`.
    pub(crate) checkpoint_interval: Option<Duration>,
    /// `checkpoint.max_pending_batches`.
    pub(crate) max_pending_batches: u32,
    /// `checkpoint.max_pending_bytes`.
    pub(crate) max_pending_bytes: Option<ByteSize>,
    /// `stalled_after`.
    pub(crate) stalled_after: Duration,
    /// `idle_flush`.
    pub(crate) idle_flush: Option<Duration>,
    /// `drain_timeout`.
    pub(crate) drain_timeout: Duration,
    /// `restart.initial`.
    pub(crate) restart_initial: Option<Duration>,
    /// `restart.max`.
    pub(crate) restart_max: Option<Duration>,
    /// `backpressure.max_inflight_bytes`.
    pub(crate) max_inflight_bytes: Option<ByteSize>,
    /// `backpressure.low_ratio`.
    pub(crate) low_ratio: Option<f64>,
    /// `dead_letters.channel`.
    pub(crate) dead_letters: Option<String>,
    /// `on_trimmed: continue`.
    pub(crate) pass_trimmed: bool,
}

impl PipelineConfig {
    /// The channel that dead letters go to.
    pub(crate) fn dead_letter_channel(&self) -> String {
        self.dead_letters.clone().unwrap_or_else(|| format!("_dead_letters.{}", self.id))
    }

    /// The channel that it reads, unless it captures a database.
    pub(crate) fn source_channel(&self) -> Option<&str> {
        match &self.from {
            FromConfig::Channel(from) => Some(&from.name),
            FromConfig::Postgres(_) => None,
        }
    }

    /// The database that it captures, unless it reads a channel.
    pub(crate) fn capture(&self) -> Option<&PostgresConfig> {
        match &self.from {
            FromConfig::Channel(_) => None,
            FromConfig::Postgres(from) => Some(from),
        }
    }
}

/// `from`.
#[derive(Clone, Debug)]
pub(crate) enum FromConfig {
    /// Records of a channel.
    Channel(FromChannelConfig),
    /// Tables of a database.
    Postgres(Box<PostgresConfig>),
}

/// `from.channel` and what goes with it.
#[derive(Clone, Debug)]
pub(crate) struct FromChannelConfig {
    /// Its name.
    pub(crate) name: String,
    /// Where that stands.
    pub(crate) mark: Mark,
    /// `from.start`.
    pub(crate) start: StartAt,
}

/// `from.start`: where reading starts when nothing is known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAt {
    /// The first record still there.
    Earliest,
    /// Only what comes after the start.
    Latest,
    /// An offset.
    Offset(u64),
    /// The first record of that time or later.
    Time(Timestamp),
}

/// `sql` with its place, so that a planner's byte can be shown in the file.
#[derive(Clone, Debug)]
pub(crate) struct QueryText {
    /// The query.
    pub(crate) text: String,
    /// Where the value starts.
    pub(crate) mark: Mark,
}

/// `retry`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryConfig {
    /// `initial`.
    pub(crate) initial: Option<Duration>,
    /// `max`.
    pub(crate) max: Option<Duration>,
    /// `multiplier`.
    pub(crate) multiplier: Option<f64>,
    /// `jitter`.
    pub(crate) jitter: Option<f64>,
    /// `max_elapsed`.
    pub(crate) max_elapsed: Option<Duration>,
    /// `attempt_timeout`.
    pub(crate) attempt_timeout: Option<Duration>,
}

/// What happens to a row that cannot be handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// It is set aside with its cause.
    #[default]
    DeadLetter,
    /// It is counted and passed over.
    Skip,
    /// Its partition stops until somebody acts.
    Fail,
}

/// `on_error`, per stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    /// Bytes to columns.
    pub(crate) decode: Policy,
    /// The query and the casts to the sink's types.
    pub(crate) sql: Policy,
    /// The destination.
    pub(crate) sink: Policy,
}

/// `decode`.
#[derive(Clone, Debug)]
pub(crate) enum DecodeConfig {
    /// The payload as one column of bytes.
    Raw,
    /// JSON by a schema.
    Json(JsonConfig),
}

/// `decode.json`.
#[derive(Clone, Debug)]
pub(crate) struct JsonConfig {
    /// Where it stands.
    pub(crate) mark: Mark,
    /// `schema`; empty where it is inferred.
    pub(crate) schema: Vec<SchemaColumn>,
    /// `infer`.
    pub(crate) infer: Option<InferConfig>,
    /// `framing`.
    pub(crate) framing: Framing,
    /// `coerce`.
    pub(crate) coerce: bool,
    /// `duplicates: error`.
    pub(crate) refuse_duplicates: bool,
    /// `unknown: error`.
    pub(crate) refuse_unknown: bool,
}

/// A column of a declared schema.
#[derive(Clone, Debug)]
pub(crate) struct SchemaColumn {
    /// Its name.
    pub(crate) name: String,
    /// Its type as text, `not null` included.
    pub(crate) type_text: String,
    /// `default`, as JSON text.
    pub(crate) default: Option<String>,
    /// `round: half_even`.
    pub(crate) round: bool,
    /// Where the type stands.
    pub(crate) mark: Mark,
}

/// `decode.json.infer`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InferConfig {
    /// How many records are looked at.
    pub(crate) records: usize,
    /// How many bytes are looked at.
    pub(crate) bytes: ByteSize,
    /// How long records are waited for.
    pub(crate) within: Duration,
}

/// How many rows a record holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One JSON text.
    #[default]
    Single,
    /// One JSON text a line.
    Ndjson,
    /// An array, one row an element.
    Array,
}

pub(super) fn read_all(top: &Section<'_>, process: &ProcessConfig) -> Vec<PipelineConfig> {
    let Some(section) = top.section("pipelines") else { return Vec::new() };
    let mut pipelines = Vec::new();
    for (key, node) in section.entries() {
        let path = format!("pipelines.{}", key.name);
        if let Some(pipeline) = Section::of(path, node, section.findings())
            && let Some(config) = read_one(pipeline, &key.name, key.mark, process)
        {
            pipelines.push(config);
        }
    }
    pipelines
}

fn id_is_fit(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-'))
}

fn read_one(section: Section<'_>, name: &str, mark: Mark, process: &ProcessConfig) -> Option<PipelineConfig> {
    let seconds = Duration::from_secs;
    let millis = Duration::from_millis;
    let id = section.text("id").unwrap_or(name).to_owned();
    if !id_is_fit(&id) {
        let text = format!("the pipeline id `{}` is not 1 to 64 of `a`–`z`, `0`–`9`, `.`, `_` and `-`", excerpt(&id));
        let finding = Finding::error(codes::WRONG_TYPE, Some(mark), text);
        section.findings().push(finding.help(format!("rename it, or add `id: …` under `{}`", section.path())));
    }
    let from = read_from(&section)?;
    let poll = section.section("poll");
    let (poll_max_rows, poll_max_bytes) = poll.map_or((None, None), |poll| {
        let read =
            (poll.length("max_rows", 1..=65_536, "rows"), poll.size("max_bytes", ByteSize::kib(4)..=ByteSize::mib(64)));
        poll.finish();
        read
    });
    let mut config = PipelineConfig {
        name: name.to_owned(),
        id,
        mark,
        from,
        threads: section.length("threads", 1..=64, "threads"),
        poll_max_rows: poll_max_rows.unwrap_or(8192),
        poll_max_bytes: poll_max_bytes.unwrap_or(ByteSize::mib(1)),
        decode: read_decode(&section),
        sql: section.text("sql").map(|text| QueryText { text: text.to_owned(), mark: section.mark_of("sql") }),
        on_error: read_policies(&section),
        max_bad_fraction: section.fraction("max_bad_fraction", 0.0..=1.0),
        max_bad_rows: section.count32("max_bad_rows", 1..=1_000_000, "rows"),
        sinks: sinks::read_all(&section),
        batch_rows: None,
        batch_bytes: None,
        batch_age: None,
        queue_max_chunks: None,
        queue_max_bytes: None,
        chunk_target_bytes: None,
        retry: RetryConfig::default(),
        checkpoint_interval: None,
        max_pending_batches: 1024,
        max_pending_bytes: None,
        stalled_after: section.duration("stalled_after", seconds(5)..=seconds(86_400)).unwrap_or(seconds(120)),
        idle_flush: section.duration("idle_flush", millis(1)..=seconds(10)),
        drain_timeout: section
            .duration("drain_timeout", seconds(1)..=process.drain_timeout)
            .unwrap_or(process.drain_timeout),
        restart_initial: None,
        restart_max: None,
        max_inflight_bytes: None,
        low_ratio: None,
        dead_letters: None,
        pass_trimmed: false,
    };
    read_groups(&section, &mut config);
    config.pass_trimmed = section.choice("on_trimmed", &[("stop", false), ("continue", true)]).unwrap_or(false);
    section.not_yet("on_damage", "remove it: a damaged range is passed over, counted and named");
    section.not_yet("breaker", "remove it: `retry` bounds the attempts");
    if config.capture().is_some() {
        for key in ["decode", "sql"] {
            if section.get(key).is_some() {
                let text =
                    format!("`{}.{key}` is for records; the rows of a database are columns already", section.path());
                let mark = Some(section.mark_of(key));
                section.findings().push(
                    Finding::error(codes::CONTRADICTION, mark, text)
                        .help("remove it; a query of a table stands at `from.postgres.tables.<table>.sql`"),
                );
            }
        }
    }
    section.finish();
    Some(config)
}

fn read_groups(section: &Section<'_>, config: &mut PipelineConfig) {
    let millis = Duration::from_millis;
    let minutes = |n: u64| Duration::from_secs(n * 60);
    if let Some(batch) = section.section("batch") {
        config.batch_rows = batch.length("rows", 1..=10_000_000, "rows");
        config.batch_bytes = batch.size("bytes", ByteSize::mib(1)..=ByteSize::gib(1));
        config.batch_age = batch.duration("age", millis(1)..=minutes(60));
        batch.finish();
    }
    if let Some(queue) = section.section("queue") {
        config.queue_max_chunks = queue.length("max_chunks", 2..=4096, "chunks");
        config.queue_max_bytes = queue.size("max_bytes", ByteSize::kib(64)..=ByteSize::gib(4));
        queue.finish();
    }
    if let Some(chunk) = section.section("chunk") {
        config.chunk_target_bytes = chunk.size("target_bytes", ByteSize::kib(16)..=ByteSize::mib(16));
        chunk.finish();
    }
    if let Some(retry) = section.section("retry") {
        config.retry = RetryConfig {
            initial: retry.duration("initial", millis(1)..=minutes(10)),
            max: retry.duration("max", millis(1)..=minutes(10)),
            multiplier: retry.fraction("multiplier", 1.0..=10.0),
            jitter: retry.fraction("jitter", 0.0..=1.0),
            max_elapsed: retry.duration("max_elapsed", millis(1000)..=minutes(60 * 24 * 30)),
            attempt_timeout: retry.duration("attempt_timeout", millis(1000)..=minutes(60)),
        };
        retry.finish();
    }
    if let Some(checkpoint) = section.section("checkpoint") {
        config.checkpoint_interval = checkpoint.duration("interval", millis(100)..=minutes(5));
        if let Some(pending) = checkpoint.count32("max_pending_batches", 16..=65_536, "batches") {
            if pending.is_power_of_two() {
                config.max_pending_batches = pending;
            } else {
                let near = pending.next_power_of_two().min(65_536);
                let text =
                    format!("`{}.checkpoint.max_pending_batches` is {pending}, not a power of two", section.path());
                checkpoint.error(
                    codes::OUT_OF_BOUNDS,
                    "max_pending_batches",
                    format!("{text}; the nearest above is {near}"),
                );
            }
        }
        config.max_pending_bytes = checkpoint.size("max_pending_bytes", ByteSize::mib(1)..=ByteSize::gib(64));
        checkpoint.finish();
    }
    if let Some(restart) = section.section("restart") {
        config.restart_initial = restart.duration("initial", millis(10)..=minutes(60));
        config.restart_max = restart.duration("max", millis(10)..=minutes(60));
        restart.finish();
    }
    if let Some(backpressure) = section.section("backpressure") {
        config.max_inflight_bytes = backpressure.size("max_inflight_bytes", ByteSize::mib(1)..=ByteSize::gib(64));
        config.low_ratio = backpressure.fraction("low_ratio", 0.1..=0.9);
        backpressure.finish();
    }
    if let Some(dead_letters) = section.section("dead_letters") {
        config.dead_letters = dead_letters.text("channel").map(str::to_owned);
        dead_letters.finish();
    }
}

fn read_from(section: &Section<'_>) -> Option<FromConfig> {
    let Some(from) = section.section("from") else {
        section.missing("from", "{ channel: NAME }");
        return None;
    };
    from.not_yet("kafka", "read a channel; the Kafka source comes with its own release");
    if let Some(postgres) = from.section("postgres") {
        for key in ["channel", "start"] {
            if from.get(key).is_some() {
                let text = format!("`{}` has `postgres` and `{key}`: a pipeline has one source", from.path());
                let help = "keep one of them; what a capture copies first is set at `postgres.snapshot.mode`";
                let finding = Finding::error(codes::CONTRADICTION, Some(from.mark_of(key)), text).help(help);
                from.findings().push(finding);
            }
        }
        from.finish();
        return capture::read(postgres).map(|capture| FromConfig::Postgres(Box::new(capture)));
    }
    let name = from.text("channel").map(str::to_owned);
    let mark = from.mark_of("channel");
    if name.is_none() && from.get("postgres").is_none() {
        from.missing("channel", "NAME");
    }
    let start = match from.get("start") {
        None => StartAt::Earliest,
        Some(node) => read_start(&from, node),
    };
    from.finish();
    Some(FromConfig::Channel(FromChannelConfig { name: name?, mark, start }))
}

fn read_start(from: &Section<'_>, node: &Node) -> StartAt {
    let expected = "`earliest`, `latest`, `{ offset: N }` or `{ time: 2026-01-31T00:00:00Z }`";
    match &node.value {
        Value::Text { text, .. } if text == "earliest" => return StartAt::Earliest,
        Value::Text { text, .. } if text == "latest" => return StartAt::Latest,
        Value::Map(_) => {
            if let Some(at) = from.section("start") {
                let offset = at.count("offset", 0..=u64::MAX - 1, "records");
                let time = at.text("time").map(str::parse::<jiff::Timestamp>);
                at.finish();
                match (offset, time) {
                    (Some(offset), None) => return StartAt::Offset(offset),
                    (None, Some(Ok(time))) => return StartAt::Time(Timestamp(time.as_microsecond())),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    from.error(codes::WRONG_TYPE, "start", format!("`{}.start` takes {expected}", from.path()));
    StartAt::Earliest
}

const POLICIES: &[(&str, Policy)] =
    &[("dead_letter", Policy::DeadLetter), ("skip", Policy::Skip), ("fail", Policy::Fail)];

fn read_policies(section: &Section<'_>) -> Policies {
    match section.get("on_error").map(|node| &node.value) {
        None => Policies::default(),
        Some(Value::Map(_)) => {
            let Some(stages) = section.section("on_error") else { return Policies::default() };
            let policies = Policies {
                decode: stages.choice("decode", POLICIES).unwrap_or_default(),
                sql: stages.choice("sql", POLICIES).unwrap_or_default(),
                sink: stages.choice("sink", POLICIES).unwrap_or_default(),
            };
            stages.finish();
            policies
        }
        Some(_) => {
            let policy = section.choice("on_error", POLICIES).unwrap_or_default();
            Policies { decode: policy, sql: policy, sink: policy }
        }
    }
}

fn read_decode(section: &Section<'_>) -> DecodeConfig {
    match section.get("decode").map(|node| &node.value) {
        None => return DecodeConfig::Raw,
        Some(Value::Text { text, .. }) if text == "raw" => return DecodeConfig::Raw,
        Some(_) => {}
    }
    let Some(decode) = section.section("decode") else { return DecodeConfig::Raw };
    decode.not_yet("proto", "decode JSON or take the bytes with `raw`");
    decode.not_yet("avro", "decode JSON or take the bytes with `raw`");
    decode.not_yet("csv", "decode JSON or take the bytes with `raw`");
    let _raw = decode.get("raw");
    let json = decode.section("json").map(read_json);
    decode.finish();
    json.map_or(DecodeConfig::Raw, DecodeConfig::Json)
}

fn read_json(json: Section<'_>) -> JsonConfig {
    let schema = json.section("schema").map(|schema| read_schema(&schema)).unwrap_or_default();
    let infer = match json.get("infer").map(|node| &node.value) {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(InferConfig::default()),
        Some(_) => json.section("infer").map(|infer| {
            let default = InferConfig::default();
            let read = InferConfig {
                records: infer.length("records", 1..=100_000, "records").unwrap_or(default.records),
                bytes: infer.size("bytes", ByteSize::kib(1)..=ByteSize::mib(64)).unwrap_or(default.bytes),
                within: infer
                    .duration("within", Duration::from_millis(100)..=Duration::from_secs(300))
                    .unwrap_or(default.within),
            };
            infer.finish();
            read
        }),
    };
    if schema.is_empty() && infer.is_none() && json.section("schema").is_none() {
        json.missing("schema", "{ id: bigint, name: string }");
    }
    if !schema.is_empty() && infer.is_some() {
        json.error(codes::CONTRADICTION, "infer", "`schema` is declared and `infer` asks for another: keep one");
    }
    let config = JsonConfig {
        mark: json.mark(),
        schema,
        infer,
        framing: json
            .choice("framing", &[("single", Framing::Single), ("ndjson", Framing::Ndjson), ("array", Framing::Array)])
            .unwrap_or_default(),
        coerce: json.boolean("coerce").unwrap_or(false),
        refuse_duplicates: json.choice("duplicates", &[("last", false), ("error", true)]).unwrap_or(false),
        refuse_unknown: json.choice("unknown", &[("skip", false), ("error", true)]).unwrap_or(false),
    };
    json.finish();
    config
}

impl Default for InferConfig {
    fn default() -> Self {
        InferConfig { records: 1000, bytes: ByteSize::mib(4), within: Duration::from_secs(5) }
    }
}

fn read_schema(schema: &Section<'_>) -> Vec<SchemaColumn> {
    let mut columns = Vec::new();
    for (key, node) in schema.entries() {
        let column = match &node.value {
            Value::Text { text, .. } => Some(SchemaColumn {
                name: key.name.clone(),
                type_text: text.clone(),
                default: None,
                round: false,
                mark: node.mark,
            }),
            Value::Map(_) => {
                Section::of(format!("{}.{}", schema.path(), key.name), node, schema.findings()).and_then(|column| {
                    let type_text = column.text("type").map(str::to_owned);
                    if type_text.is_none() {
                        column.missing("type", "bigint");
                    }
                    let read = SchemaColumn {
                        name: key.name.clone(),
                        type_text: type_text.unwrap_or_default(),
                        default: column.get("default").and_then(as_json),
                        round: column.choice("round", &[("half_even", true)]).unwrap_or(false),
                        mark: column.mark_of("type"),
                    };
                    column.finish();
                    (!read.type_text.is_empty()).then_some(read)
                })
            }
            other => {
                let text =
                    format!("`{}.{}` takes a type like `bigint`, not {}", schema.path(), key.name, other.describe());
                schema.findings().push(Finding::error(codes::WRONG_TYPE, Some(node.mark), text));
                None
            }
        };
        columns.extend(column);
    }
    columns
}

/// A default is given to the decoder as the JSON it stands for.
fn as_json(node: &Node) -> Option<String> {
    let value = match &node.value {
        Value::Bool(value) => serde_json::Value::from(*value),
        Value::Integer(value) => return Some(value.to_string()),
        Value::Float(value) => serde_json::Value::from(*value),
        Value::Text { text, .. } => serde_json::Value::from(text.as_str()),
        Value::Null | Value::List(_) | Value::Map(_) => return None,
    };
    Some(value.to_string())
}
