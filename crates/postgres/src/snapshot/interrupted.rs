//! What of an interrupted copy may be kept when its snapshot is gone (P56).

use crate::{Identity, TableShape};

/// How a target takes a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// By key and version: the newest version of a key wins, in any order.
    Versioned,
    /// Every row is added.
    Append,
}

/// How an unfinished table goes on under a fresh snapshot C2. Finished tables are not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyResume {
    /// Its finished ranges stay.
    pub keeps_ranges: bool,
    /// The rows that were copied are deleted from the target before C2 is taken.
    pub deletes_partial: bool,
    /// Streamed commits below C2 are skipped: the copy at C2 has them.
    pub skips_below_snapshot: bool,
}

/// Decides for one table.
///
/// A versioned target takes all streamed changes from C on and versions decide, so rows copied at C and at C2 may
/// stand side by side: but only if every update brings the whole row. An update without its unchanged large values
/// needs the row that it updates, which a range kept from C may have and the newer snapshot may have moved.
pub fn resume_copy(target: TargetKind, shape: &TableShape) -> CopyResume {
    let is_whole = shape.identity == Identity::Full || !shape.columns.iter().any(|column| column.is_toastable);
    match target {
        TargetKind::Versioned => {
            CopyResume { keeps_ranges: is_whole, deletes_partial: false, skips_below_snapshot: false }
        }
        TargetKind::Append => CopyResume { keeps_ranges: false, deletes_partial: true, skips_below_snapshot: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ColumnShape;
    use crate::fixtures::{column, table};

    fn shape(identity: Identity, is_toastable: bool) -> TableShape {
        let body = ColumnShape { is_toastable, ..column(2, "body") };
        TableShape { identity, columns: vec![column(1, "id"), body], ..table(1, "t").shape }
    }

    /// Catches ranges kept where a later update may lack the values that they hold (P56), and append targets that
    /// keep rows of two snapshots.
    #[test]
    fn ranges_survive_a_lost_snapshot_only_where_updates_bring_whole_rows() {
        let keeps = |target, identity, toast| resume_copy(target, &shape(identity, toast)).keeps_ranges;
        assert!(keeps(TargetKind::Versioned, Identity::Full, true));
        assert!(keeps(TargetKind::Versioned, Identity::Default, false));
        assert!(!keeps(TargetKind::Versioned, Identity::Default, true));
        let append = resume_copy(TargetKind::Append, &shape(Identity::Full, false));
        assert_eq!(append, CopyResume { keeps_ranges: false, deletes_partial: true, skips_below_snapshot: true });
    }
}
