//! Rules on the server, its settings and the slot.

use landfall_types::Coded;

use super::{CheckOptions, Finding, PostgresCheck};
use crate::code;
use crate::connect::UNCHECKED_ENCODING;
use crate::record::SourceRecord;
use crate::sql::{literal, name};
use crate::startup::{Decision, Facts, decide};

/// What is not carried of any database (P8).
const NOT_CARRIED: &str = "not carried: sequences, large objects, unlogged, temporary and foreign tables, materialized \
                           views, users and grants";

/// A transaction that has been open this long is worth a word.
const OLD_TRANSACTION_SECONDS: u64 = 10;

/// Below this a sender is ended while a sink takes one large batch.
const SENDER_TIMEOUT_MS_MIN: i64 = 3_000;

pub(super) fn rules(check: &PostgresCheck, options: &CheckOptions, findings: &mut Vec<Finding>) {
    let server = &check.server;
    let role = name(&server.user);
    let major = server.major();
    findings.push(match major {
        14..=18 if server.is_standby && major < 16 => Finding::error(
            code::SERVER_VERSION,
            format!("the server is a standby of version {major}; a standby can be a source from version 16 on"),
        )
        .help("connect to the primary, or upgrade both"),
        14..=18 => Finding::ok(format!(
            "Postgres {}.{}{}",
            major,
            server.version % 10_000,
            if server.is_standby { ", a standby" } else { "" }
        )),
        _ => Finding::error(code::SERVER_VERSION, format!("the server is version {major}; 14 to 18 can be a source")),
    });
    if server.is_standby {
        findings.push(
            Finding::error(
                code::SERVER_VERSION,
                "the server is a standby; this version of Landfall reads from primaries only",
            )
            .help("let `url` lead to the primary"),
        );
    }
    findings.push(match server.setting("wal_level") {
        Some("logical") => Finding::ok("wal_level is logical"),
        other => Finding::error(
            code::SERVER_SETTING,
            format!("wal_level is {}; logical is needed", other.unwrap_or("not visible")),
        )
        .fix("ALTER SYSTEM SET wal_level = 'logical';")
        .help("then restart the server"),
    });
    // One for the stream; each table that is copied later has a temporary slot of its own for a while.
    let needed = 1 + i64::from(check.slot.is_none());
    for (setting, used, what) in [
        ("max_replication_slots", server.slots_used, "replication slots"),
        ("max_wal_senders", server.senders_used, "WAL senders"),
    ] {
        let Some(limit) = server.number(setting) else { continue };
        let used = i64::from(used);
        if limit - used < needed {
            findings.push(
                Finding::error(code::SERVER_SETTING, format!("{used} of {limit} {what} are in use; {needed} more are needed, one of them for copies of single tables"))
                    .fix(format!("ALTER SYSTEM SET {setting} = {};", used + needed + 2))
                    .help("then restart the server"),
            );
        } else {
            findings.push(Finding::ok(format!("{} of {limit} {what} are free", limit - used)));
        }
    }
    if server.may_replicate {
        findings.push(Finding::ok(format!("role {role} may replicate")));
    } else {
        findings.push(
            Finding::error(code::PRIVILEGE, format!("role {role} may not replicate"))
                .fix(format!("ALTER ROLE {role} REPLICATION;")),
        );
    }
    // Without the right to replicate it is refused for that, which is said above.
    if server.may_replicate {
        findings.push(match &check.replication_refused {
            None => Finding::ok("a replication connection works"),
            Some((code, text)) => {
                Finding::error(*code, format!("a replication connection does not come about: {}", without_code(text)))
            }
        });
    }
    settings(check, options, findings);
    failover(check, options, findings);
    if server.setting("server_encoding") == Some(UNCHECKED_ENCODING) {
        findings.push(Finding::info(
            "the database's encoding is SQL_ASCII: its text is taken for UTF-8, and a value that is not is its row's affair \
             (`values.invalid_text`)",
        ));
    }
    findings.push(Finding::info(NOT_CARRIED));
}

