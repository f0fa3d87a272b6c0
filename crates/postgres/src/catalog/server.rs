//! The server's own facts: version, identity, settings that capture depends on, who is connected as what.

use std::collections::BTreeMap;

use crate::sql::{SqlConnection, SqlError};
use crate::{Lsn, Xid};

/// What `check` and the start-up list know of a server. Read in a few queries, without side effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`, as in 150018.
    pub version: u32,
    /// Of the cluster; a base backup and a standby have the same, a restored dump has another.
    pub system_identifier: u64,
    /// Of this database.
    pub database_oid: u32,
    /// This database's name.
    pub database: String,
    /// Whether it replays another server's log.
    pub is_standby: bool,
    /// Its timeline.
    pub timeline: u32,
    /// The end of its log: written on a primary, replayed on a standby.
    pub wal_end: Lsn,
    /// Whom we are connected as.
    pub user: String,
    /// The address that the server sees us at; none over a socket.
    pub client_address: Option<String>,
    /// Whether that role may replicate: by its attribute, or as superuser.
    pub may_replicate: bool,
    /// Whether it passes row security.
    pub bypasses_row_security: bool,
    /// Settings by name, in the server's base unit, as `pg_settings` has them.
    pub settings: BTreeMap<String, String>,
    /// Slots in use, all databases.
    pub slots_used: u32,
    /// Senders in use.
    pub senders_used: u32,
    /// Transactions that are writing, oldest first: a new slot waits for them.
    pub blocking: Vec<BlockingTransaction>,
}

/// A transaction that has written and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingTransaction {
    /// Its backend; 0 for a prepared transaction.
    pub pid: i32,
    /// Its number.
    pub xid: Xid,
    /// How long it has run.
    pub age_seconds: u64,
    /// Its user.
    pub user: String,
    /// Its application, or the name of a prepared transaction.
    pub application: String,
}

impl std::fmt::Display for BlockingTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BlockingTransaction { pid, xid, age_seconds, user, application } = self;
        if *pid == 0 {
            return write!(f, "prepared transaction `{application}` of {user} ({age_seconds} s old, xid {xid})");
        }
        write!(f, "pid {pid} of {user}")?;
        if !application.is_empty() {
            write!(f, " ({application})")?;
        }
        write!(f, ", open for {age_seconds} s, xid {xid}")
    }
}

/// Settings that rules look at.
const SETTINGS: &[&str] = &[
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "wal_sender_timeout",
    "synchronous_standby_names",
    "synchronous_commit",
    "hot_standby_feedback",
    "sync_replication_slots",
    "synchronized_standby_slots",
    "primary_conninfo",
    "max_connections",
    "block_size",
    "server_encoding",
];

const FACTS: &str = "
    SELECT current_setting('server_version_num')::int4,
           (SELECT system_identifier FROM pg_catalog.pg_control_system())::text,
           d.oid, d.datname::text, pg_catalog.pg_is_in_recovery(),
           (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()),
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN coalesce(pg_catalog.pg_last_wal_replay_lsn(), '0/0')
                ELSE pg_catalog.pg_current_wal_lsn() END::text,
           r.rolname::text, r.rolsuper OR r.rolreplication, r.rolsuper OR r.rolbypassrls,
           pg_catalog.host(pg_catalog.inet_client_addr()),
           (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int4,
           (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int4,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL
                ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END
    FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
    WHERE d.datname = current_database() AND r.rolname = current_user";

const BLOCKING: &str = "
    SELECT a.pid, a.backend_xid::text, greatest(0, extract(epoch FROM clock_timestamp() - a.xact_start))::int8,
           coalesce(a.usename, '')::text, coalesce(a.application_name, '')
    FROM pg_catalog.pg_stat_activity a
    WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
    UNION ALL
    SELECT 0, p.transaction::text, greatest(0, extract(epoch FROM clock_timestamp() - p.prepared))::int8,
           p.owner::text, p.gid
    FROM pg_catalog.pg_prepared_xacts p
    ORDER BY 3 DESC LIMIT 20";

impl ServerFacts {
    /// Reads them.
    pub async fn read(sql: &SqlConnection) -> Result<Self, SqlError> {
        let doing = "read what the server is";
        let row = sql.row(doing, FACTS, &[]).await?;
        let text = |at: usize| row.try_get::<_, String>(at).map_err(|cause| sql.failed(doing, cause));
        let number = |at: usize| row.try_get::<_, i32>(at).map_err(|cause| sql.failed(doing, cause));
        let yes = |at: usize| row.try_get::<_, bool>(at).map_err(|cause| sql.failed(doing, cause));
        let odd = |what: &str| SqlError::answer(sql.peer(), doing, what.to_owned());
        // The last checkpoint's timeline is old for a while after a promotion; the current file's name is not.
        let wal_file: Option<String> = row.try_get(13).map_err(|cause| sql.failed(doing, cause))?;
        let timeline = match wal_file {
            Some(name) => name.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()),
            None => u32::try_from(number(5)?).ok(),
        };
        let mut facts = ServerFacts {
            version: u32::try_from(number(0)?).map_err(|_| odd("a negative version"))?,
            system_identifier: text(1)?.parse().map_err(|_| odd("a system identifier that is no number"))?,
            database_oid: row.try_get(2).map_err(|cause| sql.failed(doing, cause))?,
            database: text(3)?,
            is_standby: yes(4)?,
            timeline: timeline.ok_or_else(|| odd("a timeline that is no number"))?,
            wal_end: text(6)?.parse().map_err(|_| odd("a log position of another form"))?,
            user: text(7)?,
            may_replicate: yes(8)?,
            bypasses_row_security: yes(9)?,
            client_address: row.try_get(10).map_err(|cause| sql.failed(doing, cause))?,
            slots_used: u32::try_from(number(11)?).unwrap_or_default(),
            senders_used: u32::try_from(number(12)?).unwrap_or_default(),
            settings: BTreeMap::new(),
            blocking: BlockingTransaction::read(sql).await?,
        };
        let settings = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY($1)";
        for row in sql.rows(doing, settings, &[&SETTINGS]).await? {
            let pair =
                row.try_get(0).and_then(|name| Ok((name, row.try_get::<_, Option<String>>(1)?.unwrap_or_default())));
            let (name, value) = pair.map_err(|cause| sql.failed(doing, cause))?;
            facts.settings.insert(name, value);
        }
        Ok(facts)
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// A setting, if this version has it and this role may see it.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// A setting as a number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.setting(name)?.parse().ok()
    }
}

impl BlockingTransaction {
    /// Those that a new slot would wait for now, oldest first, at most 20.
    pub async fn read(sql: &SqlConnection) -> Result<Vec<Self>, SqlError> {
        let doing = "read the open transactions";
        let mut all = Vec::new();
        for row in sql.rows(doing, BLOCKING, &[]).await? {
            let read = || -> Result<Self, tokio_postgres::Error> {
                Ok(BlockingTransaction {
                    pid: row.try_get(0)?,
                    xid: Xid(row.try_get::<_, String>(1)?.parse().unwrap_or_default()),
                    age_seconds: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or_default(),
                    user: row.try_get(3)?,
                    application: row.try_get(4)?,
                })
            };
            all.push(read().map_err(|cause| sql.failed(doing, cause))?);
        }
        Ok(all)
    }
}
