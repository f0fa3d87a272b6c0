//! The short way through a record against the long one: whatever comes, both give the same rows and the same refusals.

use proptest::prelude::*;

use super::tests::records;
use super::*;
use crate::schema::ColumnText;

const COLUMNS: [(&str, &str); 9] = [
    ("id", "bigint not null"),
    ("name", "string"),
    ("amount", "decimal(8,2)"),
    ("customer", "struct<id: int, country: string, since: date>"),
    ("placed_at", "timestamp"),
    ("a_name_of_more_than_sixteen_bytes", "smallint"),
    ("ok", "boolean"),
    ("größe", "string"),
    ("last", "bigint"),
];

/// What came of a batch, as text.
fn decoded(decoder: &mut JsonDecoder, payloads: &[Vec<u8>]) -> String {
    let mut bad = RowErrors::default();
    let Decoded::Rows(rows) = decoder.decode(&records(payloads), &mut bad).expect("the decoder works") else {
        panic!("JSON needs nothing fetched")
    };
    format!("{rows:?} {:?} {}", bad.as_slice(), decoder.counters().duplicates())
}

fn decoder(options: JsonOptions, is_quick: bool) -> JsonDecoder {
    let columns = COLUMNS.map(|(name, text)| (name.to_owned(), ColumnText::from(text)));
    let mut decoder = JsonDecoder::new(Schema::declare(columns).expect("the columns are declared"), options);
    decoder.plan(&Wanted::default()).expect("every column is there");
    let planned = decoder.planned.as_mut().expect("it is planned");
    assert!(planned.rows.quick.is_possible);
    planned.rows.quick.is_possible = is_quick;
    decoder
}

fn field() -> impl Strategy<Value = (&'static str, String)> {
    let name = prop_oneof![
        6 => prop::sample::select(COLUMNS.map(|(name, _)| name).to_vec()),
        1 => prop::sample::select(vec!["other", "items", "andere größe", "", "na\\u006de", "an_unknown_name_of_more_than_sixteen"]),
    ];
    let value = prop_oneof![
        4 => "-?[0-9]{1,4}(\\.[0-9]{1,3})?",
        1 => "-?[0-9]{1,22}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
        3 => "\"[a-zäß ]{0,20}\"",
        1 => "\"[a-z]{0,3}(\\\\n|\\\\u00e9|\\\\\"|\\\\)[a-z]{0,3}\"",
        2 => "\"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,7})?(Z|\\+02:00)?\"",
        1 => "\"20[0-9]{2}-[01][0-9]-[0-3][0-9]\"",
        2 => prop::sample::select(vec!["null", "true", "false", "nul", "truex", "{}", "[]", "-", "01", "1.", "+1"]).prop_map(str::to_owned),
        2 => "\\[(\\{\"sku\":\"[a-zü]{0,18}\",\"price\":[0-9.]{1,5}\\},?){0,2}\\]",
        2 => "\\{\"id\":[0-9]{1,3},(\"country\":\"[A-Z]{2}\",)?\"since\":(null|\"2020-02-29\")\\}",
        1 => "\\{\"id\":1,\"id\":[0-9]\\}",
    ];
    (name, value)
}

/// A record near to what records are: often in one order, seldom whole.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let usual = (any::<u16>(), "[a-zé]{0,20}", "[0-9]{1,5}\\.[0-9]{2}", "[A-Z]{2}", any::<bool>()).prop_map(
        |(id, name, amount, country, is_spaced)| {
            let text = format!(
                r#"{{"id": {id}, "name": "{name}", "amount": {amount}, "customer": {{"id": {id}, "country": "{country}"}}, "items": [{{"sku": "{name}", "n": 1.5}}, 7, "x"], "placed_at": "2026-01-31T12:00:00.{:03}Z"}}"#,
                id % 1000
            );
            if is_spaced { text } else { text.replace(": ", ":").replace(", ", ",") }
        },
    );
    let mixed = prop::collection::vec(field(), 0..8).prop_map(|fields| {
        let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    });
    let text = prop_oneof![3 => usual, 3 => mixed];
    let changed =
        (0usize..400, prop_oneof![any::<u8>(), prop::sample::select(b"\"\\ ,:{}[]\n\x01\xff".to_vec())], 0u8..3);
    (text, prop::option::weighted(0.3, changed)).prop_map(|(text, changed)| {
        let mut bytes = text.into_bytes();
        if let Some((at, byte, how)) = changed {
            match how {
                0 => bytes.get_mut(at).into_iter().for_each(|place| *place = byte),
                1 => bytes.insert(at.min(bytes.len()), byte),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Catches a record that the short way takes, refuses, rounds or cuts otherwise than the long way, and one that it gave
    /// up and left a piece of.
    #[test]
    fn the_short_way_and_the_long_way_give_the_same(
        payloads in prop::collection::vec(record(), 1..12),
        duplicates_are_errors in any::<bool>(),
    ) {
        let options = JsonOptions { duplicates_are_errors, ..JsonOptions::default() };
        let (mut quick, mut long) = (decoder(options, true), decoder(options, false));
        // One batch, and each record as a batch: what was learnt from records before must not matter.
        prop_assert_eq!(decoded(&mut quick, &payloads), decoded(&mut long, &payloads));
        for payload in payloads {
            let payload = [payload];
            // It may rest after what it gave up; here it never does.
            let planned = quick.planned.as_mut().expect("it is planned");
            planned.rows.quick = Quick { is_possible: true, ..Quick::default() };
            prop_assert_eq!(decoded(&mut quick, &payload), decoded(&mut long, &payload));
        }
    }
}

/// Catches a short way that gives up what it is there for: then it would only cost.
#[test]
fn usual_records_go_the_short_way() {
    let texts = [
        r#"{"id":1,"name":"Zoë","amount":1.25,"customer":{"id":7,"country":"DE"},"items":[{"a":[1,true]}],"placed_at":"2026-01-31T12:00:00Z"}"#,
        r#"{"id": 2, "name": "", "amount": -0.5, "customer": null, "items": [], "ok": true, "last": 12345678901234567}"#,
    ];
    let mut decoder = decoder(JsonOptions::default(), true);
    let planned = decoder.planned.as_mut().expect("it is planned");
    for (row, text) in texts.iter().cycle().take(8).enumerate() {
        assert!(quick::record(&mut planned.rows.object, text.as_bytes(), row), "{text}");
    }
}
