//! Facts of a server where all is well, for unit tests to bend.

use std::collections::BTreeMap;

use crate::catalog::{KeyOrigin, LeafFacts, ServerFacts, TableFacts};
use crate::slot::{PLUGIN, SlotFacts};
use crate::{ColumnShape, Identity, Lsn, PgType, RelationId, TableName, TableShape};

pub(crate) const SYSTEM: u64 = 7_530_184_932_114_511_873;

pub(crate) fn table_name(table: &str) -> TableName {
    TableName { schema: "public".into(), table: table.into() }
}

pub(crate) fn server() -> ServerFacts {
    let settings = [
        ("wal_level", "logical"),
        ("max_replication_slots", "10"),
        ("max_wal_senders", "10"),
        ("max_slot_wal_keep_size", "100000"),
        ("wal_sender_timeout", "60000"),
        ("synchronous_standby_names", ""),
    ];
    ServerFacts {
        version: 170_010,
        system_identifier: SYSTEM,
        database_oid: 16_384,
        database: "shop".into(),
        is_standby: false,
        timeline: 1,
        wal_end: Lsn(9_000),
        user: "landfall".into(),
        client_address: None,
        may_replicate: true,
        bypasses_row_security: false,
        settings: settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        slots_used: 1,
        senders_used: 0,
        blocking: Vec::new(),
    }
}

pub(crate) fn slot() -> SlotFacts {
    SlotFacts {
        name: "landfall_shop".into(),
        plugin: Some(PLUGIN.into()),
        database_oid: Some(16_384),
        database: Some("shop".into()),
        is_temporary: false,
        is_two_phase: false,
        active_pid: None,
        restart_lsn: Some(Lsn(4_000)),
        confirmed_flush_lsn: Some(Lsn(4_500)),
        wal_status: Some("reserved".into()),
        safe_wal_bytes: None,
        invalidation_reason: None,
        inactive_seconds: None,
        is_failover: false,
        is_synced: false,
        catalog_xmin_age: Some(3),
        held_bytes: Some(5_000),
    }
}

pub(crate) fn column(attnum: i16, name: &str) -> ColumnShape {
    ColumnShape {
        name: name.into(),
        attnum,
        type_oid: 25,
        modifier: -1,
        kind: PgType::Text,
        is_not_null: attnum == 1,
        is_key: attnum == 1,
        is_generated: false,
        is_toastable: false,
    }
}

pub(crate) fn leaf(oid: u32, name: &str) -> LeafFacts {
    LeafFacts {
        relation: RelationId(oid),
        name: table_name(name),
        has_usable_identity: true,
        heap_bytes: 0,
        file_node: oid,
        is_row_security_active: false,
        may_select: true,
        is_foreign: false,
    }
}

/// A plain table `(id primary key, body)`.
pub(crate) fn table(oid: u32, name: &str) -> TableFacts {
    TableFacts {
        shape: TableShape {
            relation: RelationId(oid),
            name: table_name(name),
            identity: Identity::Default,
            columns: vec![column(1, "id"), column(2, "body")],
        },
        key: KeyOrigin::PrimaryKey,
        has_usable_identity: true,
        deferrable_key: None,
        is_partitioned: false,
        leaves: vec![leaf(oid, name)],
        is_row_security_active: false,
        may_use_schema: true,
        may_select: true,
        row_filter: None,
        text_columns: Vec::new(),
    }
}
