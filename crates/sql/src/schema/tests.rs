//! Type texts, pinned schemas, inference.

use super::*;

fn declare(columns: &[(&str, &str)]) -> Result<Schema, PlanError> {
    Schema::declare(columns.iter().map(|(name, text)| ((*name).to_owned(), ColumnText::from(*text))))
}

/// Catches a text that reads back as another type, which would change a pinned schema.
#[test]
fn a_pinned_schema_reads_back_the_same() {
    let mut schema = declare(&[
        ("a", "BIGINT not null"),
        ("b", "decimal( 12 , 2 )"),
        ("c", "struct<id: bigint not null, `a b`: array<map<string, json>>, \"q`q\": timestamp(ns)>"),
        ("d", "array<timestamp not null> NOT NULL"),
        ("e", "numeric(5)"),
    ])
    .unwrap();
    schema.columns[0].default = Some("7".to_owned());
    schema.columns[1].round = Some(Round::HalfEven);
    let pinned = schema.to_json();
    assert_eq!(Schema::from_json(&pinned).unwrap(), schema);
    assert_eq!(Schema::from_json(&pinned).unwrap().to_json(), pinned);
    for damaged in ["", "[]", "{}", "[{\"name\":\"a\"}]", "[{\"name\":\"a\",\"type\":\"bigin\"}]", &pinned[1..]] {
        let error = Schema::from_json(damaged).unwrap_err();
        assert_eq!(error.code, crate::code::BAD_PINNED_SCHEMA, "{damaged}");
    }
}

/// Catches a mistake that is taken, or a message without its place.
#[test]
fn a_wrong_type_text_is_named_with_its_place() {
    let cases = [
        ("bigin", "column `v`: `bigin` is not a type; did you mean `bigint`?\n  bigin\n  ^"),
        ("", "column `v`: expected a type, like bigint or struct<id: bigint>\n  \n  ^"),
        (
            "struct<id: bigint, n: strng>",
            "column `v`: `strng` is not a type; did you mean `string`?\n  struct<id: bigint, n: strng>\n                        ^",
        ),
        ("decimal", "column `v`: decimal needs precision and scale: decimal(12,2)\n  decimal\n         ^"),
        (
            "decimal(39,2)",
            "column `v`: decimal(39,2): precision is 1 to 38 and scale is at most the precision\n  decimal(39,2)\n          ^",
        ),
        (
            "decimal(5,6)",
            "column `v`: decimal(5,6): precision is 1 to 38 and scale is at most the precision\n  decimal(5,6)\n          ^",
        ),
        (
            "timestamp(m)",
            "column `v`: a timestamp of integers counts s, ms, us or ns: timestamp(ms)\n  timestamp(m)\n            ^",
        ),
        ("array<int", "column `v`: expected `>`\n  array<int\n           ^"),
        (
            "map<int, int>",
            "column `v`: the keys of a JSON object are `string`: write map<string, …>\n  map<int, int>\n      ^",
        ),
        ("bigint not", "column `v`: expected `not null`\n  bigint not\n         ^"),
        ("bigint bigint", "column `v`: expected `not null` or nothing\n  bigint bigint\n         ^"),
        (
            "struct<a: int, a: int>",
            "column `v`: field `a` is declared twice\n  struct<a: int, a: int>\n                 ^",
        ),
        ("struct<>", "column `v`: expected a field's name\n  struct<>\n         ^"),
    ];
    for (text, expected) in cases {
        let error = declare(&[("v", text)]).unwrap_err();
        assert_eq!(error.text, expected);
        assert_eq!(error.code, crate::code::BAD_SCHEMA);
    }
    let deep = format!("{}int{}", "array<".repeat(100_000), ">".repeat(100_000));
    assert!(declare(&[("v", &deep)]).is_err());
    for (name, wrong) in [("", "needs a name"), ("__x", "reserved")] {
        assert!(declare(&[(name, "int")]).unwrap_err().text.contains(wrong));
    }
    assert!(declare(&[("a", "int"), ("a", "int")]).unwrap_err().text.contains("twice"));
    assert!(declare(&[]).is_err());
}

/// Catches an inference that guesses, or that loses what a later record would hold (E101).
#[test]
fn inference_widens_to_what_all_samples_fit() {
    let samples: [&[u8]; 5] = [
        br#"{"id":1,"price":1,"ok":true,"name":"x","tags":["a"],"at":"2024-05-01T10:00:00Z","c":{"x":1},"nothing":null,"none":[],"empty":{}}"#,
        br#"{"id":2,"price":1.5,"ok":null,"name":null,"tags":[],"c":{"y":"b"},"mixed":1}"#,
        br#"{"id":3,"mixed":"text","big":18446744073709551615,"list":[1,"a"]}"#,
        b"not json",
        b"[1]",
    ];
    let schema = infer(samples).unwrap();
    let texts: Vec<String> = schema.column_texts().into_iter().map(|(name, text)| format!("{name} {text}")).collect();
    assert_eq!(
        texts,
        [
            "id bigint",
            "price double",
            "ok boolean",
            "name string",
            "tags array<string>",
            "at string",
            "c struct<x: bigint, y: string>",
            "nothing json",
            "none json",
            "empty json",
            "mixed json",
            "big json",
            "list array<json>",
        ]
    );
    assert_eq!(Schema::from_json(&schema.to_json()).unwrap(), schema);
    assert_eq!(infer([&b"7"[..]]).unwrap_err().code, crate::code::NOTHING_TO_INFER);
}

/// Catches a map in disguise that becomes a struct of a thousand fields.
#[test]
fn an_object_of_many_names_is_kept_as_json() {
    let samples: Vec<String> = (0..300).map(|at| format!(r#"{{"by_user":{{"u{at}":1}}}}"#)).collect();
    let schema = infer(samples.iter().map(|sample| sample.as_bytes())).unwrap();
    assert_eq!(schema.column_texts(), [("by_user".to_owned(), "json".to_owned())]);
}
