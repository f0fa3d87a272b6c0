//! The cache, and what differs between two looks at a table.

use landfall_types::Coded;
use proptest::prelude::*;

use super::*;
use crate::decode::{Message, decode, sample};
use crate::{ColumnShape, PgType};

const LSN: Lsn = Lsn(7);

fn take(relations: &mut Relations, bytes: &[u8]) -> Taken {
    match decode(LSN, bytes) {
        Ok(Message::Relation(body)) => relations.take(LSN, &body).expect("room"),
        other => panic!("a relation, not {other:?}"),
    }
}

fn shape(columns: &[(&str, u32, bool)]) -> TableShape {
    TableShape {
        relation: RelationId(5),
        name: TableName { schema: "public".into(), table: "t".into() },
        identity: Identity::Default,
        columns: columns
            .iter()
            .enumerate()
            .map(|(at, (name, type_oid, is_key))| ColumnShape {
                name: (*name).into(),
                attnum: at as i16 + 1,
                type_oid: *type_oid,
                modifier: -1,
                kind: PgType::Text,
                is_not_null: *is_key,
                is_key: *is_key,
                is_generated: false,
                is_toastable: true,
            })
            .collect(),
    }
}

fn stream(columns: &[(&str, u32, bool)]) -> Relation {
    Relation {
        id: RelationId(5),
        name: TableName { schema: "public".into(), table: "t".into() },
        identity: Identity::Default,
        columns: columns
            .iter()
            .map(|(name, type_oid, is_identity)| StreamColumn {
                name: (*name).into(),
                is_identity: *is_identity,
                type_oid: *type_oid,
                modifier: -1,
            })
            .collect(),
    }
}

/// Catches a cache that depends on whether a table is followed, or that keeps parts of an older shape (F-P15).
#[test]
fn relations_of_skipped_rows_are_cached() {
    let mut relations = Relations::new();
    let first = sample::relation(5, "public", "t", b'd', &[(1, "id", 23, -1), (0, "a", 25, -1)]);
    assert_eq!(take(&mut relations, &first), Taken::New);
    assert_eq!(take(&mut relations, &first), Taken::Same);
    let second = sample::relation(5, "public", "t", b'f', &[(1, "id", 20, -1)]);
    assert_eq!(take(&mut relations, &second), Taken::Changed);
    let known = relations.get(LSN, RelationId(5)).expect("known");
    assert_eq!((known.identity, known.columns.len(), known.columns[0].type_oid), (Identity::Full, 1, 20));
    assert_eq!(relations.len(), 1);
}

/// Catches a change of an unknown relation that passes as "nothing to do" (P67).
#[test]
fn an_unknown_relation_parks_and_drops_nothing() {
    let error = Relations::new().get(Lsn(0x10), RelationId(9)).expect_err("unknown");
    assert_eq!(error.code().to_string(), "LF-PG0302");
    assert!(error.to_string().contains("0/10") && error.to_string().contains("relation 9"), "{error}");
}

/// Catches a cache that grows with what a peer claims (I14).
#[test]
fn the_cache_is_bounded() {
    let mut relations = Relations::new();
    for id in 0..RELATIONS_MAX as u32 {
        take(&mut relations, &sample::relation(id, "s", "t", b'd', &[]));
        relations.take_type(id, "s", "t");
    }
    relations.take_type(u32::MAX, "s", "t");
    assert!(relations.type_name(u32::MAX).is_none() && relations.type_name(0).is_some());
    assert_eq!(take(&mut relations, &sample::relation(0, "s", "u", b'd', &[])), Taken::Changed);
    let bytes = sample::relation(u32::MAX, "s", "t", b'd', &[]);
    let Ok(Message::Relation(body)) = decode(LSN, &bytes) else { panic!("a relation") };
    assert_eq!(relations.take(LSN, &body).expect_err("full").code().to_string(), "LF-PG0306");
}

