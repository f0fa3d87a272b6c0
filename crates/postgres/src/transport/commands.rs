//! The texts of the replication commands, by server version (P6), and the values that go into them.

use std::fmt::Write as _;

use crate::Lsn;
use crate::connect::ConnectError;

/// A server's version: what follows the major number does not change what we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub u32);

impl ServerVersion {
    /// Reads `15.13 (Debian …)`, `18beta1`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: &str = text.split(|character: char| !character.is_ascii_digit()).next()?;
        digits.parse().ok().map(ServerVersion)
    }
}

/// What becomes of the snapshot that a new slot is consistent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotUse {
    /// Exported: others can read under it while this connection stays idle.
    Export,
    /// None.
    Nothing,
}

/// A slot to create, for the plugin `pgoutput`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSlot {
    /// Its name.
    pub name: String,
    /// Whether it goes with the connection.
    pub is_temporary: bool,
    /// The snapshot.
    pub snapshot: SnapshotUse,
    /// Whether standbys keep it too (17 and later).
    pub is_failover: bool,
}

/// What a stream is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The slot.
    pub slot: String,
    /// From where on: the server sends every transaction that commits at or after it.
    pub from: Lsn,
    /// The publications.
    pub publications: Vec<String>,
    /// The version of the plugin's protocol: 1, or 2 with `is_streaming`.
    pub protocol: u32,
    /// Whether large transactions come in pieces before their commit.
    pub is_streaming: bool,
    /// Whether messages of `pg_logical_emit_message` come too.
    pub with_messages: bool,
    /// Only changes of this origin (16 and later): `none` or `any`.
    pub origin: Option<String>,
    /// A message above this comes as its head only (P5).
    pub max_message: usize,
}

/// One switch of a timeline history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that ended.
    pub timeline: u32,
    /// Where it ended.
    pub at: Lsn,
    /// Why, in the server's words.
    pub reason: String,
}

/// Slot names go into commands as they are.
pub(super) fn slot_name(name: &str) -> Result<&str, ConnectError> {
    let is_valid = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_valid { Ok(name) } else { Err(ConnectError::SlotName { name: name.chars().take(64).collect() }) }
}

pub(super) fn create_slot(version: ServerVersion, slot: &CreateSlot) -> Result<String, ConnectError> {
    let name = slot_name(&slot.name)?;
    if slot.is_failover && version < ServerVersion(17) {
        return Err(ConnectError::Unsupported { option: "slot.failover", hint: "it needs a server of version 17" });
    }
    let temporary = if slot.is_temporary { " TEMPORARY" } else { "" };
    let options = match (version >= ServerVersion(15), slot.snapshot) {
        (false, SnapshotUse::Export) => "EXPORT_SNAPSHOT".to_owned(),
        (false, SnapshotUse::Nothing) => "NOEXPORT_SNAPSHOT".to_owned(),
        (true, snapshot) => {
            let word = if snapshot == SnapshotUse::Export { "export" } else { "nothing" };
            let failover = if slot.is_failover { ", FAILOVER" } else { "" };
            format!("(SNAPSHOT '{word}'{failover})")
        }
    };
    Ok(format!("CREATE_REPLICATION_SLOT \"{name}\"{temporary} LOGICAL pgoutput {options}"))
}

pub(super) fn drop_slot(name: &str, waits: bool) -> Result<String, ConnectError> {
    let wait = if waits { " WAIT" } else { "" };
    Ok(format!("DROP_REPLICATION_SLOT \"{}\"{wait}", slot_name(name)?))
}

pub(super) fn start(version: ServerVersion, options: &StreamOptions) -> Result<String, ConnectError> {
    let names: Vec<String> =
        options.publications.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\""))).collect();
    let mut text = format!(
        "START_REPLICATION SLOT \"{}\" LOGICAL {} (proto_version '{}', publication_names {}",
        slot_name(&options.slot)?,
        options.from,
        options.protocol,
        literal(&names.join(",")),
    );
    if options.is_streaming {
        text.push_str(", streaming 'on'");
    }
    if options.with_messages {
        text.push_str(", messages 'true'");
    }
    if let Some(origin) = &options.origin {
        if version < ServerVersion(16) {
            return Err(ConnectError::Unsupported { option: "origin", hint: "it needs a server of version 16" });
        }
        let _ = write!(text, ", origin {}", literal(origin));
    }
    text.push(')');
    Ok(text)
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Reads the content of a history file: a line per switch, number, position and reason, `#` for comments.
pub(super) fn timeline_history(content: &str) -> Result<Vec<TimelineSwitch>, ConnectError> {
    let lines = content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut parts = line.splitn(3, |character: char| character.is_whitespace());
            let broken = || ConnectError::Protocol {
                what: format!("a timeline history with the line `{}`", line.chars().take(120).collect::<String>()),
            };
            let timeline = parts.next().and_then(|text| text.parse().ok()).ok_or_else(broken)?;
            let at = parts.next().and_then(|text| text.trim().parse().ok()).ok_or_else(broken)?;
            Ok(TimelineSwitch { timeline, at, reason: parts.next().unwrap_or_default().trim().to_owned() })
        })
        .collect()
}
