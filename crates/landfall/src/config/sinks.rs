//! `pipelines.<name>.to`: one sink whose kind is its name, or up to eight named ones (E136).

use std::path::PathBuf;
use std::time::Duration;

use landfall_types::ByteSize;

use super::finding::{Finding, codes};
use super::pipelines::QueryText;
use super::section::Section;
use super::text::{Mark, Node, Value, excerpt};

/// One sink of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct SinkConfig {
    /// Its name: its kind where it is the only one.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) mark: Mark,
    /// What it is.
    pub(crate) kind: SinkKind,
    /// `where`: which rows it gets.
    pub(crate) filter: Option<QueryText>,
}

/// What a sink writes to.
#[derive(Clone, Debug)]
pub(crate) enum SinkKind {
    /// A Delta table.
    Delta(DeltaConfig),
    /// Files in a directory.
    Files(FilesConfig),
    /// Another channel.
    Channel(ToChannelConfig),
}

/// Compression of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// None.
    None,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
    /// Zstandard, level 3.
    Zstd,
}

/// `to.delta`.
#[derive(Clone, Debug)]
pub(crate) struct DeltaConfig {
    /// `path`.
    pub(crate) path: PathBuf,
    /// `create`.
    pub(crate) create: bool,
    /// `partition_by`.
    pub(crate) partition_by: Vec<String>,
    /// `properties`.
    pub(crate) properties: Vec<(String, String)>,
    /// `hidden`.
    pub(crate) hidden: bool,
    /// `commit_every`.
    pub(crate) commit_every: Option<Duration>,
    /// `target_file_size`.
    pub(crate) target_file_size: Option<ByteSize>,
    /// `row_group_bytes`.
    pub(crate) row_group_bytes: Option<ByteSize>,
    /// `max_open_files`.
    pub(crate) max_open_files: Option<u32>,
    /// `compression`.
    pub(crate) compression: Option<Codec>,
    /// `commit_retries`.
    pub(crate) commit_retries: Option<u32>,
    /// `evolve`: whether new columns are added; unset: as the source's kind has it.
    pub(crate) add_columns: Option<bool>,
    /// `timestamps: ntz`.
    pub(crate) zoneless: bool,
    /// `checkpoint_every`.
    pub(crate) checkpoint_every: Option<u32>,
}

/// `to.files`.
#[derive(Clone, Debug)]
pub(crate) struct FilesConfig {
    /// `path`.
    pub(crate) path: PathBuf,
    /// `format`.
    pub(crate) format: FileFormat,
    /// `compression`.
    pub(crate) compression: Option<Codec>,
    /// `roll.max_bytes`.
    pub(crate) roll_max_bytes: Option<ByteSize>,
    /// `roll.every`.
    pub(crate) roll_every: Option<Duration>,
    /// `hidden`.
    pub(crate) hidden: bool,
}

/// `to.files.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// One JSON object a line.
    Ndjson,
    /// Parquet.
    Parquet,
}

/// `to.channel`.
#[derive(Clone, Debug)]
pub(crate) struct ToChannelConfig {
    /// `name`; for a captured database perhaps with the place of the table's name.
    pub(crate) name: String,
    /// `payload`: the column whose bytes become the record; unset: each row as a JSON object.
    pub(crate) payload: Option<String>,
    /// `key`: the column that becomes the record key.
    pub(crate) key: Option<String>,
}

const KINDS: &[&str] = &["delta", "files", "channel"];
const KINDS_LATER: &[&str] = &["clickhouse", "postgres", "kafka"];
const SINKS_MAX: usize = 8;

