//! Whether a slot that nobody reads from holds changes up to a position.

use crate::Lsn;
use crate::sql::{SqlConnection, SqlError, literal, quoted};

/// Whether slot `slot` holds transactions with rows of the publication that end behind `from` and up to `until`. Reads the slot without moving it; refused by the server while somebody streams from it.
pub async fn has_pending_changes(
    sql: &SqlConnection,
    slot: &str,
    publication: &str,
    from: Lsn,
    until: Lsn,
) -> Result<bool, SqlError> {
    let doing = "look at what the slot holds";
    // I, U, D, T: the four messages that carry rows. A transaction's last message is its commit, given at its end LSN,
    // and a checkpoint is an end LSN (P98).
    let query = format!(
        "SELECT coalesce(bool_or(t.has_rows), false) FROM (
           SELECT bool_or(pg_catalog.get_byte(c.data, 0) IN (73, 85, 68, 84)) AS has_rows, max(c.lsn) AS last
           FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}, NULL,
             'proto_version', '1', 'publication_names', {}) AS c
           GROUP BY c.xid) AS t
         WHERE t.last > {}::pg_lsn AND t.last <= {}::pg_lsn",
        literal(slot),
        literal(&until.to_string()),
        literal(&quoted(publication)),
        literal(&from.to_string()),
        literal(&until.to_string()),
    );
    let row = sql.row(doing, &query, &[]).await?;
    row.try_get(0).map_err(|cause| sql.failed(doing, cause))
}