/// Catches a difference that goes unseen or is taken for another.
#[test]
fn a_diff_tells_what_changed() {
    let known = shape(&[("id", 23, true), ("a", 25, false), ("b", 25, false)]);
    let same = stream(&[("id", 23, true), ("a", 25, false), ("b", 25, false)]);
    assert!(ShapeDiff::between(&known, &same).is_empty());

    let added =
        ShapeDiff::between(&known, &stream(&[("id", 23, true), ("a", 25, false), ("b", 25, false), ("c", 20, false)]));
    assert_eq!((added.added.len(), added.dropped.len(), added.keeps_rows()), (1, 0, false));
    assert_eq!(&*added.added[0].name, "c");

    let dropped = ShapeDiff::between(&known, &stream(&[("id", 23, true), ("b", 25, false)]));
    assert_eq!(dropped.dropped, ["a".into()]);
    assert!(dropped.added.is_empty() && dropped.maybe_renamed.is_empty() && !dropped.is_reordered);

    let retyped = ShapeDiff::between(&known, &stream(&[("id", 20, true), ("a", 25, false), ("b", 25, false)]));
    assert_eq!(retyped.retyped, [Retyped { name: "id".into(), before: (23, -1), now: (20, -1) }]);

    let reordered = ShapeDiff::between(&known, &stream(&[("id", 23, true), ("b", 25, false), ("a", 25, false)]));
    assert!(reordered.is_reordered && !reordered.keeps_rows() && reordered.added.is_empty());

    let rekeyed = ShapeDiff::between(&known, &stream(&[("id", 23, false), ("a", 25, true), ("b", 25, false)]));
    assert!(rekeyed.changes_key() && rekeyed.keeps_rows());
    assert_eq!(rekeyed.rekeyed.len(), 2);

    let mut full = same.clone();
    full.identity = Identity::Full;
    full.columns.iter_mut().for_each(|column| column.is_identity = true);
    let full = ShapeDiff::between(&known, &full);
    assert_eq!(full.identity, Some((Identity::Default, Identity::Full)));
    assert!(full.rekeyed.is_empty(), "under FULL the flags say nothing of the key");

    let mut moved = same;
    moved.name.table = "u".into();
    let moved = ShapeDiff::between(&known, &moved);
    assert!(moved.renamed_table.is_some() && moved.keeps_rows());
}

/// Catches a rename that is decided by a message: it is a pair of a drop and an add, and only perhaps one (P82).
#[test]
fn a_rename_is_only_ever_a_perhaps() {
    let known = shape(&[("id", 23, true), ("a", 25, false)]);
    let perhaps = ShapeDiff::between(&known, &stream(&[("id", 23, true), ("z", 25, false)]));
    assert_eq!(perhaps.maybe_renamed, [("a".into(), "z".into())]);
    assert_eq!((perhaps.added.len(), perhaps.dropped.len()), (1, 1));
    let other_type = ShapeDiff::between(&known, &stream(&[("id", 23, true), ("z", 20, false)]));
    assert!(other_type.maybe_renamed.is_empty());
}

proptest! {
    /// Catches a diff that forgets a column: applied to the known names it must give the new ones.
    #[test]
    fn a_diff_leads_from_one_set_of_columns_to_the_other(
        before in proptest::collection::hash_set("[a-e]", 0..5),
        after in proptest::collection::hash_set("[a-e]", 0..5),
    ) {
        fn columns(names: &std::collections::HashSet<String>) -> Vec<(&str, u32, bool)> {
            names.iter().map(|name| (name.as_str(), 25, false)).collect()
        }
        let diff = ShapeDiff::between(&shape(&columns(&before)), &stream(&columns(&after)));
        let mut names: Vec<String> = before.iter().filter(|name| !diff.dropped.iter().any(|gone| **gone == ***name)).cloned().collect();
        names.extend(diff.added.iter().map(|column| column.name.to_string()));
        names.sort();
        let mut wanted: Vec<String> = after.into_iter().collect();
        wanted.sort();
        prop_assert_eq!(names, wanted);
        prop_assert_eq!(diff.keeps_rows(), diff.added.is_empty() && diff.dropped.is_empty() && !diff.is_reordered);
    }
}
