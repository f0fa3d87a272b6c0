//! `from.postgres` as it is read: what is taken, what is refused, and where the caret stands.

use std::time::Duration;

use landfall_postgres::{InvalidText, NanPolicy, NumericUnbounded, RangePolicy, TlsMode};
use landfall_types::ByteSize;

use super::{Config, Finding, SinkKind, codes, read};

const SHOP: &str = r#"
pipelines:
  shop:
    from:
      postgres:
        url: postgres://landfall@db.internal:5433/shop
        password: ${PGPASSWORD}
        tables:
          public.orders: {}
    to: { delta: { path: "./lake/{table}" } }
"#;

fn variables(name: &str) -> Option<String> {
    (name == "PGPASSWORD").then(|| "s3cret: }".to_owned())
}

fn accepted(source: &str) -> Config {
    let (config, found) = read(source, &variables);
    config.unwrap_or_else(|| panic!("refused:\n{}", render(&found, source)))
}

/// The only finding.
fn refused(source: &str) -> Finding {
    let mut found = read(source, &variables).1;
    assert_eq!(found.len(), 1, "{source}\n{}", render(&found, source));
    found.remove(0)
}

fn render(findings: &[Finding], source: &str) -> String {
    findings.iter().map(|finding| finding.render("test.yaml", source)).collect()
}

/// The example with more keys under `postgres`.
fn with(keys: &str) -> String {
    let lines: String = keys.lines().map(|line| format!("        {line}\n")).collect();
    SHOP.replace("        tables:\n", &format!("{lines}        tables:\n"))
}

/// Catches a key of the contract's table that is refused, read as another, or whose default is another than documented.
#[test]
fn every_key_of_a_capture_is_read_as_it_says() {
    let config = accepted(SHOP);
    let capture = config.pipelines[0].capture().expect("a capture");
    assert_eq!(capture.slot_name("my-shop"), "landfall_my_shop");
    assert!(capture.creates_slot && !capture.adopts_slot && capture.creates_publication && capture.copies);
    assert_eq!(capture.queue, landfall_postgres::QueueSettings::default());
    assert!(!capture.may_be_several());
    assert_eq!(capture.connect.database, "shop");
    assert!(!format!("{config:?}").contains("s3cret"), "a password in a debug text");

    let all = with(
        "tls: { mode: require }
slot: { name: shop_1, create: false, adopt: true }
publication: { name: Shop, create: false }
origin: none
queue: { batch_records: 10, batch_bytes: 8KiB, max_records: 20, max_bytes: 1MiB, idle_interval: 1ms }
max_message: 1MiB
feedback_interval: 1s
liveness_timeout: 4s
linger: 0s
snapshot: { mode: never, connections: 64, range: 8MiB, slot_timeout: 5s }
toast: require_full
values: { infinity: clamp, invalid_text: replace }",
    );
    let all = all.replace(
        "public.orders: {}",
        "public.orders: { sql: SELECT id FROM input, values: { nan: null }, columns: { price: { values: { numeric_unbounded: \"decimal(20,4)\", infinity: text } } } }\n          \"audit.*\": { dropped_partitions: keep }",
    );
    let config = accepted(&all);
    let capture = config.pipelines[0].capture().expect("a capture");
    assert_eq!(capture.connect.tls.mode, TlsMode::Require);
    assert_eq!(capture.slot_name("shop"), "shop_1");
    assert!(!capture.creates_slot && capture.adopts_slot && !capture.creates_publication && !capture.copies);
    assert_eq!((capture.publication.as_deref(), capture.origin.as_deref()), (Some("Shop"), Some("none")));
    assert_eq!((capture.queue.batch_records, capture.queue.max_records), (10, 20));
    assert_eq!((capture.max_message, capture.copy_range), (Some(ByteSize::mib(1)), Some(ByteSize::mib(8))));
    assert_eq!((capture.copy_connections, capture.linger), (Some(64), Some(Duration::ZERO)));
    assert_eq!(
        (capture.feedback_interval, capture.slot_timeout),
        (Some(Duration::from_secs(1)), Some(Duration::from_secs(5)))
    );
    assert!(capture.may_be_several());
    let [orders, audit] = capture.tables.as_slice() else { panic!("{:?}", capture.tables) };
    assert_eq!(orders.sql.as_ref().map(|query| query.text.as_str()), Some("SELECT id FROM input"));
    assert!(audit.keeps_dropped && !orders.keeps_dropped);
    // Each level says what the one above it does not.
    assert_eq!((orders.values.nan, orders.values.infinity), (NanPolicy::Null, RangePolicy::Clamp));
    let price = orders.columns.get("price").expect("a column's own");
    assert_eq!(
        (price.nan, price.infinity, price.invalid_text),
        (NanPolicy::Null, RangePolicy::Text, InvalidText::Replace)
    );
    assert_eq!(price.numeric_unbounded, NumericUnbounded::Decimal { precision: 20, scale: 4 });
    assert_eq!((audit.values.nan, audit.values.infinity), (NanPolicy::Error, RangePolicy::Clamp));
}

