//! The codes `LF-PG01xx` (connection), `02xx` (slot), `05xx` (schema), `06xx` (copy) and `07xx` (orders), with their pages.
//!
//! A code is what a person searches for and what `landfall explain` prints; the class of an error follows from its
//! variant, never from a text (I3).

use landfall_types::{Code, CodePage, Kind, Retry};

pub(crate) const UNREACHABLE: Code = Code::new("PG", 101);
pub(crate) const PASSWORD: Code = Code::new("PG", 102);
pub(crate) const HBA: Code = Code::new("PG", 103);
pub(crate) const DATABASE: Code = Code::new("PG", 104);
pub(crate) const TLS: Code = Code::new("PG", 105);
pub(crate) const NOT_NOW: Code = Code::new("PG", 106);
pub(crate) const CONNECTION_LOST: Code = Code::new("PG", 107);
pub(crate) const DEADLINE: Code = Code::new("PG", 109);
pub(crate) const PRIVILEGE: Code = Code::new("PG", 110);
pub(crate) const STATEMENT: Code = Code::new("PG", 111);
pub(crate) const ANSWER: Code = Code::new("PG", 112);
pub(crate) const SERVER_VERSION: Code = Code::new("PG", 113);
pub(crate) const SERVER_SETTING: Code = Code::new("PG", 114);
pub(crate) const SERVER_ADVICE: Code = Code::new("PG", 115);

pub(crate) const STREAM_AGAIN: Code = Code::new("PG", 120);
pub(crate) const STARTS_OVER: Code = Code::new("PG", 121);

pub(crate) const SLOT_GONE: Code = Code::new("PG", 201);
pub(crate) const SLOT_FOREIGN: Code = Code::new("PG", 202);
pub(crate) const SLOT_BUSY: Code = Code::new("PG", 203);
pub(crate) const SLOT_LOST: Code = Code::new("PG", 204);
pub(crate) const SLOT_DIFFERS: Code = Code::new("PG", 205);
pub(crate) const SLOT_AHEAD: Code = Code::new("PG", 206);
pub(crate) const OTHER_SYSTEM: Code = Code::new("PG", 207);
pub(crate) const PAST_SWITCH: Code = Code::new("PG", 208);
pub(crate) const SERVER_BEHIND: Code = Code::new("PG", 209);
pub(crate) const PUBLICATION: Code = Code::new("PG", 210);
pub(crate) const SLOT_ORPHAN: Code = Code::new("PG", 211);
pub(crate) const SLOT_NAME: Code = Code::new("PG", 212);
pub(crate) const SLOT_TIMEOUT: Code = Code::new("PG", 213);
pub(crate) const RECORD: Code = Code::new("PG", 214);
pub(crate) const SLOT_MISSING: Code = Code::new("PG", 215);

pub(crate) const NEEDS_RESYNC: Code = Code::new("PG", 501);
pub(crate) const TABLE_PATTERN: Code = Code::new("PG", 502);
pub(crate) const NO_TABLE: Code = Code::new("PG", 503);
pub(crate) const NOT_CARRIED: Code = Code::new("PG", 504);
pub(crate) const IDENTITY: Code = Code::new("PG", 505);
pub(crate) const TOASTABLE: Code = Code::new("PG", 506);
pub(crate) const TABLE_LIMIT: Code = Code::new("PG", 507);
pub(crate) const LOCK_TIMEOUT: Code = Code::new("PG", 508);
pub(crate) const BACKLOG: Code = Code::new("PG", 509);
pub(crate) const DEFERRABLE_KEY: Code = Code::new("PG", 510);
pub(crate) const PLACE_TAKEN: Code = Code::new("PG", 511);
pub(crate) const CHANGED: Code = Code::new("PG", 512);
pub(crate) const SUSPECT: Code = Code::new("PG", 520);
pub(crate) const NOTED: Code = Code::new("PG", 521);
pub(crate) const UNUSED_CHOICE: Code = Code::new("PG", 522);

pub(crate) const SNAPSHOT_LOST: Code = Code::new("PG", 601);
pub(crate) const COPY_FAILED: Code = Code::new("PG", 602);
pub(crate) const ROW_SECURITY: Code = Code::new("PG", 603);
pub(crate) const ROW_TOO_LARGE: Code = Code::new("PG", 604);
pub(crate) const COPY_UNSTABLE: Code = Code::new("PG", 605);
pub(crate) const REWRITTEN: Code = Code::new("PG", 606);