/// Settings that allow capture and may hurt.
fn settings(check: &PostgresCheck, options: &CheckOptions, findings: &mut Vec<Finding>) {
    let server = &check.server;
    match server.number("max_slot_wal_keep_size") {
        Some(-1) => findings.push(
            Finding::warn(code::SERVER_ADVICE, "max_slot_wal_keep_size is -1: a source that stands still holds WAL until the disk is full")
                .fix("ALTER SYSTEM SET max_slot_wal_keep_size = '100GB';")
                .help("choose what the disk can spare; a slot that falls further behind is lost and its tables are copied again. SELECT pg_reload_conf(); makes it count"),
        ),
        Some(megabytes) => {
            let kept = u64::try_from(megabytes).unwrap_or_default().saturating_mul(1 << 20);
            let held = check.slot.as_ref().and_then(|slot| slot.held_bytes).unwrap_or_default();
            if kept < held.saturating_mul(2) {
                findings.push(
                    Finding::warn(code::SERVER_ADVICE, format!("max_slot_wal_keep_size is {megabytes} MB and the slot holds {} MB: it is lost when that doubles", held >> 20))
                        .fix(format!("ALTER SYSTEM SET max_slot_wal_keep_size = '{}MB';", (held >> 20).saturating_mul(4).max(1_024))),
                );
            }
        }
        None => {}
    }
    if server.number("idle_replication_slot_timeout").is_some_and(|seconds| seconds > 0) {
        findings.push(
            Finding::warn(
                code::SERVER_ADVICE,
                "idle_replication_slot_timeout is set: a source that is stopped for that long loses its slot",
            )
            .fix("ALTER SYSTEM SET idle_replication_slot_timeout = 0;"),
        );
    }
    match server.number("wal_sender_timeout") {
        Some(0) => findings.push(
            Finding::warn(code::SERVER_ADVICE, "wal_sender_timeout is 0: the server does not notice a dead connection, and the slot stays busy behind it")
                .fix("ALTER SYSTEM SET wal_sender_timeout = '60s';"),
        ),
        Some(timeout) if timeout < SENDER_TIMEOUT_MS_MIN => findings.push(
            Finding::warn(code::SERVER_ADVICE, format!("wal_sender_timeout is {timeout} ms: a busy moment ends the stream"))
                .fix("ALTER SYSTEM SET wal_sender_timeout = '60s';"),
        ),
        _ => {}
    }
    if let Some(names) = server.setting("synchronous_standby_names")
        && is_synchronous(names, &options.application_name)
    {
        findings.push(
            Finding::error(
                code::SERVER_SETTING,
                format!(
                    "synchronous_standby_names is `{names}`, which takes in `{}`: commits would wait for this source",
                    options.application_name
                ),
            )
            .help(format!("name the standbys that are meant, without `*` and without `{}`", options.application_name)),
        );
    }
    for open in server.blocking.iter().filter(|open| open.age_seconds >= OLD_TRANSACTION_SECONDS) {
        if check.slot.is_some() {
            break;
        }
        let finding = Finding::warn(code::SLOT_TIMEOUT, format!("a new slot waits for an open transaction: {open}"));
        findings.push(if open.pid == 0 {
            finding
                .fix(format!("ROLLBACK PREPARED {};", literal(&open.application).trim_start()))
                .help("or COMMIT PREPARED")
        } else {
            finding.fix(format!("SELECT pg_terminate_backend({});", open.pid)).help("or let it end by itself")
        });
    }
}

/// Whether a promoted standby would have the slot (17+). What the standby itself is set to is not visible from here.
fn failover(check: &PostgresCheck, options: &CheckOptions, findings: &mut Vec<Finding>) {
    let server = &check.server;
    if server.major() < 17 || server.is_standby || check.physical_slots.is_empty() {
        return;
    }
    let (slot, standbys) = (&options.startup.slot, check.physical_slots.join(", "));
    let Some(facts) = &check.slot else {
        findings.push(Finding::info(format!(
            "standbys follow this server ({standbys}); slot `{slot}` is made without failover, and once it is there check \
             says how to have it on them"
        )));
        return;
    };
    if !facts.is_failover {
        findings.push(
            Finding::warn(
                code::SERVER_ADVICE,
                format!("slot `{slot}` is not kept on the standbys ({standbys}): after a promotion its tables are copied again"),
            )
            .fix(format!("ALTER_REPLICATION_SLOT {slot} (FAILOVER true);"))
            .help(
                "over a replication connection (psql 'dbname=… replication=database'), while nobody reads from the slot; and \
                 on each standby ALTER SYSTEM SET sync_replication_slots = on; ALTER SYSTEM SET hot_standby_feedback = on; with \
                 a dbname in its primary_conninfo",
            ),
        );
    } else if server.setting("synchronized_standby_slots").is_none_or(|slots| slots.trim().is_empty()) {
        findings.push(
            Finding::warn(
                code::SERVER_ADVICE,
                format!("synchronized_standby_slots is empty: slot `{slot}` may be ahead of a standby ({standbys}) when that is promoted, and is then refused"),
            )
            .fix(format!("ALTER SYSTEM SET synchronized_standby_slots = '{standbys}';"))
            .help("SELECT pg_reload_conf(); makes it count. Name the standbys that may be promoted: changes wait for them"),
        );
    }
}