/// Catches a value out of its bounds that is taken, or refused without its place, bound and unit.
#[test]
fn a_number_of_a_capture_is_taken_or_refused_with_its_bound() {
    for (keys, code, word) in [
        ("queue: { batch_records: 0 }", codes::OUT_OF_BOUNDS, "between 1 and 65536"),
        ("queue: { batch_bytes: 1KiB }", codes::OUT_OF_BOUNDS, "4KiB"),
        ("queue: { batch_records: 600, max_records: 1000 }", codes::CONTRADICTION, "from 1200 on"),
        ("max_message: 2GiB", codes::OUT_OF_BOUNDS, "1GiB"),
        ("feedback_interval: 61s", codes::OUT_OF_BOUNDS, "between 1s and 1m"),
        ("feedback_interval: 30s", codes::CONTRADICTION, "three times"),
        ("liveness_timeout: 30s", codes::CONTRADICTION, "three times"),
        ("linger: 11s", codes::OUT_OF_BOUNDS, "10s"),
        ("schema: { poll: 2d }", codes::OUT_OF_BOUNDS, "between 1s and 1d"),
        ("snapshot: { connections: 65 }", codes::OUT_OF_BOUNDS, "64"),
        ("snapshot: { mode: sometimes }", codes::WRONG_TYPE, "`initial` or `never`"),
        ("slot: { name: Shop }", codes::WRONG_TYPE, "a-z, 0-9 and _"),
        ("slot: { adopt: true }", codes::CONTRADICTION, "snapshot.mode: initial"),
        ("values: { infinity: }", codes::WRONG_TYPE, "a word"),
        ("tls: { ca: ./ca.pem }", codes::WRONG_TYPE, ""),
    ] {
        let source = with(keys);
        let found = refused(&source);
        if word.is_empty() {
            assert!(found.text.contains("verify_full"), "{keys}: {}", found.text);
            continue;
        }
        assert_eq!(found.code, code, "{keys}: {}", found.text);
        assert!(found.text.contains(word), "{keys}: {}", found.text);
        let mark = found.mark.expect("a place");
        assert!((5..=8).contains(&mark.line), "{keys}: line {}", mark.line);
    }
    let found = refused(&with("values: { nan: clamp }"));
    assert_eq!(found.code.to_string(), "LF-PG0410", "{}", found.text);
    assert!(found.text.contains("error, null, text"), "{}", found.text);
}

/// Catches a mistyped key or table that is passed over, and a refusal that does not say what would do.
#[test]
fn mistakes_in_a_capture_have_a_caret_and_a_next_step() {
    let source = with("snapshto: { mode: never }");
    let found = refused(&source);
    assert_eq!(found.code, codes::UNKNOWN_KEY);
    let shown = found.render("shop.yaml", &source);
    assert!(shown.contains("did you mean `snapshot`?") && shown.contains("^^^^^^^^"), "{shown}");

    for (from, to, word) in [
        ("public.orders", "orders", "schema.table"),
        ("public.orders", "\"public.orders.x\"", "more than two parts"),
        ("public.orders: {}", "public.orders: { mod: append }", "mod"),
        ("postgres://landfall@db.internal:5433/shop", "postgres://db.internal/shop", "user"),
        ("        url: postgres://landfall@db.internal:5433/shop\n", "", "url"),
        ("        tables:\n          public.orders: {}\n", "", "tables"),
        ("          public.orders: {}\n", "          {}\n", "tables"),
    ] {
        let source = SHOP.replace(from, to);
        let found = refused(&source);
        assert!(
            found.text.contains(word) || found.help.as_deref().is_some_and(|help| help.contains(word)),
            "{}",
            found.text
        );
        assert!(found.mark.is_some());
    }
}

/// Catches a key of the contract that this version does not serve and takes without a word.
#[test]
fn keys_of_a_later_capture_are_refused_by_name() {
    for key in [
        "heartbeat",
        "streaming",
        "txn",
        "net_keys",
        "order",
        "on_park",
        "row_error_limit",
        "backlog",
        "wal_held_warn",
        "resync",
        "primary_url",
        "before",
        "messages",
        "verify",
        "transport_events",
    ] {
        let found = refused(&with(&format!("{key}: 1")));
        assert_eq!(found.code, codes::NOT_YET, "{key}: {}", found.text);
        assert!(found.text.contains(key) && found.help.is_some(), "{}", found.text);
    }
    for keys in [
        "slot: { failover: auto }",
        "schema: { event_trigger: true }",
        "snapshot: { add: wait }",
        "snapshot: { lock_timeout: 5s }",
        "toast: merge",
    ] {
        assert_eq!(refused(&with(keys)).code, codes::NOT_YET, "{keys}");
    }
    for key in ["key", "mode", "table", "order_by", "partition_by", "deletes", "truncate", "nulls", "drop", "on_park"] {
        let source = SHOP.replace("public.orders: {}", &format!("public.orders: {{ {key}: x }}"));
        assert_eq!(refused(&source).code, codes::NOT_YET, "{key}");
    }
}

