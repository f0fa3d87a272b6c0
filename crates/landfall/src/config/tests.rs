use landfall_types::{ByteSize, Durability};

use super::{Config, Finding, FromConfig, Level, PipelineConfig, SinkKind, StartAt, codes, read};

const STOREFRONT: &str = r#"
data_dir: ./landfall-data
server:
  listen: 127.0.0.1:7420
channels:
  storefront.events: { partitions: 2, retention: { max_age: 7d, max_bytes: 20GiB } }
pipelines:
  orders:
    from: { channel: storefront.events }
    decode: { json: { schema: { order_id: bigint, customer: "struct<id: bigint, country: string>", amount: "decimal(12,2)" } } }
    sql: |
      SELECT order_id, customer.id AS customer_id, amount
      FROM input WHERE type = 'order_placed'
    to: { delta: { path: ./lake/orders } }
    on_error: dead_letter
"#;

fn none(_: &str) -> Option<String> {
    None
}

fn accepted(source: &str) -> Config {
    let (config, findings) = read(source, &none);
    config.unwrap_or_else(|| panic!("refused:\n{}", render(&findings, source)))
}

fn findings(source: &str) -> Vec<Finding> {
    read(source, &none).1
}

fn render(findings: &[Finding], source: &str) -> String {
    findings.iter().map(|finding| finding.render("test.yaml", source)).collect()
}

fn only_pipeline(config: &Config) -> &PipelineConfig {
    assert_eq!(config.pipelines.len(), 1);
    &config.pipelines[0]
}

/// Would catch a key of the documented example that is refused or read as another.
#[test]
fn the_documented_example_reads_as_it_says() {
    let config = accepted(STOREFRONT);
    assert_eq!(config.channels[0].partitions, Some(2));
    assert_eq!(config.channels[0].retention.max_bytes, Some(ByteSize::gib(20)));
    let pipeline = only_pipeline(&config);
    let FromConfig::Channel(from) = &pipeline.from else { panic!("{:?}", pipeline.from) };
    assert_eq!((from.name.as_str(), from.start), ("storefront.events", StartAt::Earliest));
    let query = pipeline.sql.as_ref().expect("a query");
    assert!(query.text.starts_with("SELECT order_id"));
    assert!(matches!(&pipeline.sinks[0].kind, SinkKind::Delta(delta) if delta.path.ends_with("lake/orders")));
}

/// Would catch a mistyped key that is ignored: F-K1, `retension`.
#[test]
fn f_k1_an_unknown_key_gets_a_caret_and_the_nearest_known_key() {
    let source = STOREFRONT.replace("retention:", "retension:");
    let found = findings(&source);
    assert_eq!(found.len(), 1, "{}", render(&found, &source));
    assert_eq!(found[0].code, codes::UNKNOWN_KEY);
    let shown = found[0].render("landfall.yaml", &source);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(shown.contains("landfall.yaml:6:39") && shown.contains("did you mean `retention`?"), "{shown}");
    let caret = lines.iter().position(|line| line.contains('^')).expect("a caret line");
    let column = lines[caret].find('^').expect("a caret");
    assert_eq!(&lines[caret - 1][column..column + 9], "retension", "{shown}");
}

/// Would catch a value that is taken for another than it says, or refused without its bound: F-K1.
#[test]
fn f_k1_a_number_is_taken_as_documented_or_refused_with_its_bound() {
    let with = |value: &str| format!("channels:\n  a: {{ partitions: {value} }}\n");
    assert_eq!(accepted(&with("1024")).channels[0].partitions, Some(1024));
    for (value, code) in [
        ("0", codes::OUT_OF_BOUNDS),
        ("-1", codes::OUT_OF_BOUNDS),
        ("1025", codes::OUT_OF_BOUNDS),
        ("1e18", codes::OUT_OF_BOUNDS),
        ("99999999999999999999999999", codes::OUT_OF_BOUNDS),
        ("\"10\"", codes::WRONG_TYPE),
        ("10mb", codes::WRONG_TYPE),
        ("64MiB", codes::WRONG_TYPE),
        ("1.5", codes::WRONG_TYPE),
        ("[1]", codes::WRONG_TYPE),
        ("true", codes::WRONG_TYPE),
    ] {
        let source = with(value);
        let found = findings(&source);
        assert_eq!(found.len(), 1, "{value}: {}", render(&found, &source));
        assert_eq!(found[0].code, code, "{value}: {}", found[0].text);
        if code == codes::OUT_OF_BOUNDS {
            assert!(found[0].text.contains("between 1 and 1024"), "{value}: {}", found[0].text);
        }
        assert_eq!(found[0].mark.map(|mark| (mark.line, mark.column)), Some((2, 20)), "{value}");
    }
    for (value, fits) in
        [("64MiB", true), ("10mb", false), ("0", false), ("-1", false), ("1e18", false), ("8TiB", false)]
    {
        let source = format!("channels:\n  a: {{ segment_bytes: {value} }}\n");
        assert_eq!(read(&source, &none).0.is_some(), fits, "{value}");
    }
}

