use super::KeyOrigin;
use super::key::{IndexRow, key_of};
use crate::Identity;

fn index(name: &str, columns: &[i16]) -> IndexRow {
    IndexRow {
        name: name.into(),
        is_primary: false,
        is_identity: false,
        is_unique: true,
        is_immediate: true,
        is_valid: true,
        is_partial: false,
        columns: columns.to_vec(),
    }
}

/// Catches a table that is published although the server cannot name its rows, so that its own UPDATEs would fail.
#[test]
fn default_identity_needs_an_immediate_primary_key() {
    let primary = IndexRow { is_primary: true, ..index("t_pkey", &[1]) };
    let deferrable = IndexRow { is_immediate: false, ..primary.clone() };
    let key = key_of(Identity::Default, std::slice::from_ref(&primary), &[1]);
    assert_eq!((key.origin, key.columns, key.has_usable_identity), (KeyOrigin::PrimaryKey, vec![1], true));
    let key = key_of(Identity::Default, &[deferrable], &[1]);
    assert!(!key.has_usable_identity && key.deferrable.as_deref() == Some("t_pkey"));
    assert!(!key_of(Identity::Default, &[index("u", &[1])], &[1]).has_usable_identity);
    assert!(!key_of(Identity::Nothing, &[primary], &[1]).has_usable_identity);
}

/// Catches the primary key taken as key where an update sends the identity index's old values only (P69).
#[test]
fn index_identity_makes_the_index_the_key() {
    let primary = IndexRow { is_primary: true, ..index("t_pkey", &[1]) };
    let identity = IndexRow { is_identity: true, ..index("t_code", &[2, 3]) };
    let key = key_of(Identity::Index, &[primary.clone(), identity], &[1, 2, 3]);
    assert_eq!((key.origin, key.columns), (KeyOrigin::IdentityIndex("t_code".into()), vec![2, 3]));
    assert!(!key_of(Identity::Index, &[primary], &[1]).has_usable_identity, "its index was dropped");
}

/// Catches a "key" of a FULL table that allows equal rows: nullable, partial, deferrable or invalid.
#[test]
fn full_identity_takes_a_unique_index_only_if_no_two_rows_can_share_it() {
    let good = index("b_good", &[4, 5]);
    let with = |bad: IndexRow| key_of(Identity::Full, &[bad, good.clone()], &[1, 4, 5]).origin;
    for bad in [
        index("a_null", &[2]),
        IndexRow { is_partial: true, ..index("a", &[1]) },
        IndexRow { is_immediate: false, ..index("a", &[1]) },
        IndexRow { is_valid: false, ..index("a", &[1]) },
        IndexRow { is_unique: false, ..index("a", &[1]) },
    ] {
        assert_eq!(with(bad), KeyOrigin::UniqueIndex("b_good".into()));
    }
    let primary = IndexRow { is_primary: true, is_immediate: false, ..index("t_pkey", &[1]) };
    let key = key_of(Identity::Full, &[good, primary.clone()], &[1, 4, 5]);
    assert_eq!((key.origin, key.deferrable), (KeyOrigin::UniqueIndex("b_good".into()), None));
    let key = key_of(Identity::Full, &[primary], &[1, 4, 5]);
    assert_eq!((key.origin, key.has_usable_identity), (KeyOrigin::PrimaryKey, true));
    assert_eq!(key.deferrable.as_deref(), Some("t_pkey"));
    let key = key_of(Identity::Full, &[], &[]);
    assert_eq!((key.origin, key.has_usable_identity), (KeyOrigin::None, true));
}
