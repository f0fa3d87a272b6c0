//! Which columns name a row (P69), as a function of identity and indexes.

use std::sync::Arc;

use super::KeyOrigin;
use crate::Identity;

/// An index, as far as keys depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) name: Arc<str>,
    pub(super) is_primary: bool,
    pub(super) is_identity: bool,
    pub(super) is_unique: bool,
    /// Checked at once, not at commit.
    pub(super) is_immediate: bool,
    pub(super) is_valid: bool,
    /// Over some rows only, or over expressions.
    pub(super) is_partial: bool,
    /// The key's columns, without included ones.
    pub(super) columns: Vec<i16>,
}

/// What a table's rows are named by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) origin: KeyOrigin,
    pub(super) columns: Vec<i16>,
    /// The constraint, if it is checked at commit only.
    pub(super) deferrable: Option<Arc<str>>,
    pub(super) has_usable_identity: bool,
}

/// The key that changes are applied by. `not_null`: the table's NOT NULL columns.
pub(super) fn key_of(identity: Identity, indexes: &[IndexRow], not_null: &[i16]) -> Key {
    let primary = indexes.iter().find(|index| index.is_primary && index.is_valid);
    let none = |has_usable_identity| Key {
        origin: KeyOrigin::None,
        columns: Vec::new(),
        deferrable: None,
        has_usable_identity,
    };
    let by = |index: &IndexRow, origin| Key {
        origin,
        columns: index.columns.clone(),
        deferrable: (!index.is_immediate).then(|| index.name.clone()),
        has_usable_identity: true,
    };
    match identity {
        // The server does not log the old key of a deferrable primary key: updates fail once they are published.
        Identity::Default => match primary {
            Some(index) => Key { has_usable_identity: index.is_immediate, ..by(index, KeyOrigin::PrimaryKey) },
            None => none(false),
        },
        Identity::Index => match indexes.iter().find(|index| index.is_identity && index.is_valid) {
            Some(index) => by(index, KeyOrigin::IdentityIndex(index.name.clone())),
            // The index was dropped: the server then acts as for NOTHING.
            None => none(false),
        },
        Identity::Full => {
            let is_key = |index: &&IndexRow| {
                index.is_unique
                    && index.is_valid
                    && index.is_immediate
                    && !index.is_partial
                    && index.columns.iter().all(|column| not_null.contains(column))
            };
            // The shortest, then by name, so that two reads never choose differently.
            let unique = indexes.iter().filter(is_key).min_by_key(|index| (index.columns.len(), index.name.clone()));
            match (primary, unique) {
                // Two rows may have the key of a deferrable one for a while, which those of another never have.
                (Some(primary), Some(index)) if !primary.is_immediate => {
                    by(index, KeyOrigin::UniqueIndex(index.name.clone()))
                }
                (Some(index), _) => by(index, KeyOrigin::PrimaryKey),
                (None, Some(index)) => by(index, KeyOrigin::UniqueIndex(index.name.clone())),
                (None, None) => none(true),
            }
        }
        Identity::Nothing => none(false),
    }
}