/// Would catch a variable that is not put in, put in twice, or missing without a word.
#[test]
fn variables_are_put_in_after_parsing() {
    let variable = |name: &str| match name {
        "PARTS" => Some("3".to_owned()),
        "CLASS" => Some("written".to_owned()),
        "TRICKY" => Some("x, durability: memory, y: ${PARTS}".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    let source = "data_dir: ${TRICKY}\nchannels:\n  a: { partitions: \"${PARTS}\", durability: \"${CLASS}\" }\n  b: { partitions: \"${N:-7}\" }\n  c: { key_field: \"${EMPTY:-/id}$${x}\" }\n";
    let (config, found) = read(source, &variable);
    let config = config.unwrap_or_else(|| panic!("{}", render(&found, source)));
    assert_eq!(config.channels[0].partitions, Some(3));
    assert_eq!(config.channels[0].durability, Some(Durability::Written));
    assert_eq!(config.channels[1].partitions, Some(7));
    assert_eq!(config.channels[2].key_field.as_deref(), Some("/id${x}"));
    // A value put in is text, whatever it holds: no key can come out of it.
    assert_eq!(config.data_dir.to_str(), Some("x, durability: memory, y: ${PARTS}"));
    for (source, name) in
        [("data_dir: ${NOT_SET}\n", "NOT_SET"), ("data_dir: \"a${b\"\n", "closing"), ("data_dir: ${}\n", "closing")]
    {
        let found = findings(source);
        assert_eq!(found.len(), 1);
        assert!(found[0].code == codes::VARIABLE && found[0].text.contains(name), "{}", found[0].text);
    }
}

/// Would catch a check that stops at the first mistake, or reports them out of the file's order.
#[test]
fn every_mistake_is_reported_in_the_order_of_the_file() {
    let source = "channels:\n  a: { partitions: 0, codec: lz5 }\n  A: {}\npipelines:\n  p:\n    from: { channel: b }\n    to: { delta: {} }\nextra: 1\n";
    let found = findings(source);
    let lines: Vec<_> = found.iter().map(|finding| finding.mark.map_or(0, |mark| mark.line)).collect();
    assert!(lines.is_sorted(), "{lines:?}");
    let seen: Vec<_> = found.iter().map(|finding| finding.code).collect();
    for code in [
        codes::OUT_OF_BOUNDS,
        codes::WRONG_TYPE,
        codes::CONTRADICTION,
        codes::UNDEFINED,
        codes::MISSING,
        codes::UNKNOWN_KEY,
    ] {
        assert!(seen.contains(&code), "{code} in {}", render(&found, source));
    }
}

/// Would catch two limits that cannot hold together and are let through.
#[test]
fn contradictions_name_both_sides_and_what_would_do() {
    for (source, words) in [
        ("channels: { a: { limits: { record_bytes: 32MiB } } }", ["limits.record_bytes", "limits.batch_bytes"]),
        ("channels: { a: { queue: { bytes: 1MiB } } }", ["queue.bytes", "limits.batch_bytes"]),
        ("channels: { a: { segment_bytes: 1MiB } }", ["segment_bytes", "two turns"]),
        ("server: { listen: \"0.0.0.0:7420\" }", ["0.0.0.0:7420", "loopback"]),
    ] {
        let found = findings(source);
        assert_eq!(found.len(), 1, "{}", render(&found, source));
        assert_eq!(found[0].code, codes::CONTRADICTION);
        assert!(found[0].help.is_some());
        assert!(words.iter().all(|word| found[0].text.contains(word)), "{}", found[0].text);
    }
    let (config, found) = read("server: { listen: \"0.0.0.0:7420\", insecure: true }", &none);
    assert!(config.is_some() && found[0].level == Level::Warning);
}

/// Would catch two sinks that write one table under one position, so that rows of one count as stored by the other (I7).
#[test]
fn two_sinks_of_a_pipeline_on_one_delta_table_are_refused() {
    let to = |first: &str, second: &str| {
        let sinks = format!("to: {{ a: {{ delta: {{ path: {first} }} }}, b: {{ delta: {{ path: {second} }} }} }}");
        STOREFRONT.replace("to: { delta: { path: ./lake/orders } }", &sinks)
    };
    for (first, second) in [("./lake/orders", "./lake/orders"), ("lake/orders", "./lake/./orders/")] {
        let source = to(first, second);
        let found = findings(&source);
        assert_eq!(found.len(), 1, "{}", render(&found, &source));
        assert_eq!(found[0].code, codes::CONTRADICTION);
        assert!(["`a`", "`b`", "`orders`"].iter().all(|word| found[0].text.contains(word)), "{}", found[0].text);
    }
    accepted(&to("./lake/orders", "./lake/orders2"));
}

/// Would catch a feature of a later version that is silently ignored.
#[test]
fn keys_of_later_versions_are_refused_by_name() {
    let source = "server:\n  tls: { cert: a, key: b }\n";
    let found = findings(source);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, codes::NOT_YET);
    assert!(found[0].text.contains("server.tls"));
}

/// Would catch a panic or an endless loop on a file that is cut or garbled anywhere (I14).
#[test]
fn no_cut_and_no_garbled_byte_panics() {
    for end in 0..STOREFRONT.len() {
        if let Some(cut) = STOREFRONT.get(..end) {
            let (_, found) = read(cut, &none);
            let _ = render(&found, cut);
        }
    }
    let bytes = STOREFRONT.as_bytes();
    for at in 0..bytes.len() {
        for replacement in [b'{', b'}', b':', b'"', b'\t', b'&', b'*', b'-', b'0', b'\n'] {
            let mut garbled = bytes.to_vec();
            garbled[at] = replacement;
            if let Ok(text) = String::from_utf8(garbled) {
                let (_, found) = read(&text, &none);
                let _ = render(&found, &text);
            }
        }
    }
    let bomb = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(1000), "*a,".repeat(1000));
    let _ = read(&bomb, &none);
    let deep = "[".repeat(100_000);
    assert!(read(&deep, &none).0.is_none());
}

