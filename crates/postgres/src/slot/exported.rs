//! A slot with its exported snapshot, held open: what a first start and every later copy begin with (P52, P59).

use std::time::{Duration, Instant};

use super::{PLUGIN, SlotCreationError, SlotIdentity, create_within, drop_slot};
use crate::catalog::ServerFacts;
use crate::publication::{PublicationPlan, apply_publication};
use crate::snapshot::CopySnapshot;
use crate::sql::SqlConnection;
use crate::transport::{CreateSlot, CreatedSlot, ReplicationConnection, SnapshotUse};
use crate::{ConnectError, ConnectOptions, Lsn};

/// A slot that was just made. Its snapshot is good as long as this is held: the connection behind it does nothing else.
#[derive(Debug)]
pub struct ExportedSlot {
    connection: ReplicationConnection,
    created: CreatedSlot,
    snapshot: String,
    taken_at: Instant,
}

impl ExportedSlot {
    /// The second part of a first start, after the intent is stored and before the identity is: the orphan of a
    /// crashed attempt goes, the publication comes before the slot and the slot before any position is used (F-P14).
    pub async fn first(
        connect: &ConnectOptions,
        sql: &SqlConnection,
        slot: &str,
        timeout: Duration,
        publication: &PublicationPlan,
        drops_orphan: bool,
    ) -> Result<Self, SlotCreationError> {
        if drops_orphan {
            tracing::warn!(slot, "dropping the slot of a first start that crashed (LF-PG0211)");
            drop_slot(sql, slot).await?;
        }
        apply_publication(sql, publication).await?;
        Self::create(connect, sql, slot, false, timeout).await
    }

    /// A slot that goes with its connection, for the copy of single tables at a point C2.
    pub async fn temporary(
        connect: &ConnectOptions,
        sql: &SqlConnection,
        slot: &str,
        timeout: Duration,
    ) -> Result<Self, SlotCreationError> {
        Self::create(connect, sql, slot, true, timeout).await
    }

    async fn create(
        connect: &ConnectOptions,
        sql: &SqlConnection,
        slot: &str,
        is_temporary: bool,
        timeout: Duration,
    ) -> Result<Self, SlotCreationError> {
        let mut connection = ReplicationConnection::connect(connect).await?;
        let wanted =
            CreateSlot { name: slot.to_owned(), is_temporary, snapshot: SnapshotUse::Export, is_failover: false };
        let created = create_within(slot, timeout, sql, connection.create_slot(&wanted)).await?;
        let snapshot = created.snapshot_name.clone().ok_or_else(|| ConnectError::Protocol {
            what: format!("slot `{slot}` was created without the snapshot that was asked for"),
        })?;
        tracing::info!(slot, point = %created.consistent_point, is_temporary, "slot created");
        Ok(ExportedSlot { connection, created, snapshot, taken_at: Instant::now() })
    }

    /// C: the snapshot holds exactly the commits before it.
    pub fn consistent_point(&self) -> Lsn {
        self.created.consistent_point
    }

    /// Whose progress positions of this slot are.
    pub fn identity(&self, server: &ServerFacts) -> SlotIdentity {
        SlotIdentity {
            system_identifier: server.system_identifier,
            database_oid: server.database_oid,
            slot: self.created.name.clone(),
            plugin: PLUGIN.to_owned(),
            consistent_point: self.created.consistent_point,
        }
    }

    /// For the copy.
    pub fn snapshot(&self) -> CopySnapshot {
        CopySnapshot {
            name: self.snapshot.clone(),
            consistent_point: self.created.consistent_point,
            taken_at: self.taken_at,
        }
    }

    /// The copy is done: the snapshot ends here, and the connection may stream.
    pub fn into_connection(self) -> ReplicationConnection {
        self.connection
    }
}
