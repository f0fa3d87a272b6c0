//! The configuration: one YAML file, every key known, every number bounded, every mistake shown with its place.
//!
//! [`load`] reads a file into a [`Config`] or into findings; it has no side effects. What the file's parts mean
//! together with the machine (ports, tables, memory) is the assembly's question. Carries I14.

mod capture;
mod channels;
mod cross;
mod finding;
mod pipelines;
mod process;
mod section;
mod server;
mod sinks;
mod text;

mod query_place;

#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub(crate) use capture::{PostgresConfig, TABLE_PLACE, TableConfig};
pub(crate) use channels::{ChannelConfig, ChannelFormat, PayloadCheck, SchemaChange};
pub(crate) use finding::{CODES, Finding, FindingJson, Level, codes};
pub(crate) use pipelines::{
    DecodeConfig, Framing, FromConfig, InferConfig, JsonConfig, PipelineConfig, Policy, QueryText, RetryConfig,
    SchemaColumn, StartAt, UnknownFields,
};
pub(crate) use process::ProcessConfig;
pub(crate) use query_place::place_in_file;
pub(crate) use section::spell;
pub(crate) use server::ServerConfig;
pub(crate) use sinks::{Codec, DeltaConfig, FileFormat, FilesConfig, SinkConfig, SinkKind, ToChannelConfig};
pub(crate) use text::{FILE_BYTES_MAX, Mark};

use section::{Findings, Section};

/// A configuration whose every key was read and found inside its bounds.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Where everything durable of this process lies.
    pub(crate) data_dir: PathBuf,
    /// Where it stands, for errors of making it.
    pub(crate) data_dir_mark: Mark,
    /// The listener, if records are taken in by it.
    pub(crate) server: ServerConfig,
    /// The channels by name.
    pub(crate) channels: Vec<ChannelConfig>,
    /// The pipelines by name.
    pub(crate) pipelines: Vec<PipelineConfig>,
    /// Limits of the whole process.
    pub(crate) process: ProcessConfig,
}

/// A file's text with what was read from it.
pub(crate) struct Loaded {
    /// The file's name as shown in messages.
    pub(crate) file: String,
    /// The text, for carets.
    pub(crate) source: String,
    /// The configuration, unless an error was found.
    pub(crate) config: Option<Config>,
    /// Everything found, errors included.
    pub(crate) findings: Vec<Finding>,
}

impl Loaded {
    /// All findings, for people.
    pub(crate) fn render(&self) -> String {
        self.findings.iter().map(|finding| finding.render(&self.file, &self.source)).collect::<Vec<_>>().join("\n")
    }
}

/// Reads a file. Relative paths in it are taken from the working directory, as on a command line.
pub(crate) fn load(path: &Path) -> Loaded {
    let file = path.display().to_string();
    match read_bounded(path) {
        Ok(source) => {
            let (config, findings) = read(&source, &|name| std::env::var(name).ok());
            Loaded { file, source, config, findings }
        }
        Err(text) => {
            let finding = Finding::error(codes::UNREADABLE, None, format!("cannot read `{file}`: {text}"))
                .help("give the path of a configuration file, like examples/storefront.yaml");
            Loaded { file, source: String::new(), config: None, findings: vec![finding] }
        }
    }
}

fn read_bounded(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is larger than {FILE_BYTES_MAX} B"));
    }
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
}

/// Reads a text. `variable` answers `${NAME}`.
pub(crate) fn read(source: &str, variable: &dyn Fn(&str) -> Option<String>) -> (Option<Config>, Vec<Finding>) {
    let root = match text::parse(source, variable) {
        Ok(root) => root,
        Err(findings) => return (None, findings),
    };
    let findings = Findings::default();
    let config = Section::of("", &root, &findings).map(|top| {
        let data_dir = top.text("data_dir").map_or_else(|| PathBuf::from("./landfall-data"), PathBuf::from);
        let process = process::read(&top);
        let config = Config {
            data_dir,
            data_dir_mark: top.mark_of("data_dir"),
            server: server::read(&top, &process),
            channels: channels::read_all(&top),
            pipelines: pipelines::read_all(&top, &process),
            process,
        };
        top.finish();
        cross::check(&config, &findings);
        config
    });
    let findings = findings.into_sorted();
    let failed = findings.iter().any(|finding| finding.level == Level::Error);
    (config.filter(|_| !failed), findings)
}