/// Whether a setting like `FIRST 2 (a, "B", *)` takes in an application of this name: names are compared without case.
fn is_synchronous(setting: &str, application: &str) -> bool {
    let list = match (setting.find('('), setting.rfind(')')) {
        (Some(open), Some(close)) if open < close => setting.get(open + 1..close).unwrap_or_default(),
        _ => setting,
    };
    list.split(',')
        .map(|name| name.trim().trim_matches('"'))
        .any(|name| name == "*" || name.eq_ignore_ascii_case(application))
}

/// The start-up list, and slots that were left behind.
pub(super) fn slot_rules(
    check: &PostgresCheck,
    options: &CheckOptions,
    record: Option<&SourceRecord>,
    findings: &mut Vec<Finding>,
) {
    let facts = Facts {
        server: &check.server,
        slot: check.slot.as_ref(),
        publication: &check.plan,
        switch_point: check.switch_point,
    };
    let slot = &options.startup.slot;
    findings.push(match decide(&options.startup, &facts, record) {
        Decision::FirstStart { drops_orphan: false } => {
            Finding::info(format!("slot `{slot}` will be created, and the tables copied at its point"))
        }
        Decision::FirstStart { drops_orphan: true } => Finding::info(format!(
            "slot `{slot}` is left from a first start that crashed; it will be dropped and created anew (LF-PG0211)"
        )),
        Decision::Adopt { at } => Finding::info(format!("slot `{slot}` will be taken over at {at}, without a copy")),
        Decision::Resume { through, raises_epoch, adds } => {
            let epoch = if raises_epoch { "; options that change rows changed, so the epoch is raised" } else { "" };
            let adds =
                if adds.is_empty() { String::new() } else { format!("; {} tables are added and copied", adds.len()) };
            Finding::ok(format!("slot `{slot}` goes on at {through}{epoch}{adds}"))
        }
        // Said by the publication's own findings.
        Decision::Refuse(problem) if problem.code() == code::PUBLICATION => {
            Finding::info(format!("slot `{slot}` waits for the publication"))
        }
        Decision::Refuse(problem) => Finding::error(problem.code(), without_code(&problem.to_string())),
        Decision::Wait(problem) => Finding::warn(problem.code(), without_code(&problem.to_string())),
    });
    if let Some(slot) = &check.slot {
        let held = slot.held_bytes.unwrap_or_default() >> 20;
        let status = slot.wal_status.as_deref().unwrap_or("unknown");
        let safe = slot
            .safe_wal_bytes
            .map_or_else(String::new, |bytes| format!(", {} MB more until it may be lost", bytes >> 20));
        let age = slot.catalog_xmin_age.unwrap_or_default();
        findings.push(Finding::info(format!(
            "slot `{}` holds {held} MB of WAL ({status}{safe}); it holds back VACUUM of catalogs by {age} transactions",
            slot.name
        )));
    }
    for (left, held) in &check.left_behind {
        findings.push(
            Finding::warn(
                code::SLOT_FOREIGN,
                format!(
                    "slot `{left}` looks like one of Landfall's and is not this pipeline's; it holds {} MB of WAL",
                    held.unwrap_or_default() >> 20
                ),
            )
            .fix(format!("SELECT pg_drop_replication_slot({});", literal(left).trim_start()))
            .help("only if no pipeline, here or elsewhere, uses it"),
        );
    }
}

/// A problem's text without its code, which a finding has in a field of its own.
fn without_code(text: &str) -> String {
    text.rsplit_once(" (LF-").map_or(text, |(text, _)| text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::is_synchronous;

    /// Catches commits of the source database that wait for this source.
    #[test]
    fn synchronous_names_are_read_as_the_server_reads_them() {
        for (setting, expected) in [
            ("", false),
            ("*", true),
            ("landfall", true),
            ("FIRST 2 (a, LandFall)", true),
            ("ANY 1 (a, \"landfall\")", true),
            ("landfall2, a", false),
            ("2 (a, *)", true),
        ] {
            assert_eq!(is_synchronous(setting, "landfall"), expected, "{setting}");
        }
    }
}