pub(crate) const ORDER_TABLE: Code = Code::new("PG", 701);
pub(crate) const ORDER_EARLY: Code = Code::new("PG", 702);
pub(crate) const ORDER_NEVER_COPIES: Code = Code::new("PG", 703);
pub(crate) const ORDER_SPENT: Code = Code::new("PG", 704);
pub(crate) const ORDER_NOT_TAKEN: Code = Code::new("PG", 705);
pub(crate) const ORDER_UNRESOLVED: Code = Code::new("PG", 706);
pub(crate) const ORDER_NOT_ASKED: Code = Code::new("PG", 707);

/// A table that an operator parked; its page is with those of the commands.
pub const PARKED_BY_HAND: Code = Code::new("CF", 14);

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

/// The pages of connection, slot, schema and copy codes, for `landfall explain`.
pub const CODES: &[CodePage] = &[
    page(
        UNREACHABLE,
        "PostgresUnreachable",
        Kind::Unavailable,
        Retry::Later,
        "No connection to the server could be made: nothing listens at the address, the name is unknown, or the network does not answer.",
        "Check host and port of `url`, that the server runs, `listen_addresses`, and firewalls. The source tries again by itself.",
    ),
    page(
        PASSWORD,
        "PostgresLoginRefused",
        Kind::Invalid,
        Retry::Later,
        "The server refused the user or the password.",
        "Check user and `password` in the configuration, and that the role exists and has LOGIN. A running process keeps the password that it was started with: where that was changed, restart it. Passwords never appear in messages.",
    ),
    page(
        HBA,
        "PostgresHbaRefused",
        Kind::Invalid,
        Retry::Later,
        "No line of the server's `pg_hba.conf` lets this user in from this address to this database.",
        "Add the line that the message shows to `pg_hba.conf` and run `SELECT pg_reload_conf();`. A replication connection to a database needs a line for that database, not one for `replication`.",
    ),
    page(
        DATABASE,
        "PostgresDatabaseMissing",
        Kind::Invalid,
        Retry::Later,
        "The server has no database of that name.",
        "Correct the path of `url`. Names are case-sensitive.",
    ),
    page(
        TLS,
        "PostgresTls",
        Kind::Invalid,
        Retry::Later,
        "Server and configuration do not agree on TLS, or the server's certificate was not accepted.",
        "The message says which side wants what. Set `tls.mode` and `tls.ca`, or `ssl` on the server.",
    ),
    page(
        NOT_NOW,
        "PostgresNotNow",
        Kind::Unavailable,
        Retry::Later,
        "The server is starting, stopping, or has no connection left.",
        "It passes by itself if the server is starting. If connections are used up, raise `max_connections` or the role's limit, or lower `snapshot.connections`.",
    ),
    page(
        CONNECTION_LOST,
        "PostgresConnectionLost",
        Kind::Unavailable,
        Retry::Later,
        "An open connection ended in the middle of work: the server stopped, an administrator ended it, or the network broke.",
        "The source connects again and goes on from what is stored. If it happens often, look at the server's log and at idle timeouts of proxies.",
    ),
    page(
        DEADLINE,
        "PostgresNoAnswer",
        Kind::Unavailable,
        Retry::Later,
        "The server did not answer a query within its deadline. The query was cancelled.",
        "Look for locks (`pg_locks`) and load on the server. The source tries again by itself.",
    ),
    page(
        PRIVILEGE,
        "PostgresPrivilegeMissing",
        Kind::Invalid,
        Retry::Later,
        "The role may not do what the message names.",
        "Run the GRANT or ALTER ROLE statement that `landfall check` prints.",
    ),
    page(
        STATEMENT,
        "PostgresStatementFailed",
        Kind::Unavailable,
        Retry::Later,
        "The server refused a statement for a reason that has no code of its own here.",
        "The message carries the server's own words and its SQLSTATE.",
    ),
    page(
        ANSWER,
        "PostgresAnswerNotUnderstood",
        Kind::Internal,
        Retry::Never,
        "The server's answer to a catalog query does not have the form that its version is known to give.",
        "Check that the address is a Postgres server of version 14 to 18 and no proxy. If it is, report the message as a defect.",
    ),
    page(
        SERVER_VERSION,
        "PostgresVersionUnsupported",
        Kind::Invalid,
        Retry::Never,
        "The server's version is outside 14 to 18, or a standby is older than 16.",
        "Use a supported server. Standbys can be a source from version 16 on.",
    ),
    page(
        SERVER_SETTING,
        "PostgresSetting",
        Kind::Invalid,
        Retry::Later,
        "A setting of the server does not allow capture: `wal_level`, slots, senders, or synchronous replication that would wait for this source.",
        "Run the ALTER SYSTEM statement that the message shows; most need a restart of the server.",
    ),
    page(
        SERVER_ADVICE,
        "PostgresSettingAdvice",
        Kind::Invalid,
        Retry::Later,
        "A setting of the server allows capture and may hurt later: unbounded or too little WAL kept for slots, a sender timeout that is off or short, open transactions that delay the slot.",
        "Weigh the statement that the message shows. Nothing stops because of it.",
    ),
    page(
        STREAM_AGAIN,
        "PostgresStreamAgain",
        Kind::Unavailable,
        Retry::Now,
        "A table starts again before rows that were handed over already, so the stream starts again at the checkpoint. Rows that are durable are left out by their places.",
        "Nothing: it goes on by itself. If it happens often, the cause beside it names the destination that fails.",
    ),
    page(
        STARTS_OVER,
        "CaptureStartsOver",
        Kind::Unavailable,
        Retry::Now,
        "An operator ordered every table to be copied again with a new slot, so the pipeline starts again.",
        "Nothing: it goes on by itself, with a new slot and a copy of every table.",
    ),
    page(
        SLOT_GONE,
        "SlotGone",
        Kind::Conflict,
        Retry::Never,
        "Progress is stored and its replication slot does not exist any more, or another slot has its name. Changes between may be gone, so going on would be a silent gap.",
        "Copy the tables again: `landfall tables CONFIG PIPELINE resync --all`. A new slot is made for it; nothing that has landed is lost.",
    ),
    page(
        SLOT_FOREIGN,
        "SlotNotOurs",
        Kind::Conflict,
        Retry::Never,
        "There is a slot of the configured name and nothing is known about it: it belongs to something else, or the data directory was lost.",
        "Drop it with `SELECT pg_drop_replication_slot('name');` if nothing else uses it, choose another `slot.name`, or set `slot.adopt: true` with `snapshot.mode: never` to go on from where it stands.",
    ),
    page(
        SLOT_BUSY,
        "SlotBusy",
        Kind::Unavailable,
        Retry::Later,
        "Another connection reads from the slot: a second process of this pipeline, or an old connection that the server has not noticed to be dead.",
        "Wait: it goes on by itself. To hurry, `SELECT pg_terminate_backend(pid);` with the pid of the message. Make sure that only one process runs this pipeline.",
    ),
    page(
        SLOT_LOST,
        "SlotLost",
        Kind::Conflict,
        Retry::Never,
        "The slot exists and the server has given up its log: it cannot be read any more.",
        "The message names the reason and the setting behind it. Raise that setting, drop the slot as shown, then `landfall tables CONFIG PIPELINE resync --all`.",
    ),
    page(
        SLOT_DIFFERS,
        "SlotOfAnotherKind",
        Kind::Conflict,
        Retry::Never,
        "The slot has another plugin or database than this source, is temporary, or has two-phase decoding on.",
        "Choose another `slot.name`, or drop the slot if nothing else uses it.",
    ),
    page(
        SLOT_AHEAD,
        "SlotAheadOfCheckpoint",
        Kind::Conflict,
        Retry::Never,
        "The slot was moved past what this pipeline has made durable: something else read from it, it was advanced by hand, or an older copy of the data directory is in use. The server would start at its own position without a word, so the changes between would be missing.",
        "Copy the tables again: `landfall tables CONFIG PIPELINE resync --all`, and make sure that nothing else reads from the slot.",
    ),
    page(
        OTHER_SYSTEM,
        "OtherDatabaseSystem",
        Kind::Conflict,
        Retry::Never,
        "The address leads to another database cluster, or another database in it, than the one that the stored progress is about. Positions of one cluster mean nothing in another.",
        "If the address is wrong, correct it. If the database was moved by dump and restore, `landfall tables CONFIG PIPELINE resync --all`: the epoch is raised, so new rows win over old ones.",
    ),
    page(
        PAST_SWITCH,
        "CheckpointPastPromotion",
        Kind::Conflict,
        Retry::Never,
        "A standby was promoted, and this pipeline has landed commits that the new primary never had.",
        "`landfall tables CONFIG PIPELINE resync --all`: the epoch is raised and rows of the lost commits are replaced.",
    ),
    page(
        SERVER_BEHIND,
        "ServerBehindCheckpoint",
        Kind::Conflict,
        Retry::Never,
        "The server's log ends before the stored position: it was restored from an older state.",
        "`landfall tables CONFIG PIPELINE resync --all`: the epoch is raised, so the restored rows win over the ones that were lost.",
    ),
    page(
        PUBLICATION,
        "PublicationIncomplete",
        Kind::Invalid,
        Retry::Later,
        "The publication is missing, lacks a table, an operation or the root mode. What a publication lacks never reaches a slot. A table that left it is parked, its neighbours go on.",
        "Run the statement that the message shows. A table that was missing for a while needs `landfall tables CONFIG PIPELINE resync TABLE` after it, for what was written meanwhile is in no stream.",
    ),
    page(
        SLOT_ORPHAN,
        "SlotOrphan",
        Kind::Conflict,
        Retry::Now,
        "A first start crashed between creating its slot and storing what it is. The slot holds nothing that has landed.",
        "Nothing to do: it is dropped and created anew, and the log says so.",
    ),
    page(
        SLOT_NAME,
        "SlotNameInvalid",
        Kind::Invalid,
        Retry::Never,
        "A slot's name has 1 to 63 characters out of a-z, 0-9 and _, and belongs to one pipeline.",
        "Set `slot.name` to such a name.",
    ),
    page(
        SLOT_TIMEOUT,
        "SlotCreationWaits",
        Kind::Unavailable,
        Retry::Later,
        "A new slot can start only when all transactions that were writing have ended, and they did not within `snapshot.slot_timeout`.",
        "The message names the transactions. End them, or raise `snapshot.slot_timeout`; the source tries again by itself.",
    ),
    page(
        RECORD,
        "SourceRecordUnreadable",
        Kind::Internal,
        Retry::Never,
        "The stored record of the source cannot be read: another version of Landfall wrote it, or it is damaged. Nothing is guessed from it and nothing is removed.",
        "Run the version that wrote it. If it is damaged, `landfall tables CONFIG PIPELINE resync --all` starts from a new copy.",
    ),
    page(
        SLOT_MISSING,
        "SlotMissing",
        Kind::Invalid,
        Retry::Later,
        "There is no slot of the configured name, nothing is stored, and `slot.create` is false.",
        "Set `slot.create: true`, or make the slot and adopt it as the message shows.",
    ),
    page(
        NEEDS_RESYNC,
        "TableNeedsResync",
        Kind::Conflict,
        Retry::Never,
        "Rows of the table changed without row events (a rewrite, an attached, detached, dropped or emptied partition), so the target no longer equals the source.",
        "`landfall tables CONFIG PIPELINE resync TABLE`. Where partitions are dropped to forget old rows, and the target is to keep them: `dropped_partitions: keep` under the table.",
    ),
    page(
        TABLE_PATTERN,
        "TablePatternInvalid",
        Kind::Invalid,
        Retry::Never,
        "A key of `tables` is not `schema.table`. `*` stands for any characters; a name with a dot, a star or capital letters may stand in double quotes.",
        "Write `public.orders`, `audit.*` or `public.\"Order.Lines\"`.",
    ),
    page(
        NO_TABLE,
        "TablePatternMatchesNothing",
        Kind::Invalid,
        Retry::Later,
        "A key of `tables` matches no table. A key without `*` is an error, a pattern a warning: its tables may come later.",
        "Correct the name; names are case-sensitive. The message names tables that are close.",
    ),
    page(
        NOT_CARRIED,
        "RelationNotCarried",
        Kind::Invalid,
        Retry::Never,
        "The relation has no changes in the log that could be carried: a view, a foreign, temporary or unlogged table, a sequence.",
        "Take it out of `tables`, or make it an ordinary table (`ALTER TABLE … SET LOGGED`).",
    ),
    page(
        IDENTITY,
        "TableWithoutIdentity",
        Kind::Invalid,
        Retry::Later,
        "The table, or one of its partitions, has no usable replica identity: updates and deletes do not say which row they are about. Publishing it would make the source's own UPDATEs fail.",
        "Run the ALTER TABLE that the message shows: a primary key, or REPLICA IDENTITY FULL.",
    ),
    page(
        TOASTABLE,
        "LargeValuesMayBeLeftOut",
        Kind::Invalid,
        Retry::Later,
        "An update leaves out large values that it does not change, unless the table's identity is FULL.",
        "`ALTER TABLE … REPLICA IDENTITY FULL;` (more WAL per update).",
    ),
    page(
        TABLE_LIMIT,
        "TooManyTables",
        Kind::Invalid,
        Retry::Never,
        "The patterns match more tables than one source carries.",
        "Narrow the patterns, or divide the tables among several pipelines.",
    ),
    page(
        LOCK_TIMEOUT,
        "TableLockTimeout",
        Kind::Unavailable,
        Retry::Later,
        "A table's lock was not given within five seconds: something writes to it in a long transaction.",
        "It is tried again by itself. `pg_stat_activity` shows the transaction that writes to the table; it takes the lock once that ends.",
    ),
    page(
        BACKLOG,
        "PostgresTableBacklog",
        Kind::Unavailable,
        Retry::Never,
        "A table's destination refuses its rows, and so many of them wait that they would stop the other tables. The table was parked, its neighbours go on.",
        "Mend the destination that the message names, then `landfall tables CONFIG PIPELINE resync TABLE`.",
    ),
    page(
        DEFERRABLE_KEY,
        "DeferrableKey",
        Kind::Invalid,
        Retry::Later,
        "The table's key is DEFERRABLE: one transaction may hold it twice for a while, as a swap of two keys does, and the last change of a key then does not tell whether its row lives.",
        "Run the ALTER TABLE that the message shows: a key that is checked row by row. Or add a UNIQUE index over NOT NULL columns, with REPLICA IDENTITY FULL. Then `landfall tables … resync TABLE`.",
    ),
    page(
        PLACE_TAKEN,
        "PostgresTablePlaceTaken",
        Kind::Conflict,
        Retry::Never,
        "A table has the name that another table had when it was first captured and was renamed since: the other still lands under that name, so the new one was parked and nothing of it is mixed in.",
        "Give one of them a pipeline of its own, or leave the renamed one out of `tables`; then `landfall tables CONFIG PIPELINE resync TABLE`.",
    ),
    page(
        CHANGED,
        "PostgresTableChanged",
        Kind::Conflict,
        Retry::Never,
        "A captured table got another key, replica identity or column type, or a column whose default wrote its old rows anew. It goes on, because its only destinations are channels, where each record is whole by itself: records from there on have the new form, and what was written before stays as it is.",
        "Look whether those who read the channel are ready for it: a pipeline declares the types of its fields, and sets aside what is none. Records of one row may have two keys, one of before and one of now, and then lie in two partitions: `_commit_lsn` and `_seq` order them. `landfall tables CONFIG PIPELINE resync TABLE` copies the table again in its new form, and ends the notice.",
    ),
    page(
        SUSPECT,
        "TableSuspected",
        Kind::Conflict,
        Retry::Never,
        "The rows of a table are in another file than before, and no event says why: VACUUM FULL and CLUSTER keep every row as it is, an ALTER TABLE may have changed some. The table goes on.",
        "`landfall verify CONFIG PIPELINE` compares it with its target. Where they differ, `landfall tables CONFIG PIPELINE resync TABLE`; else `landfall tables … resume TABLE` puts the note away.",
    ),
    page(
        NOTED,
        "TableChangeNoted",
        Kind::Conflict,
        Retry::Never,
        "Something happened to a table that no row event tells, and its target goes on without it: a column is called otherwise, or rows came or went with a partition where that was accepted.",
        "The message says what. A copy brings the target to what the table is: `landfall tables CONFIG PIPELINE resync TABLE`; `landfall tables … resume TABLE` puts the note away.",
    ),
    page(
        UNUSED_CHOICE,
        "UnusedTableChoice",
        Kind::Invalid,
        Retry::Never,
        "An entry of `tables` decides no table, since one before it does, or names a column under `columns` that none of its tables sends: what stands under it counts for nothing.",
        "Correct the name, or put the narrower pattern before the wider one: the first that matches decides.",
    ),
    page(
        SNAPSHOT_LOST,
        "SnapshotLost",
        Kind::Unavailable,
        Retry::Now,
        "The snapshot of a copy is gone, because the connection that held it ended. Unfinished tables are copied again from a fresh one.",
        "Nothing to do. If it happens again and again, look for idle timeouts between here and the server.",
    ),
    page(
        COPY_FAILED,
        "CopyFailed",
        Kind::Unavailable,
        Retry::Later,
        "A range of a table could not be copied. Where the server refuses it for its rights or its columns, the table is parked and the others go on; where the connection was lost again and again, the copy begins anew.",
        "The message carries the server's words. Mend what it names; a parked table is copied with `landfall tables CONFIG PIPELINE resync TABLE`.",
    ),
    page(
        ROW_SECURITY,
        "RowSecurityHidesRows",
        Kind::Invalid,
        Retry::Later,
        "Row security is active for this role on the table, so a copy would miss rows that the stream has.",
        "`ALTER ROLE … BYPASSRLS;`",
    ),
    page(
        ROW_TOO_LARGE,
        "CopiedRowTooLarge",
        Kind::Invalid,
        Retry::Never,
        "A row to be copied is larger than `max_message`. Its table is parked, the others go on.",
        "Raise `max_message` (up to 1GiB), then `landfall tables CONFIG PIPELINE resync TABLE`.",
    ),
    page(
        COPY_UNSTABLE,
        "CopyRangeShrank",
        Kind::Internal,
        Retry::Now,
        "A range that was copied again under the same snapshot had fewer rows than were issued from it before, which one snapshot cannot show.",
        "The table's copy starts over from a fresh snapshot. If it happens again, report it as a defect.",
    ),
    page(
        REWRITTEN,
        "CopyTableRewritten",
        Kind::Unavailable,
        Retry::Later,
        "A table was rewritten (most ALTER TABLE), emptied or dropped after the snapshot of its copy was taken and before the copy had it. In the new file the old snapshot sees nothing, so such a copy would be empty without an error.",
        "Nothing: the table is copied again from a fresh snapshot. Changing tables once their copy is done avoids the second copy.",
    ),
    page(
        ORDER_TABLE,
        "OrderNamesNoTable",
        Kind::Invalid,
        Retry::Never,
        "The order names a table that the capture does not carry, or that the database does not have.",
        "Take a name as `landfall tables CONFIG PIPELINE list` shows it: `schema.table`, with case, or a pattern with `*`.",
    ),
    page(
        ORDER_EARLY,
        "OrderBeforeTheFirstStart",
        Kind::Conflict,
        Retry::Never,
        "Nothing is stored of the capture yet, so there is nothing that an order could change.",
        "Wait for the first start, which copies every table; `landfall tables CONFIG PIPELINE list` shows when it has.",
    ),
    page(
        ORDER_NEVER_COPIES,
        "OrderNeedsCopies",
        Kind::Conflict,
        Retry::Never,
        "The order needs a copy, and `snapshot.mode` is `never`.",
        "Set `snapshot.mode: initial`, start the process again, and give the order.",
    ),
    page(
        ORDER_SPENT,
        "NumbersSpent",
        Kind::Conflict,
        Retry::Never,
        "The stored record has no partition number or no epoch left that was never used.",
        "Give the pipeline a new `id`, and its tables a new place: everything is copied under fresh numbers.",
    ),
    page(
        ORDER_NOT_TAKEN,
        "OrderNotTaken",
        Kind::Unavailable,
        Retry::Later,
        "The running capture did not come to take the order in time; it was withdrawn, and nothing is changed.",
        "Look at what the pipeline waits for (`landfall top`), then give the order again. A stopped process takes it at once.",
    ),
    page(
        ORDER_UNRESOLVED,
        "OrderUnresolved",
        Kind::Unresolved,
        Retry::Later,
        "The capture took the order and ended before it said that it is stored.",
        "`landfall tables CONFIG PIPELINE list` shows what is stored. The same order may be given again: it does no harm.",
    ),
    page(
        ORDER_NOT_ASKED,
        "OrderNeedsTheDatabase",
        Kind::Unavailable,
        Retry::Later,
        "Whether the database has the table could not be asked, or its lock for the publication was not given.",
        "The message carries the server's words; give the order again. New tables are also looked for by themselves, every `schema.poll`.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a code that is given twice and pages that are out of order.
    #[test]
    fn each_code_has_one_page() {
        for pair in CODES.windows(2) {
            assert!(pair[0].code < pair[1].code, "{} before {}", pair[0].code, pair[1].code);
        }
    }
}