pub(super) fn read_all(pipeline: &Section<'_>) -> Vec<SinkConfig> {
    let Some(to) = pipeline.section("to") else {
        pipeline.missing("to", "{ delta: { path: ./lake/NAME } }");
        return Vec::new();
    };
    let mut sinks = Vec::new();
    for (key, node) in to.entries() {
        if KINDS_LATER.contains(&key.name.as_str()) {
            let text = format!("`{}.{}` is not served by this version", to.path(), key.name);
            to.findings()
                .push(Finding::error(codes::NOT_YET, Some(key.mark), text).help("use `delta`, `files` or `channel`"));
            continue;
        }
        if let Some(kind) = short_channel(&key.name, node) {
            sinks.push(SinkConfig { name: key.name.clone(), mark: key.mark, kind, filter: None });
            continue;
        }
        let path = format!("{}.{}", to.path(), key.name);
        let Some(section) = Section::of(path, node, to.findings()) else { continue };
        if KINDS.contains(&key.name.as_str()) {
            sinks.extend(read_kind(section, &key.name, key.name.clone(), key.mark));
            continue;
        }
        let fit = (1..=64).contains(&key.name.len())
            && key.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
        if !fit {
            let text =
                format!("the sink name `{}` is not 1 to 64 of `a`–`z`, `0`–`9`, `_` and `-`", excerpt(&key.name));
            to.findings().push(Finding::error(codes::WRONG_TYPE, Some(key.mark), text));
        }
        let kinds: Vec<_> = section.entries().iter().filter(|(kind, _)| KINDS.contains(&kind.name.as_str())).collect();
        match kinds.as_slice() {
            [(kind, inner)] if section.entries().len() == 1 => {
                if let Some(kind) = short_channel(&kind.name, inner) {
                    sinks.push(SinkConfig { name: key.name.clone(), mark: key.mark, kind, filter: None });
                    continue;
                }
                let path = format!("{}.{}", section.path(), kind.name);
                if let Some(inner) = Section::of(path, inner, to.findings()) {
                    sinks.extend(read_kind(inner, &kind.name, key.name.clone(), key.mark));
                }
            }
            _ => {
                let text = format!("`{}` is neither a kind of sink nor a name with one kind in it", section.path());
                let near = super::section::nearest(&key.name, KINDS);
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write `{}: {{ delta: {{ path: … }} }}`; kinds: {}", key.name, KINDS.join(", ")),
                };
                to.findings().push(Finding::error(codes::UNKNOWN_KEY, Some(key.mark), text).help(help));
            }
        }
    }
    if to.entries().is_empty() {
        to.missing("delta", "{ path: ./lake/NAME }");
    }
    if sinks.len() > SINKS_MAX {
        let text = format!("`{}` has {} sinks; at most {SINKS_MAX} are taken", to.path(), sinks.len());
        to.findings().push(Finding::error(codes::OUT_OF_BOUNDS, Some(to.mark()), text).help("make a second pipeline"));
    }
    sinks
}

/// `channel: NAME`, which is `channel: { name: NAME }`.
fn short_channel(kind: &str, node: &Node) -> Option<SinkKind> {
    match &node.value {
        Value::Text { text, .. } if kind == "channel" && !text.trim().is_empty() => {
            Some(SinkKind::Channel(ToChannelConfig { name: text.clone(), payload: None, key: None }))
        }
        _ => None,
    }
}

fn read_kind(section: Section<'_>, kind: &str, name: String, mark: Mark) -> Option<SinkConfig> {
    let filter = section.text("where").map(|text| QueryText { text: text.to_owned(), mark: section.mark_of("where") });
    section.not_yet("route", "remove it: rows go by their partition");
    section.not_yet("shards", "remove it: a sink has one shard");
    section.not_yet("backfill", "make a second pipeline with `from: { start: earliest }`");
    let kind = match kind {
        "delta" => read_delta(&section).map(SinkKind::Delta),
        "files" => read_files(&section).map(SinkKind::Files),
        _ => read_channel(&section).map(SinkKind::Channel),
    };
    section.finish();
    Some(SinkConfig { name, mark, kind: kind?, filter })
}

