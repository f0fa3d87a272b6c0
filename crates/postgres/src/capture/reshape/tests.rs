//! What a table becomes by a Relation message, for a lake and for a channel.

use landfall_engine::contract::TableAbilities;

use super::super::options::CaptureOptions;
use super::super::starts::fresh;
use super::*;
use crate::record::TablePhase;
use crate::{TableName, fixtures};

const LAKE: TableAbilities = TableAbilities { orders_by_position: true, takes_new_types: false, takes_new_keys: false };
const CHANNEL: TableAbilities =
    TableAbilities { orders_by_position: false, takes_new_types: true, takes_new_keys: true };
const TEXT: u32 = 25;
const INT4: u32 = 23;

/// `(id primary key, body)`, both text.
fn captured() -> Captured {
    let facts = fixtures::table(5, "t");
    let record = fresh(&facts, 1, TablePhase::Streaming, None);
    let connect = ConnectOptions::parse("postgres://landfall@db/shop", None, None).expect("a url");
    Captured::new(&record, &facts, &CaptureOptions::new("shop", connect, Vec::new())).expect("a plain table")
}

fn relation(identity: Identity, columns: &[(&str, u32, bool)]) -> Relation {
    let columns = columns.iter().map(|(name, type_oid, is_identity)| StreamColumn {
        name: (*name).into(),
        is_identity: *is_identity,
        type_oid: *type_oid,
        modifier: -1,
    });
    let name: TableName = captured().plan.shape().name.clone();
    Relation { id: RelationId(5), name, identity, columns: columns.collect() }
}

/// The new key and the notes; `Err`: why it is parked.
fn become_of(now: &Relation, found: &Found, abilities: TableAbilities) -> Result<(Vec<String>, String), String> {
    let table = captured();
    match table.follow(now, abilities) {
        Follow::AsIs => Ok((names_of(&table), String::new())),
        Follow::Park(parked) => Err(parked.reason),
        Follow::Reshape(_) => match table.reshaped(now, found, 2, abilities) {
            Ok(Reshaped { table, notes }) => Ok((names_of(&table), notes.join("; "))),
            Err(parked) => Err(parked.reason),
        },
    }
}

fn names_of(table: &Captured) -> Vec<String> {
    table.plan.key().iter().map(|name| String::from(&**name)).collect()
}

/// Catches a table that is parked although its channel could carry it, one that goes on into a lake that cannot, and a change
/// that nobody is told of (P84).
#[test]
fn what_parks_a_table_of_a_lake_goes_on_into_a_channel_and_is_noted() {
    let full_key = |key: &str| Found { key: Some(vec![key.into()]), ..Found::default() };
    let retyped = Found { types: vec![(INT4, -1, PgType::Int4)], ..Found::default() };
    let (default, full) = (Identity::Default, Identity::Full);
    let cases: [(&str, Relation, Found, &[&str], &str); 8] = [
        (
            "type",
            relation(default, &[("id", TEXT, true), ("body", INT4, false)]),
            retyped,
            &["id"],
            "`body` has another",
        ),
        (
            "joined",
            relation(default, &[("id", TEXT, true), ("body", TEXT, true)]),
            Found::default(),
            &["id", "body"],
            "`id`, `body`",
        ),
        (
            "left",
            relation(default, &[("id", TEXT, false), ("body", TEXT, true)]),
            Found::default(),
            &["body"],
            "before by `id`",
        ),
        (
            "none",
            relation(default, &[("id", TEXT, false), ("body", TEXT, false)]),
            Found::default(),
            &[],
            "refuses its UPDATE",
        ),
        (
            "nothing",
            relation(Identity::Nothing, &[("id", TEXT, false), ("body", TEXT, false)]),
            Found::default(),
            &[],
            "refuses its UPDATE",
        ),
        ("dropped", relation(default, &[("body", TEXT, false)]), Found::default(), &[], "refuses its UPDATE"),
        (
            "new",
            relation(default, &[("id", TEXT, true), ("body", TEXT, false), ("n", TEXT, true)]),
            Found::default(),
            &["id", "n"],
            "`id`, `n`",
        ),
        ("full", relation(full, &[("body", TEXT, true)]), full_key("body"), &["body"], "FULL now, it was DEFAULT"),
    ];
    for (name, now, found, key, word) in cases {
        become_of(&now, &found, LAKE).expect_err(name);
        let (is, notes) = become_of(&now, &found, CHANNEL).expect(name);
        assert_eq!(is, key, "{name}: {notes}");
        assert!(notes.contains(word), "{name}: {notes}");
    }
}

/// Catches a notice of what is none, one that is given again whenever the server describes the table again, and a catalog that
/// is asked for what the message says.
#[test]
fn what_changes_nothing_for_a_reader_is_not_noted() {
    let same = relation(Identity::Default, &[("id", TEXT, true), ("body", TEXT, false)]);
    let wider = relation(Identity::Default, &[("id", TEXT, true), ("body", TEXT, false), ("more", TEXT, false)]);
    let nothing = relation(Identity::Nothing, &[("id", TEXT, false), ("body", TEXT, false)]);
    for abilities in [LAKE, CHANNEL] {
        assert!(matches!(captured().follow(&same, abilities), Follow::AsIs));
        let (_, notes) = become_of(&wider, &Found::default(), abilities).expect("goes on");
        assert_eq!(notes, "");
    }
    let Follow::Reshape(unknown) = captured().follow(&nothing, CHANNEL) else { panic!("another shape") };
    assert!(unknown.is_nothing(), "{unknown:?}");
    let now = captured().reshaped(&nothing, &Found::default(), 2, CHANNEL).expect("goes on").table;
    assert!(matches!(now.follow(&nothing, CHANNEL), Follow::AsIs));
    let filled = Found { filled: vec!["more".into()], ..Found::default() };
    let (_, notes) = become_of(&wider, &filled, CHANNEL).expect("goes on");
    assert!(notes.contains("`more` came with a value"), "{notes}");
}