/// Catches a pipeline whose parts cannot hold together: rows of two tables in one place, a query that nobody runs, a
/// destination that would hold a row twice.
#[test]
fn a_capture_and_its_destination_must_fit() {
    let to = |text: &str| SHOP.replace("{ delta: { path: \"./lake/{table}\" } }", text);
    accepted(&to("{ delta: { path: ./lake/orders } }"));
    for (source, code, word) in [
        (
            to("{ delta: { path: ./lake/orders } }").replace("public.orders", "\"public.*\""),
            codes::CONTRADICTION,
            "several",
        ),
        (to("{ files: { path: ./out } }"), codes::NOT_YET, "files"),
        (to("{ channel: changes }"), codes::UNDEFINED, "changes"),
        (
            format!("channels: {{ orders: {{}} }}\n{}", to("{ channel: \"shop.{table}\" }")),
            codes::UNDEFINED,
            "none of the kind",
        ),
        (
            format!("channels: {{ changes: {{}} }}\n{}", to("{ channel: { name: changes, payload: item } }")),
            codes::CONTRADICTION,
            "payload",
        ),
        (
            format!("channels: {{ changes: {{}} }}\n{}", to("{ channel: { name: changes, where: id > 1 } }")),
            codes::NOT_YET,
            "where",
        ),
        (to("{ delta: { path: \"./lake/{table}\", where: \"id > 1\" } }"), codes::NOT_YET, "where"),
        (format!("{SHOP}    sql: SELECT 1 AS a FROM input\n"), codes::CONTRADICTION, "sql"),
        (format!("{SHOP}    decode: raw\n"), codes::CONTRADICTION, "decode"),
        (
            SHOP.replace("      postgres:\n", "      start: latest\n      postgres:\n"),
            codes::CONTRADICTION,
            "one source",
        ),
    ] {
        let found = refused(&source);
        assert_eq!(found.code, code, "{}", found.text);
        assert!(found.text.contains(word), "{}", found.text);
    }
    for text in [
        "{ channel: changes }",
        "{ channel: { name: changes, key: id } }",
        "{ lake: { delta: { path: \"./lake/{table}\" } }, feed: { channel: changes } }",
        "{ channel: \"chang{table}\" }",
    ] {
        let config = accepted(&format!("channels: {{ changes: {{}} }}\n{}", to(text)));
        let channels = config.pipelines[0].sinks.iter().filter(|sink| matches!(sink.kind, SinkKind::Channel(_)));
        assert_eq!(channels.count(), 1, "{text}");
    }
    let record =
        "channels: { a: {} }\npipelines: { p: { from: { channel: a }, to: { delta: { path: \"./lake/{table}\" } } } }";
    assert_eq!(refused(record).code, codes::CONTRADICTION);
    let config = accepted(SHOP);
    let SinkKind::Delta(delta) = &config.pipelines[0].sinks[0].kind else { panic!("a table") };
    assert_eq!(delta.add_columns, None, "left to the kind of the source");
}

/// Catches two pipelines that would fight for one slot; on two servers the same name is two slots.
#[test]
fn two_captures_never_share_a_slot() {
    let second = |id: &str, host: &str| {
        let twin = SHOP.trim_start().replace("pipelines:\n", "").replace("shop:\n", &format!("{id}:\n"));
        format!("{SHOP}{}", twin.replace("db.internal", host))
    };
    let found = refused(&second("shop.", "db.internal").replace("  shop:\n", "  shop-:\n"));
    assert_eq!(found.code, codes::CONTRADICTION);
    assert!(found.text.contains("landfall_shop_"), "{}", found.text);
    accepted(&second("shop.", "db2.internal").replace("  shop:\n", "  shop-:\n"));
    accepted(&second("other", "db.internal"));
}

/// Catches a panic on a capture that is cut or garbled anywhere (I14).
#[test]
fn no_cut_and_no_garbled_byte_of_a_capture_panics() {
    let source = with("values: { nan: null }\nqueue: { max_bytes: 1MiB }");
    for end in 0..source.len() {
        if let Some(cut) = source.get(..end) {
            let _ = render(&read(cut, &variables).1, cut);
        }
    }
    for at in 0..source.len() {
        for replacement in [b'{', b':', b'"', b'*', b'-', b'.', b'\n'] {
            let mut garbled = source.clone().into_bytes();
            garbled[at] = replacement;
            if let Ok(text) = String::from_utf8(garbled) {
                let _ = render(&read(&text, &variables).1, &text);
            }
        }
    }
}
