use super::*;
use crate::catalog::LeafFacts;
use crate::fixtures::{self, table_name as name};

fn table(oid: u32, of: &str, is_identified: bool) -> TableFacts {
    TableFacts { has_usable_identity: is_identified, ..fixtures::table(oid, of) }
}

fn leaf(oid: u32, of: &str, is_identified: bool) -> LeafFacts {
    LeafFacts { has_usable_identity: is_identified, ..fixtures::leaf(oid, of) }
}

fn publication(tables: &[(u32, &str)]) -> PublicationFacts {
    let published = |&(oid, of): &(u32, &str)| PublishedTable {
        relation: RelationId(oid),
        name: name(of),
        columns: None,
        row_filter: None,
    };
    PublicationFacts {
        name: "p".to_owned(),
        is_for_all_tables: false,
        has_schemas: false,
        missing_operations: Vec::new(),
        is_via_root: true,
        is_own: true,
        tables: tables.iter().map(published).collect(),
    }
}

/// Catches a table added to a publication whose UPDATEs then fail on the source (P53).
#[test]
fn a_table_without_usable_identity_is_never_added() {
    let wanted = [table(1, "orders", true), table(2, "log", false)];
    let plan = plan_publication("p", None, &wanted);
    assert_eq!(plan.refused, [name("log")]);
    assert_eq!(plan.statements.len(), 1);
    assert!(
        plan.statements[0].starts_with("CREATE PUBLICATION p FOR TABLE ONLY public.orders WITH"),
        "{:?}",
        plan.statements
    );
    let plan = plan_publication("p", Some(&publication(&[])), &wanted);
    assert_eq!(plan.statements, ["ALTER PUBLICATION p ADD TABLE ONLY public.orders;"]);
}

/// Catches a partitioned table that is judged by its root where a leaf cannot name its rows (F-P18).
#[test]
fn identity_is_checked_on_every_leaf() {
    let mut root = table(1, "events", true);
    root.is_partitioned = true;
    root.leaves = vec![leaf(2, "events_1", true), leaf(3, "events_2", false)];
    assert_eq!(plan_publication("p", None, std::slice::from_ref(&root)).refused, [name("events")]);
    root.leaves.pop();
    assert!(plan_publication("p", None, &[root]).refused.is_empty());
}

/// Catches a publication taken as complete that leaves operations out or sends leaves under their own names.
#[test]
fn what_a_publication_lacks_is_named_with_its_statement() {
    let mut root = table(1, "Events", true);
    root.is_partitioned = true;
    root.leaves = vec![leaf(2, "events_1", true)];
    let mut now = publication(&[(2, "events_1")]);
    now.is_via_root = false;
    now.missing_operations = vec!["delete", "truncate"];
    let plan = plan_publication("p", Some(&now), &[root]);
    assert_eq!(
        plan.statements,
        [
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate');",
            "ALTER PUBLICATION p SET (publish_via_partition_root = true);",
        ]
    );
    assert!(plan_publication("p", Some(&publication(&[(1, "a"), (9, "b")])), &[table(1, "a", true)]).is_complete());
}
