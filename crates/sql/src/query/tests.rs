//! Queries end to end over decoded records: results, refusals with their messages, row errors.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use landfall_engine::contract::{Decoded, Decoder, RowErrors};
use proptest::prelude::*;

use super::*;
use crate::json::tests::records;
use crate::{ColumnText, JsonDecoder, JsonOptions};

const ORDERS: &[(&str, &str)] = &[
    ("order_id", "bigint not null"),
    ("customer", "struct<id: bigint, country: string, address: struct<city: string, zip: string>>"),
    ("amount", "decimal(12,2)"),
    ("placed_at", "string"),
    ("type", "string"),
    ("items", "array<struct<sku: string, quantity: int>>"),
    ("tags", "array<string>"),
    ("attributes", "map<string, string>"),
    ("raw", "json"),
    ("n", "bigint"),
    ("d", "bigint"),
    ("orderId", "string"),
];

fn schema() -> crate::Schema {
    crate::Schema::declare(ORDERS.iter().map(|(name, text)| ((*name).to_owned(), ColumnText::from(*text)))).unwrap()
}

fn compile(query: &str) -> Result<CompiledSql, PlanError> {
    Sql::default().compile(query, &schema().arrow())
}

/// Compiles, plans the decoder with what the query wants, decodes and applies.
fn run_compiled(compiled: &CompiledSql, payloads: &[&str]) -> (RecordBatch, RowErrors) {
    let mut decoder = JsonDecoder::new(schema(), JsonOptions::default());
    let planned = decoder.plan(&compiled.wanted()).unwrap();
    let mut transform = compiled.into_transform();
    let output = transform.plan(&planned).unwrap();
    let mut bad = RowErrors::default();
    let Decoded::Rows(decoded) = decoder.decode(&records(payloads), &mut bad).unwrap() else { unreachable!() };
    assert!(bad.is_empty(), "the decoder refused: {:?}", bad.as_slice());
    let rows = transform.apply(decoded, &mut bad).unwrap();
    assert_eq!(rows.schema(), output, "the planned schema is the schema of every batch");
    (rows, bad)
}

fn run(query: &str, payloads: &[&str]) -> (RecordBatch, RowErrors) {
    run_compiled(&compile(query).unwrap_or_else(|error| panic!("{query}: {error}")), payloads)
}