/// Would catch a table inside another one, whose clean-up deletes what it does not know; and a refusal of tables side by
/// side, of one table that two pipelines fill, or of the example as it is.
#[test]
fn a_table_lies_in_no_other_and_not_around_the_data() {
    let two = |first: &str, second: &str| {
        let pipeline = |name: &str, path: &str| {
            format!("  {name}: {{ from: {{ channel: c }}, to: {{ delta: {{ path: \"{path}\" }} }} }}\n")
        };
        format!(
            "data_dir: ./lake.d/data\nchannels: {{ c: {{}} }}\npipelines:\n{}{}",
            pipeline("a", first),
            pipeline("b", second)
        )
    };
    for (first, second) in
        [("./lake/a", "./lake/b"), ("./lake/a", "lake/a"), ("./lake/a", "./lake/ab"), ("lake.d/a", "l")]
    {
        accepted(&two(first, second));
    }
    for (first, second, named) in [
        ("./lake", "./lake/b", "pipeline `b` lies inside"),
        ("./lake/x/../a/b", "lake/./a", "pipeline `a` lies inside"),
        ("./lake.d", "./b", "`data_dir`"),
        ("./b", "./lake.d/data/channels/c", "`data_dir`"),
    ] {
        let source = two(first, second);
        let said = render(&findings(&source), &source);
        assert!(said.contains("LF-CF0008") && said.contains(named), "{first} {second}:\n{said}");
    }
}

/// Would catch a message that says that a text is no text.
#[test]
fn an_empty_text_is_said_to_be_empty() {
    let source = STOREFRONT.replace("data_dir: ./landfall-data", "data_dir: ''");
    let said = render(&findings(&source), &source);
    assert!(said.contains("`data_dir` takes a text with something in it, not an empty text"), "{said}");
}