fn read_delta(section: &Section<'_>) -> Option<DeltaConfig> {
    section.not_yet("url", "use `path`; object stores come with their own release");
    section.not_yet("optimize", "run it with your own tool; foreign commits are welcome");
    section.not_yet("vacuum", "run it with your own tool; foreign commits are welcome");
    section.not_yet("options", "remove it: local tables have none");
    let written = section.text("path");
    // Taken as a path, `s3://bucket/table` would be a folder named `s3:` that nobody looks into.
    if let Some((scheme, _)) = written.and_then(|path| path.split_once("://")) {
        let text = format!("`{}.path` is a `{scheme}` address; this version lands in local folders", section.path());
        let mark = section.mark_of("path");
        section.findings().push(Finding::error(codes::NOT_YET, Some(mark), text).help("write a path like ./lake/NAME"));
    }
    let path = written.map(PathBuf::from);
    if path.is_none() {
        section.missing("path", "./lake/NAME");
    }
    let mut properties = Vec::new();
    if let Some(map) = section.section("properties") {
        for (key, node) in map.entries() {
            properties.push((key.name.clone(), scalar_text(&map, &key.name, node)?));
        }
    }
    let config = DeltaConfig {
        path: path.clone().unwrap_or_default(),
        create: section.boolean("create").unwrap_or(true),
        partition_by: section.texts("partition_by").unwrap_or_default().into_iter().map(|(column, _)| column).collect(),
        properties,
        hidden: section.boolean("hidden").unwrap_or(false),
        commit_every: section.duration("commit_every", Duration::from_millis(100)..=Duration::from_secs(3600)),
        target_file_size: section.size("target_file_size", ByteSize::mib(1)..=ByteSize::gib(2)),
        row_group_bytes: section.size("row_group_bytes", ByteSize::mib(1)..=ByteSize::mib(256)),
        max_open_files: section.count32("max_open_files", 1..=1024, "files"),
        compression: section
            .choice("compression", &[("zstd", Codec::Zstd), ("snappy", Codec::Snappy), ("none", Codec::None)]),
        commit_retries: section.count32("commit_retries", 1..=10_000, "tries"),
        add_columns: section.choice("evolve", &[("fail", false), ("add_columns", true)]),
        zoneless: section.choice("timestamps", &[("utc", false), ("ntz", true)]).unwrap_or(false),
        checkpoint_every: section.count32("checkpoint_every", 0..=1_000_000, "commits"),
    };
    path.map(|_| config)
}

fn scalar_text(section: &Section<'_>, key: &str, node: &Node) -> Option<String> {
    match &node.value {
        Value::Text { text, .. } => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Integer(value) => Some(value.to_string()),
        other => {
            let text = format!("`{}.{key}` takes a text, not {}", section.path(), other.describe());
            section.findings().push(Finding::error(codes::WRONG_TYPE, Some(node.mark), text));
            None
        }
    }
}

fn read_files(section: &Section<'_>) -> Option<FilesConfig> {
    let path = section.text("path").map(PathBuf::from);
    if path.is_none() {
        section.missing("path", "./out/NAME");
    }
    let (mut roll_max_bytes, mut roll_every) = (None, None);
    if let Some(roll) = section.section("roll") {
        roll_max_bytes = roll.size("max_bytes", ByteSize::kib(64)..=ByteSize::gib(8));
        roll_every = roll.duration("every", Duration::from_secs(1)..=Duration::from_secs(86_400));
        roll.finish();
    }
    let config = FilesConfig {
        path: path.clone().unwrap_or_default(),
        format: section
            .choice("format", &[("ndjson", FileFormat::Ndjson), ("parquet", FileFormat::Parquet)])
            .unwrap_or(FileFormat::Ndjson),
        compression: section
            .choice("compression", &[("none", Codec::None), ("gzip", Codec::Gzip), ("zstd", Codec::Zstd)]),
        roll_max_bytes,
        roll_every,
        hidden: section.boolean("hidden").unwrap_or(false),
    };
    path.map(|_| config)
}

fn read_channel(section: &Section<'_>) -> Option<ToChannelConfig> {
    let name = section.text("name").map(str::to_owned);
    if name.is_none() {
        section.missing("name", "OTHER_CHANNEL");
    }
    let payload = section.text("payload").map(str::to_owned);
    let key = section.text("key").map(str::to_owned);
    Some(ToChannelConfig { name: name?, payload, key })
}
