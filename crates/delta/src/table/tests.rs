use super::*;

fn ids() -> AppIds {
    AppIds::of(&PipelineId("shop".into()), "postgres:7:main")
}

fn txns(found: &[(&str, i64)]) -> Positions {
    let mut txns = Txns::default();
    for (app_id, version) in found {
        txns.add(&ids(), app_id, *version).expect("a number");
    }
    txns.positions()
}

/// Catches a name of something else that is taken for a position of ours.
#[test]
fn an_app_id_is_read_in_the_one_form_that_is_written() {
    let (p, q) = (PartitionId(3), PartitionId(40));
    assert_eq!(ids().parse(&ids().name(p)), Some((p, None)));
    assert_eq!(ids().parse(&ids().name_inside(q, 77)), Some((q, Some(77))));
    for other in
        ["", "x", "03", "+3", "3:", "3:077", "3:+7", "3:7:1", ":7", "3:-7", "99999999999", "3:99999999999999999999"]
    {
        assert_eq!(ids().parse(&format!("landfall:shop:postgres:7:main:{other}")), None, "{other}");
    }
    assert_eq!(ids().parse("landfall:shop:postgres:7:other:3"), None);
}

/// Catches the inside of a transaction that is over, or of another partition, taken for a position.
#[test]
fn an_inside_counts_only_beside_its_own_transaction() {
    let name = |rest: &str| format!("landfall:shop:postgres:7:main:{rest}");
    let (end, inside, old, other) = (name("3"), name("3:70"), name("3:60"), name("4:70"));
    let place = |at, within| Positions::from([(PartitionId(3), Place { at, within })]);
    assert_eq!(txns(&[(&end, 70), (&inside, 9), (&old, 5), (&other, 4)]), place(70, 9));
    assert_eq!(txns(&[(&inside, 9), (&end, 99)]), place(99, 0));
    assert_eq!(txns(&[(&end, 70), (&inside, 9), (&end, 60), (&inside, 2)]), place(70, 9), "the first counts");
    assert!(txns(&[(&inside, 9)]).is_empty());
    assert!(Txns::default().add(&ids(), &end, -1).is_err());
}
