//! What a configuration check finds, and how it is shown: code, place with a caret, next step.

use std::fmt::Write as _;

use landfall_types::{Code, CodePage, Kind, Retry};
use serde::Serialize;

use super::text::Mark;

/// The codes of configuration and command line.
pub(crate) mod codes {
    use landfall_types::Code;

    /// The file cannot be read.
    pub(crate) const UNREADABLE: Code = Code::new("CF", 1);
    /// The file is not YAML.
    pub(crate) const NOT_YAML: Code = Code::new("CF", 2);
    /// A key that nothing reads.
    pub(crate) const UNKNOWN_KEY: Code = Code::new("CF", 3);
    /// A value of the wrong type or form.
    pub(crate) const WRONG_TYPE: Code = Code::new("CF", 4);
    /// A number out of its bounds.
    pub(crate) const OUT_OF_BOUNDS: Code = Code::new("CF", 5);
    /// A required key is missing.
    pub(crate) const MISSING: Code = Code::new("CF", 6);
    /// A variable that is not set.
    pub(crate) const VARIABLE: Code = Code::new("CF", 7);
    /// Two values that contradict each other.
    pub(crate) const CONTRADICTION: Code = Code::new("CF", 8);
    /// A reference to something that the file does not define.
    pub(crate) const UNDEFINED: Code = Code::new("CF", 9);
    /// A key that this version knows and does not serve yet.
    pub(crate) const NOT_YET: Code = Code::new("CF", 10);
    /// Memory above the limit.
    pub(crate) const MEMORY: Code = Code::new("CF", 11);
    /// A directory that cannot be used.
    pub(crate) const DIRECTORY: Code = Code::new("CF", 12);
    /// What a peer of the configuration lacks, where it has no code of its own.
    pub(crate) const PEER: Code = Code::new("CF", 13);
    /// A table that an operator parked.
    pub(crate) const PARKED: Code = landfall_postgres::PARKED_BY_HAND;
    /// A server that does not answer.
    pub(crate) const SERVER: Code = Code::new("CF", 20);
    /// A command's argument.
    pub(crate) const ARGUMENT: Code = Code::new("CF", 21);
    /// The demo's own check failed.
    pub(crate) const NOT_BALANCED: Code = Code::new("CF", 22);
}

const fn page(
    code: Code,
    name: &'static str,
    kind: Kind,
    retry: Retry,
    meaning: &'static str,
    help: &'static str,
) -> CodePage {
    CodePage { code, name, kind, retry, meaning, help }
}

/// The pages of this crate's codes.
pub(crate) const CODES: &[CodePage] = &[
    page(
        codes::UNREADABLE,
        "ConfigUnreadable",
        Kind::Invalid,
        Retry::Never,
        "The configuration file cannot be read: it is missing, too large, or not UTF-8.",
        "Look at the path and its permissions; the file is at most 1 MiB of UTF-8 text.",
    ),
    page(
        codes::NOT_YAML,
        "NotYaml",
        Kind::Invalid,
        Retry::Never,
        "The file is not well-formed YAML.",
        "The caret shows where reading stopped; often a missing `:`, a tab, or an unclosed quote or brace before it.",
    ),
    page(
        codes::UNKNOWN_KEY,
        "UnknownKey",
        Kind::Invalid,
        Retry::Never,
        "A key that nothing reads. A mistyped key that was ignored would be a setting that does not hold.",
        "Correct the spelling (the message names the nearest known key) or remove it.",
    ),
    page(
        codes::WRONG_TYPE,
        "WrongType",
        Kind::Invalid,
        Retry::Never,
        "A value is not of the type or form that its key takes.",
        "Sizes are written like `64MiB`, durations like `250ms`, counts as bare whole numbers without quotes.",
    ),
    page(
        codes::OUT_OF_BOUNDS,
        "OutOfBounds",
        Kind::Invalid,
        Retry::Never,
        "A number lies outside the bounds of its key.",
        "The message gives the bounds and their unit; choose a value inside them.",
    ),
    page(
        codes::MISSING,
        "MissingKey",
        Kind::Invalid,
        Retry::Never,
        "A key without a default is not there.",
        "Add the key that the message names.",
    ),
    page(
        codes::VARIABLE,
        "Variable",
        Kind::Invalid,
        Retry::Never,
        "A `${VAR}` cannot be put in: the variable is not set, or the reference is malformed.",
        "Set the variable, or give a default with `${VAR:-default}`.",
    ),
    page(
        codes::CONTRADICTION,
        "Contradiction",
        Kind::Invalid,
        Retry::Never,
        "Two settings, each fine alone, cannot hold together.",
        "The message names both and the nearest value that works.",
    ),
    page(
        codes::UNDEFINED,
        "Undefined",
        Kind::Invalid,
        Retry::Never,
        "A name refers to a channel or part that the file does not define.",
        "Define it, or correct the name.",
    ),
    page(
        codes::NOT_YET,
        "NotYet",
        Kind::Invalid,
        Retry::Never,
        "The key belongs to a feature that this version does not have.",
        "Remove the key; the changelog says which version serves it.",
    ),
    page(
        codes::MEMORY,
        "MemoryAboveLimit",
        Kind::Invalid,
        Retry::Never,
        "The worst case of all buffers is above `process.memory.limit`.",
        "Lower the terms that `check` prints, or raise the limit.",
    ),
    page(
        codes::DIRECTORY,
        "DirectoryUnusable",
        Kind::Invalid,
        Retry::Never,
        "A directory that the file names cannot be made or written: a file stands in its way, or this user may not.",
        "The message names the path that stands against it. Correct the path, move the file away, or change its owner.",
    ),
    page(
        codes::PEER,
        "PeerLacks",
        Kind::Invalid,
        Retry::Later,
        "A database or destination that the configuration names is not set up as the pipeline needs it.",
        "The message names the setting and prints the statement that mends it.",
    ),
    page(
        codes::PARKED,
        "ParkedByHand",
        Kind::Invalid,
        Retry::Never,
        "An operator parked the table: its rows pass by and are counted as filtered.",
        "`landfall tables CONFIG PIPELINE resume TABLE --confirm` copies it again.",
    ),
    page(
        codes::SERVER,
        "ServerUnreachable",
        Kind::Unavailable,
        Retry::Later,
        "The Landfall server did not answer the command, or answered with an error.",
        "See that `landfall run` is up and that `--server` or LANDFALL_SERVER names its address.",
    ),
    page(
        codes::ARGUMENT,
        "Argument",
        Kind::Invalid,
        Retry::Never,
        "A command's argument is not usable.",
        "The message names the argument and what it takes.",
    ),
    page(
        codes::NOT_BALANCED,
        "NotBalanced",
        Kind::Internal,
        Retry::Never,
        "The demo found records that are neither in the table exactly once nor among the dead letters.",
        "Keep the data directory and report it: this is the promise that must not break.",
    ),
];

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Works, and deserves a look.
    Warning,
    /// Does not start.
    Error,
}

