use serde_json::json;

use super::*;

fn metadata(schema: &str, configuration: Value) -> Metadata {
    Metadata::read(json!({"id": "t", "schemaString": schema, "partitionColumns": [], "configuration": configuration}))
        .expect("a metadata action")
}

fn protocol(reader: i32, writer: i32, features: &[&str]) -> Protocol {
    let features: Vec<String> = features.iter().map(|name| name.to_string()).collect();
    let modern = |at: bool| at.then(|| features.clone());
    Protocol {
        min_reader_version: reader,
        min_writer_version: writer,
        reader_features: modern(reader == 3).map(|_| Vec::new()),
        writer_features: modern(writer == 7),
    }
}

/// Catches an append to a table whose rules we would break without noticing (T11).
#[test]
fn a_feature_off_the_list_is_refused_by_name() {
    let plain = metadata("{}", json!({}));
    for name in ["rowTracking", "inCommitTimestamp", "icebergCompatV1", "somethingOfTomorrow"] {
        let error = check_protocol(&protocol(3, 7, &[name]), &plain).expect_err("not on the list").to_string();
        assert!(error.contains(name), "{error}");
    }
    assert!(check_protocol(&protocol(4, 7, &[]), &plain).is_err());
    assert!(check_protocol(&protocol(3, 8, &[]), &plain).is_err());
    let known = ["appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz"];
    check_protocol(&protocol(3, 7, &known), &plain).expect("asks nothing of an append");
}

/// Catches a refusal of every table that Spark makes: it lists constraints that no column has.
#[test]
fn constraints_listed_but_not_defined_are_accepted() {
    let listed = ["invariants", "checkConstraints", "generatedColumns", "identityColumns", "columnMapping"];
    check_protocol(&protocol(3, 7, &listed), &metadata("{}", json!({}))).expect("none is defined");
    check_protocol(&protocol(1, 6, &[]), &metadata("{}", json!({}))).expect("implied by the version, none defined");
}

/// Catches a constraint that is defined and not kept, whether listed or implied by a version.
#[test]
fn constraints_that_are_defined_are_refused() {
    let cases = [
        (metadata(r#"{"metadata":{"delta.invariants":"x"}}"#, json!({})), "invariants"),
        (metadata(r#"{"metadata":{"delta.generationExpression":"x"}}"#, json!({})), "generatedColumns"),
        (metadata(r#"{"metadata":{"delta.identity.start":1}}"#, json!({})), "identityColumns"),
        (metadata("{}", json!({"delta.constraints.positive": "a > 0"})), "checkConstraints"),
        (metadata("{}", json!({"delta.columnMapping.mode": "name"})), "columnMapping"),
    ];
    for (table, feature) in cases {
        for protocol in [protocol(3, 7, &[feature]), protocol(2, 6, &[])] {
            let error = check_protocol(&protocol, &table).expect_err("is defined").to_string();
            assert!(error.contains(feature), "{error}");
        }
    }
}

/// Catches T6: a table that forgets positions while a pipeline is away.
#[test]
fn a_short_transaction_retention_is_refused() {
    for (text, accepted) in [
        ("interval 30 days", true),
        ("INTERVAL 5 weeks", true),
        ("interval 29 days", false),
        ("interval 1 hour", false),
        ("a while", false),
        ("interval 99999999999999999999 days", false),
    ] {
        let table = metadata("{}", json!({(RETENTION_PROPERTY): text}));
        assert_eq!(check_retention(&table).is_ok(), accepted, "{text}");
    }
    check_retention(&metadata("{}", json!({}))).expect("not set");
}

/// Catches a metadata action that panics on a missing part, or loses what it does not know.
#[test]
fn metadata_is_read_whole_or_refused() {
    assert!(Metadata::read(json!({"id": "t"})).is_err());
    assert!(Metadata::read(json!([])).is_err());
    let table = Metadata::read(json!({"id": "t", "schemaString": "a", "ofTomorrow": 1})).expect("complete");
    assert_eq!(table.with_schema("b".into()).json(), json!({"id": "t", "schemaString": "b", "ofTomorrow": 1}));
}
