//! How many rows the copy of a table would have, without copying it.

use crate::catalog::TableFacts;
use crate::sql::{SqlConnection, SqlError, relation};

/// Counts the rows that a copy would send, in the snapshot that the connection is in: of the leaves that are copied, by
/// the publication's row filter. The connection's deadline holds for each leaf.
pub async fn count_rows(sql: &SqlConnection, table: &TableFacts) -> Result<u64, SqlError> {
    let doing = "count the rows of a table";
    let filter = table.row_filter.as_ref().map_or(String::new(), |filter| format!(" WHERE {filter}"));
    let mut total = 0_u64;
    for leaf in table.leaves.iter().filter(|leaf| !leaf.is_foreign) {
        // ONLY: partitions that the leaf may have inherited rows to are leaves of their own.
        let row = sql.row(doing, &format!("SELECT count(*) FROM ONLY {}{filter}", relation(&leaf.name)), &[]).await?;
        let count: i64 = row.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
        total = total.saturating_add(u64::try_from(count).unwrap_or_default());
    }
    Ok(total)
}