/// One thing that a check found.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) level: Level,
    /// Which kind of thing it is.
    pub(crate) code: Code,
    /// Where, if it has a place in the file.
    pub(crate) mark: Option<Mark>,
    /// What it is: names thing, value and bound.
    pub(crate) text: String,
    /// The next step.
    pub(crate) help: Option<String>,
}

impl Finding {
    /// An error at a place.
    pub(crate) fn error(code: Code, mark: Option<Mark>, text: impl Into<String>) -> Self {
        Finding { level: Level::Error, code, mark, text: text.into(), help: None }
    }

    /// A warning at a place.
    pub(crate) fn warning(code: Code, mark: Option<Mark>, text: impl Into<String>) -> Self {
        Finding { level: Level::Warning, ..Finding::error(code, mark, text) }
    }

    /// The same with a next step.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// For people: the message, then the line with a caret under the place, then the next step.
    pub(crate) fn render(&self, file: &str, source: &str) -> String {
        let level = match self.level {
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let mut out = format!("{level}[{}]: {}\n", self.code, self.text);
        if let Some(mark) = self.mark.filter(|mark| mark.line > 0) {
            let _ = writeln!(out, "  --> {file}:{}:{}", mark.line, mark.column);
            if let Some(line) = source.lines().nth(mark.line as usize - 1) {
                let gutter = mark.line.to_string();
                let blank = " ".repeat(gutter.len());
                let shown: String = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
                let before = mark.column.saturating_sub(1) as usize;
                let room = shown.chars().count().saturating_sub(before).max(1);
                let carets = "^".repeat((mark.width as usize).clamp(1, room));
                let _ = writeln!(out, "{blank} |\n{gutter} | {shown}\n{blank} | {}{carets}", " ".repeat(before));
            }
        }
        if let Some(help) = &self.help {
            let _ = writeln!(out, "  = help: {help}");
        }
        out
    }
}

/// The JSON form of a finding, as `check --json` prints it.
#[derive(Serialize)]
pub(crate) struct FindingJson<'a> {
    level: Level,
    code: Code,
    line: Option<u32>,
    column: Option<u32>,
    text: &'a str,
    help: Option<&'a str>,
}

impl<'a> From<&'a Finding> for FindingJson<'a> {
    fn from(finding: &'a Finding) -> Self {
        let mark = finding.mark.filter(|mark| mark.line > 0);
        FindingJson {
            level: finding.level,
            code: finding.code,
            line: mark.map(|mark| mark.line),
            column: mark.map(|mark| mark.column),
            text: &finding.text,
            help: finding.help.as_deref(),
        }
    }
}