/// The visible columns as lines of `name=value`.
fn lines(rows: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let visible: Vec<(String, ArrayFormatter<'_>)> = rows
        .schema()
        .fields()
        .iter()
        .zip(rows.columns())
        .filter(|(field, _)| !is_hidden(field.name()))
        .map(|(field, column)| (field.name().clone(), ArrayFormatter::try_new(column.as_ref(), &options).unwrap()))
        .collect();
    (0..rows.num_rows())
        .map(|row| {
            visible.iter().map(|(name, column)| format!("{name}={}", column.value(row))).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn offsets(rows: &RecordBatch) -> Vec<u64> {
    rows.column_by_name("__offset").unwrap().as_primitive::<UInt64Type>().values().to_vec()
}

fn one(query: &str, payload: &str) -> String {
    let (rows, bad) = run(query, &[payload]);
    match bad.as_slice() {
        [] => lines(&rows).join(" | "),
        [error] => error.code.to_string(),
        more => panic!("{query}: {} errors for one row", more.len()),
    }
}

/// The query of the overview: catches a straight path that does not run.
#[test]
fn the_query_of_the_overview_lands_typed_rows() {
    let query = "SELECT order_id, customer.id AS customer_id, customer.country, amount,
             CAST(placed_at AS TIMESTAMP) AS placed_at
      FROM input WHERE type = 'order_placed'";
    let compiled = compile(query).unwrap();
    let wanted = compiled.wanted();
    let paths: Vec<String> = wanted.paths.unwrap().iter().map(|path| path.join(".")).collect();
    assert_eq!(paths, ["amount", "customer.country", "customer.id", "order_id", "placed_at", "type"]);
    assert!(!wanted.record_key && !wanted.record_timestamp && !wanted.record_headers);
    let (rows, bad) = run(
        query,
        &[
            r#"{"order_id":1,"type":"order_placed","amount":1.5,"customer":{"id":7,"country":"PT"},"placed_at":"2024-05-01T10:00:00Z"}"#,
            r#"{"order_id":2,"type":"refund_issued"}"#,
            r#"{"order_id":3,"type":"order_placed","placed_at":"9999-12-31T23:59:59.999999Z"}"#,
            r#"{"order_id":4,"type":"order_placed","placed_at":"yesterday"}"#,
            r#"{"order_id":5}"#,
        ],
    );
    assert_eq!(
        lines(&rows),
        [
            "order_id=1 customer_id=7 country=PT amount=1.50 placed_at=2024-05-01T10:00:00",
            "order_id=3 customer_id=NULL country=NULL amount=NULL placed_at=9999-12-31T23:59:59.999999",
        ]
    );
    assert_eq!(offsets(&rows), [100, 102]);
    assert_eq!(bad.len(), 1);
    let error = &bad.as_slice()[0];
    assert_eq!((error.row, error.code.to_string()), (3, "LF-SQ0020".to_owned()));
    assert!(error.text.starts_with("column `placed_at`: "), "{}", error.text);
    let kinds: Vec<String> = rows.schema().fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(kinds, ["Int64", "Int64", "Utf8", "Decimal128(12, 2)", "Timestamp(µs)", "UInt32", "UInt64"]);
    assert!(!rows.schema().field(0).is_nullable(), "a NOT NULL column that is passed on stays NOT NULL");
}

/// Each refusal with its words: catches a clause that slips through, or a message that no longer says what to do.
#[test]
fn each_refused_clause_says_what_to_do_instead() {
    let rows = "needs rows of other batches: land the rows, then aggregate there or in `landfall query`";
    let later = "answers differently each time, so a row that is computed again would come out another: use record_timestamp(), row_id(), or the sink option `loaded_at`";
    let cases: &[(&str, &str, &str, &str)] = &[
        ("SELECT count(*) AS n FROM input", "LF-SQ0002", "count", &format!("count() {rows}")),
        ("SELECT SUM(n) AS n FROM input", "LF-SQ0002", "SUM", &format!("sum() {rows}")),
        ("SELECT n FROM input GROUP BY n", "LF-SQ0002", "n", &format!("GROUP BY {rows}")),
        ("SELECT DISTINCT n FROM input", "LF-SQ0002", "SELECT", &format!("DISTINCT {rows}")),
        ("SELECT n FROM input HAVING n > 1", "LF-SQ0002", "n > 1", &format!("HAVING {rows}")),
        (
            "SELECT row_number() OVER (ORDER BY n) AS r FROM input",
            "LF-SQ0002",
            "row_number",
            &format!("a window function {rows}"),
        ),
        ("SELECT lag(n) AS r FROM input", "LF-SQ0002", "lag", &format!("lag() {rows}")),
        ("SELECT a.n FROM input a JOIN input b ON a.n = b.n", "LF-SQ0002", "input b", &format!("JOIN {rows}")),
        ("SELECT n FROM input, input b", "LF-SQ0002", "input b", &format!("a join {rows}")),
        ("SELECT u FROM input CROSS JOIN UNNEST(items) AS u", "LF-SQ0002", "items) AS u", UNNEST),
        ("SELECT u FROM input, UNNEST(items) AS u", "LF-SQ0002", "items) AS u", UNNEST),
        ("SELECT u FROM UNNEST([1,2]) AS u", "LF-SQ0002", "", UNNEST),
        (
            "SELECT n FROM input WHERE n IN (SELECT n FROM input)",
            "LF-SQ0002",
            "",
            &format!("a subquery in an expression {rows}"),
        ),
        ("SELECT (SELECT 1) AS x FROM input", "LF-SQ0002", "", &format!("a subquery in an expression {rows}")),
        (
            "SELECT n FROM input WHERE EXISTS (SELECT 1 FROM input)",
            "LF-SQ0002",
            "",
            &format!("a subquery in an expression {rows}"),
        ),
        (
            "SELECT n FROM input UNION ALL SELECT n FROM input",
            "LF-SQ0002",
            "",
            "UNION is not offered: make one pipeline for each SELECT",
        ),
        (
            "SELECT n FROM input ORDER BY n",
            "LF-SQ0002",
            "n",
            &format!("ORDER BY {rows}; rows keep the order they came in"),
        ),
        ("SELECT n FROM input LIMIT 5", "LF-SQ0002", "", "LIMIT is not offered: a pipeline has no last row; use WHERE"),
        ("VALUES (1)", "LF-SQ0002", "", "VALUES is not offered: a query reads FROM input"),
        ("INSERT INTO input VALUES (1)", "LF-SQ0002", "", "a pipeline's SQL is one SELECT over `input`, not INSERT"),
        ("DROP TABLE input", "LF-SQ0002", "", "a pipeline's SQL is one SELECT over `input`, not DROP"),
        ("SELECT n FROM input; SELECT n FROM input", "LF-SQ0002", "", "a pipeline's SQL is exactly one SELECT"),
        ("", "LF-SQ0002", "", "a pipeline's SQL is exactly one SELECT"),
        ("SELECT 1 AS x", "LF-SQ0002", "SELECT", "the query has no FROM: write FROM input"),
        ("SELECT x FROM (SELECT count(*) AS x FROM input)", "LF-SQ0002", "count", &format!("count() {rows}")),
        ("SELECT x FROM (SELECT DISTINCT n AS x FROM input)", "LF-SQ0002", "SELECT", &format!("DISTINCT {rows}")),
        ("SELECT random() AS x FROM input", "LF-SQ0003", "random", &format!("random() {later}")),
        ("SELECT uuid() AS x FROM input", "LF-SQ0003", "uuid", &format!("uuid() {later}")),
        ("SELECT now() AS x FROM input", "LF-SQ0003", "now", &format!("now() {later}")),
        ("SELECT current_date AS x FROM input", "LF-SQ0003", "current_date", &format!("current_date() {later}")),
        (
            "SELECT n FROM input WHERE current_timestamp > now()",
            "LF-SQ0003",
            "current_timestamp",
            &format!("current_timestamp() {later}"),
        ),
        ("SELECT n + 1 FROM input", "LF-SQ0004", "n + 1", "alias required: this column has no name, write `… AS name`"),
        (
            "SELECT unnest(tags) FROM input",
            "LF-SQ0004",
            "unnest(tags)",
            "alias required: this column has no name, write `… AS name`",
        ),
        (
            "SELECT n, d AS n FROM input",
            "LF-SQ0005",
            "d AS n",
            "two columns are named `n`: give one of them another alias",
        ),
        (
            "SELECT customer.id, order_id AS id FROM input",
            "LF-SQ0005",
            "order_id AS id",
            "two columns are named `id`: give one of them another alias",
        ),
        (
            "SELECT __offset FROM input",
            "LF-SQ0006",
            "__offset",
            "`__offset` is reserved: names that start with `__` belong to hidden columns; give it an alias",
        ),
        (
            "SELECT n AS __x FROM input",
            "LF-SQ0006",
            "n AS __x",
            "`__x` is reserved: names that start with `__` belong to hidden columns; give it an alias",
        ),
        (
            "SELECT __headers AS h FROM input",
            "LF-SQ0007",
            "__headers",
            "headers are read one at a time: record_header('name')",
        ),
        ("SELECT n FROM other", "LF-SQ0007", "", "table `other` is not known: a query reads FROM input"),
    ];
    for (query, code, at, text) in cases {
        let error = compile(query).map(|compiled| compiled.steps()).unwrap_err();
        assert_eq!(error.text, *text, "{query}");
        assert_eq!(error.code.to_string(), *code, "{query}");
        if !at.is_empty() {
            let span = error.span.clone().unwrap_or_else(|| panic!("{query}: no place"));
            assert_eq!(query.get(span), Some(*at), "{query}");
        }
    }
}

const UNNEST: &str = "UNNEST in FROM is not offered: write `unnest(items)` in the SELECT list";

/// Catches an unknown name without a hint, and a place that points elsewhere.
#[test]
fn mistakes_are_named_with_their_place() {
    let cases = [
        ("SELECT ordr_id FROM input", "LF-SQ0007", "ordr_id", "order_id"),
        ("SELECT orderId FROM input", "LF-SQ0007", "orderId", "orderId"),
        ("SELECT lenght(type) AS x FROM input", "LF-SQ0007", "", "length"),
        ("SELECT CAST('x' AS bigint) AS x FROM input", "LF-SQ0008", "", "x"),
        ("SELECT customer.nowhere FROM input", "LF-SQ0007", "", "nowhere"),
        ("SELECT n FROM input WHERE type + 1", "LF-SQ0007", "", ""),
    ];
    for (query, code, at, hint) in cases {
        let error = compile(query).map(|compiled| compiled.steps()).unwrap_err();
        assert_eq!(error.code.to_string(), code, "{query}: {error}");
        assert!(error.text.contains(hint), "{query}: {error}");
        if !at.is_empty() {
            assert_eq!(query.get(error.span.clone().unwrap()), Some(at), "{query}: {error:?}");
        }
    }
    let query = "SELECT n,\n  é é FROM\n input WHERE (n = 1";
    let error = compile(query).map(|compiled| compiled.steps()).unwrap_err();
    assert_eq!(error.code.to_string(), "LF-SQ0001");
    assert!(error.span.is_some_and(|span| span.start <= query.len()));
}

/// Catches expressions that plan but do not run, or run to another value.
#[test]
fn expressions_give_what_sql_says() {
    let payload = r#"{"order_id":7,"customer":{"id":3,"country":"PT","address":{"city":"Lisboa","zip":null}},"amount":10.25,"type":"a","items":[{"sku":"s1","quantity":2},{"sku":"s2","quantity":null}],"tags":["x","y"],"attributes":{"k":"v"},"raw":{"a":[1,{"b":"c\n"}],"t":" "},"n":10,"d":4,"orderId":"O-1","placed_at":"2024-05-01T10:00:00+02:00"}"#;
    let cases = [
        ("amount * 1.19", "12.1975"),
        ("n / d", "2"),
        ("n % d", "2"),
        ("CASE WHEN n > 5 THEN 'big' ELSE 'small' END", "big"),
        ("customer.address.city", "Lisboa"),
        ("coalesce(customer.address.zip, 'none')", "none"),
        ("items[1]['sku']", "s1"),
        ("items[3]['sku']", "NULL"),
        ("attributes['k']", "v"),
        ("attributes['none']", "NULL"),
        ("tags[2]", "y"),
        ("array_length(tags)", "2"),
        ("upper(type) || '-' || n", "A-10"),
        ("substring(\"orderId\" FROM 3)", "1"),
        ("CAST(n AS VARCHAR)", "10"),
        ("CAST(placed_at AS TIMESTAMP)", "2024-05-01T08:00:00"),
        ("CAST(placed_at AS TIMESTAMP WITH TIME ZONE)", "2024-05-01T08:00:00Z"),
        ("TRY_CAST(type AS bigint)", "NULL"),
        ("type LIKE 'a%'", "true"),
        ("n IN (1, 10)", "true"),
        ("n BETWEEN 1 AND 5", "false"),
        ("json_get(raw, '$.a[1].b')", "\"c\\n\""),
        ("json_get_text(raw, 'a[1].b')", "c\n"),
        ("json_get(raw, 'a')", "[1,{\"b\":\"c\\n\"}]"),
        ("json_get(raw, 'b.c')", "NULL"),
        ("json_get_text(raw, 't')", " "),
        ("nullif_blank(json_get_text(raw, 't'))", "NULL"),
        ("epoch_ms(1714550400000)", "2024-05-01T08:00:00Z"),
        ("epoch_us(n)", "1970-01-01T00:00:00.000010Z"),
        ("parse_timestamp(placed_at)", "2024-05-01T08:00:00Z"),
        ("parse_timestamp('01/05/2024 08:00', '%Y', '%d/%m/%Y %H:%M')", "2024-05-01T08:00:00Z"),
        ("parse_timestamp('2024-05-01', '%Y-%m-%d')", "2024-05-01T00:00:00Z"),
        ("hash_bucket('abc', 16) BETWEEN 0 AND 15", "true"),
        ("sha256_hex('abc')", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("mask('4111111111111111', 4)", "************1111"),
        ("mask('abc', 9)", "abc"),
        ("url_host('https://user@Example.org:8080/a?b')", "example.org"),
        ("url_host('nonsense')", "NULL"),
        ("record_offset()", "100"),
        ("record_partition()", "7"),
        ("__offset + 1", "101"),
        ("CAST(record_key() AS VARCHAR)", "k0"),
        ("record_header('kind')", "v0"),
        ("record_header('none')", "NULL"),
        ("record_timestamp()", "1970-01-01T00:00:00Z"),
        ("row_id()", "7-100"),
    ];
    for (expression, expected) in cases {
        assert_eq!(
            one(&format!("SELECT {expression} AS v FROM input"), payload),
            format!("v={expected}"),
            "{expression}"
        );
    }
}

/// Catches a stable bucket that moves: rows would change their partition after an upgrade.
#[test]
fn a_hash_bucket_never_changes() {
    let got =
        one("SELECT hash_bucket('abc', 1000000) AS a, hash_bucket('', 1000000) AS b FROM input", r#"{"order_id":1}"#);
    assert_eq!(got, HASH_BUCKETS);
}

const HASH_BUCKETS: &str = "a=887858 b=76140";

/// Catches a failing value that takes its neighbours along, or lands as something else.
#[test]
fn a_failing_expression_is_that_row_s_error_alone() {
    let payloads: Vec<String> = (0..40)
        .map(|at| {
            format!(
                r#"{{"order_id":{at},"n":{at},"d":{},"type":"{}"}}"#,
                at % 4,
                if at % 7 == 3 { "x".to_owned() } else { at.to_string() }
            )
        })
        .collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let (rows, bad) = run("SELECT order_id, n / d AS q, CAST(type AS bigint) AS t FROM input", &payloads);
    let expected: Vec<u64> = (0..40).filter(|at| at % 4 != 0 && at % 7 != 3).collect();
    assert_eq!(offsets(&rows), expected.iter().map(|at| at + 100).collect::<Vec<_>>());
    for error in bad.as_slice() {
        let (code, text) = if error.row % 4 == 0 {
            ("LF-SQ0021", "column `q`: Divide by zero")
        } else {
            ("LF-SQ0020", "column `t`: Cannot cast string 'x'")
        };
        assert_eq!(error.code.to_string(), code);
        assert!(error.text.starts_with(text), "{}", error.text);
    }
    assert_eq!(rows.num_rows() + bad.len(), 40);
    let ids: Vec<i64> = rows.column(0).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids, expected.iter().map(|at| *at as i64).collect::<Vec<_>>());
}

/// Catches an integer that wraps around (the library's default).
#[test]
fn arithmetic_that_overflows_is_a_row_error() {
    let payload = r#"{"order_id":1,"n":9223372036854775807,"d":2}"#;
    for expression in ["n + d", "n * d", "-2 - n - d"] {
        assert_eq!(one(&format!("SELECT {expression} AS v FROM input"), payload), "LF-SQ0021", "{expression}");
    }
    assert_eq!(one("SELECT epoch_ms(n) AS v FROM input", payload), "LF-SQ0021");
    assert_eq!(one("SELECT json_get('{', 'a') AS v FROM input", payload), "LF-SQ0021");
}

/// Catches a WHERE whose later part sees rows that an earlier one dropped.
#[test]
fn rows_that_where_drops_raise_nothing() {
    let payloads = [r#"{"order_id":1,"type":"x","n":1,"d":0}"#, r#"{"order_id":2,"type":"5","n":4,"d":2}"#];
    let (rows, bad) =
        run("SELECT order_id FROM input WHERE type <> 'x' AND CAST(type AS bigint) = 5 AND n / d = 2", &payloads);
    assert!(bad.is_empty(), "{:?}", bad.as_slice());
    assert_eq!(lines(&rows), ["order_id=2"]);
    // The order of the conditions is theirs: here the cast comes first.
    let (rows, bad) = run("SELECT order_id FROM input WHERE CAST(type AS bigint) = 5 AND type <> 'x'", &payloads);
    assert_eq!((lines(&rows), bad.len()), (vec!["order_id=2".to_owned()], 1));
    // What a CASE does not reach does not fail.
    let (rows, bad) = run("SELECT CASE WHEN d = 0 THEN 0 ELSE n / d END AS q FROM input", &payloads);
    assert!(bad.is_empty());
    assert_eq!(lines(&rows), ["q=0", "q=2"]);
}

/// Catches an unnest that loses the origin, pairs a wrong neighbour, or keeps half of a failing record.
#[test]
fn unnest_gives_a_row_per_element_with_its_origin() {
    let payloads = [
        r#"{"order_id":1,"items":[{"sku":"a","quantity":1},{"sku":"b","quantity":2}],"tags":["x"]}"#,
        r#"{"order_id":2,"items":[]}"#,
        r#"{"order_id":3,"items":null}"#,
        r#"{"order_id":4,"items":[null,{"sku":"c","quantity":0}],"tags":["y","z","w"]}"#,
    ];
    let query = "SELECT order_id, item.sku, item.quantity AS q, row_id() AS id
                 FROM (SELECT order_id, unnest(items) AS item FROM input)";
    let (rows, bad) = run(query, &payloads);
    assert!(bad.is_empty());
    assert_eq!(
        lines(&rows),
        [
            "order_id=1 sku=a q=1 id=7-100-0",
            "order_id=1 sku=b q=2 id=7-100-1",
            "order_id=4 sku=NULL q=NULL id=7-103-0",
            "order_id=4 sku=c q=0 id=7-103-1",
        ]
    );
    assert_eq!(offsets(&rows), [100, 100, 103, 103]);
    assert_eq!(rows.column_by_name("__unnest").unwrap().as_primitive::<UInt32Type>().values(), &[0, 1, 0, 1]);
    // Two lists go side by side.
    let (rows, _) = run("SELECT order_id, unnest(items) AS i, unnest(tags) AS t FROM input", &payloads);
    assert_eq!(rows.num_rows(), 5);
    assert_eq!(lines(&rows)[1], "order_id=1 i={sku: b, quantity: 2} t=NULL");
    // One element fails: the whole record goes.
    let query = "SELECT order_id, 10 / item.quantity AS q FROM (SELECT order_id, unnest(items) AS item FROM input)";
    let (rows, bad) = run(query, &payloads);
    assert_eq!(lines(&rows), ["order_id=1 q=10", "order_id=1 q=5"]);
    assert_eq!(bad.as_slice().iter().map(|error| error.row).collect::<Vec<_>>(), [3]);
    // Empty lists kept.
    let compiled =
        Sql { keep_empty: true }.compile("SELECT order_id, unnest(items) AS i FROM input", &schema().arrow());
    let (rows, _) = run_compiled(&compiled.unwrap(), &payloads);
    assert_eq!(offsets(&rows), [100, 100, 101, 102, 103, 103]);
}

/// Catches a struct that is unnested into the wrong fields, or whose nulls show through.
#[test]
fn unnest_of_a_struct_gives_its_fields() {
    let payloads = [r#"{"order_id":1,"customer":{"id":7,"country":"PT"}}"#, r#"{"order_id":2}"#];
    let query = "SELECT * FROM (SELECT order_id, unnest(customer) AS c FROM input)";
    match compile(query) {
        Ok(compiled) => {
            let (rows, bad) = run_compiled(&compiled, &payloads);
            assert!(bad.is_empty());
            assert_eq!(rows.num_rows(), 2);
            assert!(lines(&rows)[0].contains("=7") && lines(&rows)[0].contains("=PT"), "{:?}", lines(&rows));
            assert!(lines(&rows)[1].matches("=NULL").count() >= 2, "{:?}", lines(&rows));
        }
        Err(error) => {
            assert!(["LF-SQ0005", "LF-SQ0007", "LF-SQ0009"].contains(&error.code.to_string().as_str()), "{error}")
        }
    }
}

/// Catches a list of many elements beside a long text, which would fill the memory (I14).
#[test]
fn unnest_beside_a_large_column_is_bounded() {
    let payload =
        format!(r#"{{"order_id":1,"type":"{}","tags":[{}]}}"#, "x".repeat(100_000), vec!["\"t\""; 1_000].join(","));
    assert_eq!(one("SELECT type, unnest(tags) AS t FROM input", &payload), "LF-SQ0022");
    let (rows, bad) = run("SELECT order_id, unnest(tags) AS t FROM input", &[&payload]);
    assert_eq!((rows.num_rows(), bad.len()), (1_000, 0));
}

/// Catches a star that drags hidden columns along, and an alias that hides the input's paths.
#[test]
fn star_is_the_visible_columns_and_hidden_ones_ride_through() {
    let payload = r#"{"order_id":1,"customer":{"id":7}}"#;
    let (rows, _) = run("SELECT * EXCLUDE (items, raw) FROM input", &[payload]);
    let names: Vec<String> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(
        names,
        [
            "order_id",
            "customer",
            "amount",
            "placed_at",
            "type",
            "tags",
            "attributes",
            "n",
            "d",
            "orderId",
            "__partition",
            "__offset"
        ]
    );
    let aliased = compile("SELECT i.customer.id FROM input AS i WHERE i.customer.country IS NULL").unwrap();
    let paths: Vec<String> = aliased.wanted().paths.unwrap().iter().map(|path| path.join(".")).collect();
    assert_eq!(paths, ["customer.country", "customer.id"]);
    assert_eq!(lines(&run_compiled(&aliased, &[payload]).0), ["id=7"]);
    let inner =
        "SELECT o FROM (SELECT record_offset() AS o, n FROM input WHERE n IS NULL) WHERE record_partition() = 7";
    assert_eq!(one(inner, payload), "o=100");
    let cte = "WITH a AS (SELECT order_id AS x FROM input) SELECT x + 1 AS y FROM a";
    assert_eq!(one(cte, payload), "y=2");
    // Only constants: rows are counted by their hidden columns.
    let (rows, _) = run("SELECT 1 AS one FROM input", &[payload, payload]);
    assert_eq!(lines(&rows), ["one=1", "one=1"]);
}

/// Catches a name that is taken for SQL (F-C5).
#[test]
fn f_c5_strange_column_names_are_only_names() {
    let names = ["a\"b; drop", "select", "a.b", "back`tick", "with space", "größe"];
    let schema = crate::Schema::declare(names.map(|name| (name.to_owned(), ColumnText::from("bigint")))).unwrap();
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\""))).collect();
    let query = format!("SELECT {} FROM input WHERE \"a.b\" = 3", quoted.join(", "));
    let compiled = Sql::default().compile(&query, &schema.arrow()).unwrap();
    let mut decoder = JsonDecoder::new(schema, JsonOptions::default());
    decoder.plan(&compiled.wanted()).unwrap();
    let payload = r#"{"a\"b; drop":1,"select":2,"a.b":3,"back`tick":4,"with space":5,"größe":6}"#;
    let mut bad = RowErrors::default();
    let Decoded::Rows(rows) = decoder.decode(&records(&[payload]), &mut bad).unwrap() else { unreachable!() };
    let rows = compiled.into_transform().apply(rows, &mut bad).unwrap();
    let output: Vec<String> = rows.schema().fields().iter().take(6).map(|field| field.name().clone()).collect();
    assert_eq!(output, names);
    let values: Vec<i64> = (0..6).map(|at| rows.column(at).as_primitive::<Int64Type>().value(0)).collect();
    assert_eq!(values, [1, 2, 3, 4, 5, 6]);
}

/// Catches a per-sink condition that changes what it lets through.
#[test]
fn a_condition_on_its_own_keeps_rows_as_they_are() {
    let schema = schema();
    let mut decoder = JsonDecoder::new(schema.clone(), JsonOptions::default());
    let planned = decoder.plan(&Wanted::default()).unwrap();
    let compiled = Sql::default().compile_where("n > 1 AND 10 / d > 2", &planned).unwrap();
    let mut transform = compiled.into_transform();
    assert_eq!(transform.plan(&planned).unwrap(), planned);
    let payloads = [r#"{"order_id":1,"n":2,"d":3}"#, r#"{"order_id":2,"n":2,"d":0}"#, r#"{"order_id":3,"n":1,"d":0}"#];
    let mut bad = RowErrors::default();
    let Decoded::Rows(rows) = decoder.decode(&records(&payloads), &mut bad).unwrap() else { unreachable!() };
    let kept = transform.apply(rows.clone(), &mut bad).unwrap();
    assert_eq!(kept, rows.slice(0, 1));
    assert_eq!(
        bad.as_slice().iter().map(|error| (error.row, error.code.to_string())).collect::<Vec<_>>(),
        [(1, "LF-SQ0021".to_owned())]
    );
    for (wrong, code) in [
        ("n >", "LF-SQ0001"),
        ("count(*) > 1", "LF-SQ0002"),
        ("nothing = 1", "LF-SQ0007"),
        ("n > 1; DROP TABLE x", "LF-SQ0001"),
    ] {
        assert_eq!(
            Sql::default().compile_where(wrong, &planned).map(|c| c.steps()).unwrap_err().code.to_string(),
            code,
            "{wrong}"
        );
    }
}

/// Catches a type that no sink takes, or a timestamp that ends in 2262.
#[test]
fn what_leaves_a_query_has_sql_s_types() {
    let compiled = compile(
        "SELECT array_length(tags) AS n, to_timestamp(placed_at) AS t, date_trunc('day', CAST(placed_at AS TIMESTAMP)) AS d,
                upper(type) AS u FROM input",
    )
    .unwrap();
    let kinds: Vec<String> = compiled.output().fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(kinds, ["Int64", "Timestamp(µs)", "Timestamp(µs)", "Utf8"]);
    let payload = r#"{"order_id":1,"tags":["a","b"],"placed_at":"2024-05-01T10:00:00Z","type":"é"}"#;
    assert_eq!(lines(&run_compiled(&compiled, &[payload]).0), ["n=2 t=2024-05-01T10:00:00 d=2024-05-01T00:00:00 u=É"]);
}

/// Catches a payload or a query that can ask for any amount of memory or stack (I14).
#[test]
fn no_row_and_no_query_asks_for_unbounded_room() {
    for query in [
        "repeat(type, n)",
        "lpad(type, n)",
        "range(n)",
        "generate_series(1, n)",
        "array_repeat(type, n)",
        "repeat(type, 1000000)",
    ] {
        let error = compile(&format!("SELECT {query} AS v FROM input")).map(|c| c.steps()).unwrap_err();
        assert!(error.text.contains("the length must be a constant"), "{query}: {error}");
    }
    assert_eq!(one("SELECT lpad(type, 5, '0') AS v FROM input", r#"{"order_id":1,"type":"7"}"#), "v=00007");
    let chain = |terms: usize| format!("SELECT {} AS v FROM input", vec!["n"; terms].join("+"));
    assert!(compile(&chain(100)).is_ok());
    for terms in [200, 30_000] {
        let error = compile(&chain(terms)).map(|c| c.steps()).unwrap_err();
        assert!(error.text.starts_with("an expression nests deeper than 128 levels"), "{error}");
    }
    let nested = format!("SELECT {}n{} AS v FROM input", "(".repeat(20_000), ")".repeat(20_000));
    assert!(compile(&nested).is_err());
    let error = compile(&format!("SELECT '{}' AS v FROM input", "x".repeat(70_000))).map(|c| c.steps()).unwrap_err();
    assert!(error.text.contains("the limit is 65536"), "{error}");
}

/// Catches a step list that people cannot read.
#[test]
fn the_step_list_names_every_step() {
    let compiled = compile(
        "SELECT order_id, item.sku FROM (SELECT order_id, unnest(items) AS item FROM input WHERE n > 1 AND 10 / d > 1)",
    )
    .unwrap();
    let kinds: Vec<String> = compiled.steps().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(kinds.first().map(String::as_str), Some("read"));
    assert_eq!(kinds.iter().filter(|kind| *kind == "filter").count(), 2);
    assert_eq!(kinds.iter().filter(|kind| *kind == "unnest").count(), 1);
    assert_eq!(kinds.last().map(String::as_str), Some("project"));
}

fn payload_of(row: (i64, i64, u8)) -> String {
    let text = match row.2 % 4 {
        0 => "\"7\"",
        1 => "\"x\"",
        2 => "null",
        _ => "\"-3\"",
    };
    format!(r#"{{"order_id":1,"n":{},"d":{},"type":{text}}}"#, row.0, row.1)
}

const FALLIBLE: &[&str] = &[
    "SELECT n / d AS v FROM input",
    "SELECT d <> 0 AND n / d > 1 AS v FROM input",
    "SELECT d = 0 OR n / d > 1 AS v FROM input",
    "SELECT CASE WHEN d = 0 THEN CAST(type AS bigint) ELSE n / d END AS v FROM input",
    "SELECT coalesce(CAST(type AS bigint), n / d) AS v FROM input",
    "SELECT n FROM input WHERE d <> 0 AND n / d > 0",
    "SELECT n FROM input WHERE d = 0 OR n / d > 0",
    "SELECT n FROM input WHERE NOT (d <> 0 AND CAST(type AS bigint) > 0)",
    "SELECT CAST(type AS bigint) + n AS v FROM input WHERE n <> 2",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each row alone, all in one batch, and cut anywhere: catches an error that comes from the neighbours (E108).
    #[test]
    fn a_row_error_does_not_depend_on_its_batch(
        rows in prop::collection::vec((-2..4i64, -1..3i64, any::<u8>()), 1..24),
        cut in 0..24usize,
        query in prop::sample::select(FALLIBLE.to_vec()),
    ) {
        let compiled = compile(query).unwrap();
        let payloads: Vec<String> = rows.into_iter().map(payload_of).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let outcome = |payloads: &[&str]| {
            let (rows, bad) = run_compiled(&compiled, payloads);
            let landed = lines(&rows).into_iter().zip(offsets(&rows).into_iter().map(|offset| offset - 100));
            let failed = bad.as_slice().iter().map(|error| (error.text.clone(), u64::from(error.row)));
            let mut all: Vec<(u64, String)> = landed.chain(failed).map(|(text, row)| (row, text)).collect();
            all.sort();
            all
        };
        let whole = outcome(&payloads);
        let alone: Vec<(u64, String)> = payloads.iter().enumerate()
            .flat_map(|(at, payload)| outcome(&[payload]).into_iter().map(move |(_, text)| (at as u64, text)))
            .collect();
        prop_assert_eq!(&whole, &alone, "{}", query);
        let cut = cut.min(payloads.len());
        let (left, right) = payloads.split_at(cut);
        let mut parts = outcome(left);
        parts.extend(outcome(right).into_iter().map(|(row, text)| (row + cut as u64, text)));
        prop_assert_eq!(&whole, &parts, "{}", query);
    }

    /// The halving beside the library's own lenient cast: catches a failing row that is missed, or a good one that is
    /// refused.
    #[test]
    fn checked_casts_and_bisection_find_the_same_rows(
        rows in prop::collection::vec((-2..4i64, -1..3i64, any::<u8>()), 1..64),
    ) {
        let payloads: Vec<String> = rows.into_iter().map(payload_of).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let (_, bad) = run("SELECT CAST(type AS bigint) AS v FROM input", &payloads);
        let (lenient, none) = run("SELECT type, TRY_CAST(type AS bigint) AS v FROM input", &payloads);
        prop_assert!(none.is_empty());
        let expected: Vec<u32> = (0..payloads.len())
            .filter(|row| lenient.column(0).is_valid(*row) && lenient.column(1).is_null(*row))
            .map(|row| row as u32)
            .collect();
        let mut found: Vec<u32> = bad.as_slice().iter().map(|error| error.row).collect();
        found.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    /// Any text as a query: catches a panic (I14).
    #[test]
    fn random_queries_never_panic(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "SELECT", "FROM", "input", "WHERE", "n", "d", ",", "(", ")", "AS", "x", "1", "'a'", "*", "+", "/", "unnest", "items",
                "CASE", "WHEN", "THEN", "END", "CAST", "bigint", "customer", ".", "[", "]", "record_key", "AND", "NOT", "NULL", "\"",
            ]),
            0..24,
        )
    ) {
        let query = pieces.join(" ");
        let _ = compile(&query).map(|compiled| compiled.wanted());
        let select = format!("SELECT {query} FROM input");
        let _ = compile(&select).map(|compiled| compiled.wanted());
    }
}

/// Catches a column that is taken for the input's own although a step made another of it.
#[test]
fn a_column_is_carried_only_where_no_step_made_it() {
    for (query, carried) in [
        ("SELECT type FROM input", true),
        ("SELECT * FROM input WHERE type <> 'x'", true),
        ("SELECT t.type FROM (SELECT type, order_id FROM input) AS t", true),
        ("SELECT upper(type) AS type FROM input", false),
        ("SELECT raw AS type FROM input", false),
        ("SELECT t.type FROM (SELECT 'a' || type AS type FROM input) AS t", false),
        ("SELECT order_id FROM input", false),
    ] {
        let compiled = compile(query).unwrap_or_else(|error| panic!("{query}: {}", error.text));
        assert_eq!(compiled.carries("type"), carried, "{query}");
    }
}
