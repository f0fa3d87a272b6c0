//! Values and changes of a real server: what is copied and what is streamed give the same rows (F-P7, F-P8, FX-2, FX-3).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::database::Shop;
use crate::golden::dump::parse_line;
use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int32Type, Int64Type, TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use landfall_postgres::{
    ArrayShape, ColumnShape, CopyLines, InvalidText, Lsn, Message, NanPolicy, PgType, Policies, RangePolicy, Refused,
    Relation, Relations, RowError, RowOptions, RowPlan, Sequencer, ShapeDiff, Stamp, TableRows, TableShape, Target,
    decode, read_tables,
};
use landfall_testkit::{Postgres, PostgresInstall};
use landfall_types::{Offset, PartitionId, Timestamp};

/// What every connection of the source pins (P49).
const PINNED: &str = "SET DateStyle = ISO; SET IntervalStyle = iso_8601; SET TimeZone = 'UTC';
    SET extra_float_digits = 3; SET bytea_output = hex; SET client_encoding = UTF8; SET lc_monetary = 'C';";

fn clusters() -> Vec<Postgres> {
    let installs = PostgresInstall::oldest_and_newest().expect("a server to test with");
    installs.iter().map(|install| Postgres::start(install).expect("a cluster")).collect()
}

fn list(element: PgType) -> PgType {
    PgType::Array { element: Box::new(element), delimiter: ',' }
}

fn other(name: &str) -> PgType {
    PgType::Other(name.into())
}

/// A type as SQL writes it, what it is to us, and values as SQL writes them; of how many the default policies refuse
/// the row, and with which code.
struct Case {
    sql: &'static str,
    kind: PgType,
    values: &'static [&'static str],
    refused: &'static [&'static str],
}

fn case(sql: &'static str, kind: PgType, values: &'static [&'static str]) -> Case {
    Case { sql, kind, values, refused: &[] }
}

fn cases() -> Vec<Case> {
    const INFINITE: &str = "LF-PG0403";
    let refused = |case: Case, refused| Case { refused, ..case };
    vec![
        case("boolean", PgType::Bool, &["true", "false"]),
        case("smallint", PgType::Int2, &["-32768", "32767"]),
        case("integer", PgType::Int4, &["-2147483648", "2147483647"]),
        case("bigint", PgType::Int8, &["-9223372036854775808", "9223372036854775807"]),
        case("oid", PgType::Oid, &["0", "4294967295"]),
        case("xid8", PgType::Xid8, &["'18446744073709551615'"]),
        case("real", PgType::Float4, &["'NaN'", "'Infinity'", "'-0'", "1e-45", "0.1", "3.4028235e38"]),
        case(
            "double precision",
            PgType::Float8,
            &["'NaN'", "'-Infinity'", "'-0'", "5e-324", "0.1", "1.7976931348623157e308"],
        ),
        refused(
            case("numeric(10,2)", PgType::Numeric(Some((10, 2))), &["12.3", "0e-1", "'NaN'", "-99999999.99"]),
            &["LF-PG0402"],
        ),
        case("numeric(3,-2)", PgType::Numeric(Some((3, -2))), &["99949", "-1"]),
        case("numeric(3,5)", PgType::Numeric(Some((3, 5))), &["0.00123"]),
        case(
            "numeric(60,7)",
            PgType::Numeric(Some((60, 7))),
            &["12345678901234567890123456789012345678901234567890.1234567", "-0.0000001"],
        ),
        case(
            "numeric",
            PgType::Numeric(None),
            &["'NaN'", "'Infinity'", "'-Infinity'", "1e131071", "0e-1", "0.0012000"],
        ),
        case("money", PgType::Money, &["-1234.5", "0"]),
        case(
            "text",
            PgType::Text,
            &[
                "''",
                r"'\N'",
                r"E'tab\t line\n return\r'",
                r"'back\slash \x41'",
                "U&'\\+01F600'",
                "repeat('x', 1048576)",
                "E'\\b\\f\\v'",
            ],
        ),
        case("varchar(8)", PgType::Text, &["'  ab  '"]),
        case("name", PgType::Text, &["'Name'"]),
        case("tsvector", PgType::Text, &["'a fat cat'"]),
        case("char(5)", PgType::Char, &["'ab'"]),
        case("\"char\"", PgType::Char, &["'a'"]),
        case("bytea", PgType::Bytea, &[r"'\x'", r"'\x00ff5c'"]),
        refused(
            case(
                "date",
                PgType::Date,
                &["'1556-05-29'", "'9999-12-31'", "'5874897-12-31'", "'4713-01-01 BC'", "'infinity'", "'-infinity'"],
            ),
            &[INFINITE, INFINITE],
        ),
        refused(
            case(
                "timestamp",
                PgType::Timestamp,
                &[
                    "'294276-12-31 23:59:59.999999'",
                    "'4713-01-01 00:00:00.000001 BC'",
                    "'infinity'",
                    "'2024-02-29 12:00'",
                ],
            ),
            &["LF-PG0404", INFINITE],
        ),
        refused(
            case(
                "timestamptz",
                PgType::TimestampTz,
                &[
                    "'294276-12-31 23:59:59.999999+00'",
                    "'1900-01-01 00:00:00+00:19:32'",
                    "'-infinity'",
                    "'0001-01-01 00:00:00+00 BC'",
                ],
            ),
            &["LF-PG0404", INFINITE],
        ),
        case("time", PgType::Time, &["'24:00:00'", "'23:59:59.999999'"]),
        case("timetz", PgType::TimeTz, &["'01:02:03+00:19:32'", "'24:00:00-15:59'"]),
        case(
            "interval",
            PgType::Interval,
            &["'-1 mon +2 days'", "'178000000 years'", "'-178000000 years'", "'0.000001 s'"],
        ),
        case(
            "uuid",
            PgType::Uuid,
            &["'00000000-0000-0000-0000-000000000000'", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"],
        ),
        case("inet", other("inet"), &["'10.0.0.1/8'", "'::1'"]),
        case("macaddr8", other("macaddr8"), &["'08:00:2b:01:02:03:04:05'"]),
        case("bit varying", other("varbit"), &["B'101'", "B''"]),
        case("box", other("box"), &["'(1,2),(0,0)'"]),
        case("json", PgType::Json, &["'null'", r#"'{"a": 1,  "a": "\ud800"}'"#, "'[1, \"é\"]'"]),
        case("jsonb", PgType::Jsonb, &["'null'", "'{\"b\": 1, \"a\": 2}'", "'1e400'"]),
        case("mood", PgType::Enum, &["'sad'", "'it''s \"ok\"'"]),
        case("feeling", PgType::Enum, &["'sad'"]),
        case("pair", other("public.pair"), &["ROW(1, 'a,\"b')", "ROW(NULL, '')"]),
        case("int4range", other("int4range"), &["'empty'", "'(,5]'"]),
        case("int4multirange", other("int4multirange"), &["'{[1,2),[5,)}'"]),
        refused(
            case("integer[]", list(PgType::Int4), &["'{}'", "'[0:1]={7,8}'", "'{{1,2},{3,4}}'", "'{1,NULL}'"]),
            &["LF-PG0406"],
        ),
        case(
            "text[]",
            list(PgType::Text),
            &[r#"'{NULL,"NULL",""}'"#, r#"'{"a{b","c,d","e\"f","g\\h"," ",x y}'"#, r"ARRAY[E'tab\t', '\N']"],
        ),
        case("numeric[]", list(PgType::Numeric(None)), &["'{1.5,NaN,NULL,-Infinity}'"]),
        case("double precision[]", list(PgType::Float8), &["'{1.5,NaN,NULL,-Infinity,-0}'"]),
        refused(case("date[]", list(PgType::Date), &["'{2024-02-29,NULL}'", "'{2024-02-29,infinity}'"]), &[INFINITE]),
        case("timestamptz[]", list(PgType::TimestampTz), &["ARRAY['2024-02-29 12:00:00.5+02'::timestamptz]"]),
        case("timetz[]", list(PgType::TimeTz), &["'{01:02:03+02,04:05:06-00:19:32}'"]),
        case("bytea[]", list(PgType::Bytea), &[r#"ARRAY['\x00ff'::bytea, '\x', NULL]"#]),
        case("uuid[]", list(PgType::Uuid), &["ARRAY['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid]"]),
        case("boolean[]", list(PgType::Bool), &["'{t,f,NULL}'"]),
        case("mood[]", list(PgType::Enum), &[r#"ARRAY['sad', 'it''s "ok"', NULL]::mood[]"#]),
        case(
            "box[]",
            PgType::Array { element: Box::new(other("box")), delimiter: ';' },
            &["'{(1,1),(0,0);(3,3),(2,2)}'"],
        ),
        case("ints", list(PgType::Int4), &["'{1,2}'"]),
    ]
}

fn shape(relation: &Relation, kinds: &HashMap<String, PgType>, key: &[&str]) -> TableShape {
    let columns = relation.columns.iter().map(|column| ColumnShape {
        name: column.name.clone(),
        attnum: 0,
        type_oid: column.type_oid,
        modifier: column.modifier,
        kind: kinds.get(&*column.name).cloned().unwrap_or(PgType::Int4),
        is_not_null: key.contains(&&*column.name),
        is_key: key.contains(&&*column.name),
        is_generated: false,
        is_toastable: true,
    });
    TableShape {
        relation: relation.id,
        name: relation.name.clone(),
        identity: relation.identity,
        columns: columns.collect(),
    }
}

/// What the slot named as the database holds, in order.
fn messages(cluster: &Postgres, database: &str) -> Vec<(Lsn, Vec<u8>)> {
    messages_in(cluster, database, "UTF8").expect("the slot's changes")
}

fn messages_in(cluster: &Postgres, database: &str, encoding: &str) -> anyhow::Result<Vec<(Lsn, Vec<u8>)>> {
    let sql = format!(
        "{PINNED} SET client_encoding = {encoding};
         SELECT lsn || ' ' || encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('{database}', NULL, NULL,
         'proto_version', '1', 'publication_names', 'types');"
    );
    let text = cluster.psql(database, &sql)?;
    text.lines().map(parse_line).collect()
}

/// The rows of one table, and those that were refused.
struct Rows {
    batch: RecordBatch,
    refused: Vec<RowError>,
}

fn settle(result: Result<(), Refused>, refused: &mut Vec<RowError>) {
    match result {
        Ok(()) => {}
        Err(Refused::Row(error)) => refused.push(*error),
        Err(other) => panic!("{other:?}"),
    }
}

/// Every row event of the table, as the stream has it.
fn streamed(messages: &[(Lsn, Vec<u8>)], table: &str, plan_of: impl Fn(&Relation) -> RowPlan) -> Rows {
    let (mut relations, mut sequencer, mut refused) = (Relations::new(), None, Vec::new());
    let mut rows: Option<TableRows> = None;
    for (lsn, bytes) in messages {
        let message = decode(*lsn, bytes).expect("a message");
        let relation = match message {
            Message::Begin(begin) => {
                sequencer = Some(Sequencer::new(begin));
                continue;
            }
            Message::Relation(body) => {
                relations.take(*lsn, &body).expect("room");
                continue;
            }
            Message::Insert { relation, .. } | Message::Update { relation, .. } | Message::Delete { relation, .. } => {
                relations.get(*lsn, relation).expect("known")
            }
            _ => continue,
        };
        let sequencer: &mut Sequencer = sequencer.as_mut().expect("inside a transaction");
        let stamp = match message {
            Message::Update { .. } => sequencer.update(),
            _ => sequencer.row(),
        };
        if *relation.name.table != *table {
            continue;
        }
        let rows = rows.get_or_insert_with(|| TableRows::new(Arc::new(plan_of(relation))));
        let stamp = stamp.expect("room");
        settle(
            match message {
                Message::Insert { new, .. } => rows.insert(stamp, new),
                Message::Update { old, new, .. } => rows.update(stamp, old, new),
                Message::Delete { old, .. } => rows.delete(stamp, old),
                _ => unreachable!("only row events come here"),
            },
            &mut refused,
        );
    }
    let mut rows = rows.unwrap_or_else(|| panic!("no row of {table}"));
    Rows { batch: rows.finish(PartitionId(0), Offset(0)).expect("a batch"), refused }
}

/// What COPY writes for a query.
fn copy_of(cluster: &Postgres, database: &str, query: &str, encoding: &str) -> Bytes {
    let file = cluster.data().join("copied");
    let sql = format!("{PINNED} COPY ({query}) TO '{}' (ENCODING '{encoding}');", file.display());
    cluster.psql(database, &sql).expect("a copy");
    Bytes::from(std::fs::read(&file).expect("the copy"))
}

/// The rows of a copy, fed in chunks of an odd size.
fn copied(text: &Bytes, plan: RowPlan) -> Rows {
    let (mut lines, mut refused) = (CopyLines::new(64 << 20), Vec::new());
    let mut rows = TableRows::new(Arc::new(plan));
    let stamp = Stamp::snapshot(Lsn(1), Timestamp(0));
    for chunk in text.chunks(4093) {
        lines.feed(text.slice_ref(chunk));
        while let Some(line) = lines.next_line().expect("a line") {
            settle(rows.copied(stamp, &line), &mut refused);
        }
    }
    lines.finish().expect("whole lines");
    Rows { batch: rows.finish(PartitionId(0), Offset(0)).expect("a batch"), refused }
}

fn every_type(values: &[Case]) -> String {
    let mut sql = String::from(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"'); CREATE DOMAIN feel AS mood; CREATE DOMAIN feeling AS feel;
         CREATE TYPE pair AS (a int, b text); CREATE DOMAIN ints AS int[];",
    );
    for (at, case) in values.iter().enumerate() {
        sql += &format!("CREATE TABLE t{at} (id int PRIMARY KEY, v {});\n", case.sql);
    }
    sql += "CREATE PUBLICATION types FOR ALL TABLES; SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput');\n";
    for (at, case) in values.iter().enumerate() {
        for (id, value) in case.values.iter().chain([&"NULL"]).enumerate() {
            sql += &format!("INSERT INTO t{at} VALUES ({id}, {value});\n");
        }
    }
    sql
}

/// Catches a value that depends on the way it came, a value that is refused without a reason, and a type that is not
/// carried at all (F-P7, F-P8, F-P9).
#[test]
fn copy_and_stream_agree_on_every_type() {
    let cases = cases();
    let sets = [
        Policies::default(),
        Policies {
            nan: NanPolicy::Null,
            infinity: RangePolicy::Clamp,
            out_of_range: Some(RangePolicy::Clamp),
            invalid_text: InvalidText::Replace,
            numeric_unbounded: "decimal(76,10)".parse().expect("a decimal"),
            array_shape: ArrayShape::Text,
        },
        Policies {
            nan: NanPolicy::Text,
            infinity: RangePolicy::Text,
            out_of_range: Some(RangePolicy::Text),
            invalid_text: InvalidText::Binary,
            array_shape: ArrayShape::Text,
            ..Policies::default()
        },
    ];
    for cluster in clusters() {
        let major = cluster.major();
        cluster.create_database("types").expect("a database");
        cluster.psql("types", &every_type(&cases)).expect("the tables");
        let messages = messages(&cluster, "types");
        for (at, case) in cases.iter().enumerate() {
            let kinds = HashMap::from([("v".to_owned(), case.kind.clone())]);
            let table = format!("t{at}");
            let relation = relation_of(&messages, &table);
            let text = copy_of(&cluster, "types", &format!("SELECT id, v FROM {table} ORDER BY id"), "UTF8");
            for (set, policies) in sets.iter().enumerate() {
                for target in [Target::Arrow, Target::Delta] {
                    let options = RowOptions { target, policies: *policies, ..RowOptions::default() };
                    let plan_of = |relation: &Relation| {
                        RowPlan::new(Arc::new(shape(relation, &kinds, &["id"])), options.clone()).expect("a plan")
                    };
                    let stream = streamed(&messages, &table, plan_of);
                    let copy = copied(&text, plan_of(&relation));
                    let name = format!("{} on {major}, policies {set}, {target:?}", case.sql);
                    assert_eq!(stream.batch.columns()[..2], copy.batch.columns()[..2], "{name}");
                    let codes = |rows: &Rows| -> Vec<String> {
                        rows.refused.iter().map(|error| error.code.to_string()).collect()
                    };
                    assert_eq!(codes(&stream), codes(&copy), "{name}");
                    let bytes = |rows: &Rows| -> Vec<Vec<u8>> {
                        rows.refused.iter().map(|error| error.received.clone()).collect()
                    };
                    assert_eq!(bytes(&stream), bytes(&copy), "{name}");
                    let wanted: &[&str] = if set == 0 { case.refused } else { &[] };
                    let found = codes(&stream);
                    // The other sets leave nothing to refuse.
                    assert_eq!(found, wanted, "{name}: {:?}", stream.refused);
                    assert_eq!(stream.batch.num_rows() + wanted.len(), case.values.len() + 1, "{name}");
                }
            }
        }
    }
}

fn relation_of(messages: &[(Lsn, Vec<u8>)], table: &str) -> Relation {
    let mut relations = Relations::new();
    for (lsn, bytes) in messages {
        if let Ok(Message::Relation(body)) = decode(*lsn, bytes)
            && body.name == table
        {
            relations.take(*lsn, &body).expect("room");
            return (**relations.get(*lsn, body.id).expect("just taken")).clone();
        }
    }
    panic!("no relation {table}")
}

/// Catches a type that the catalog resolves otherwise than its values are read, and a shape that differs from what the
/// stream says of the same table.
#[tokio::test]
async fn the_catalogs_shapes_are_the_streams() -> anyhow::Result<()> {
    let cases = cases();
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql(&every_type(&cases))?;
        let messages = messages(&shop.server, "shop");
        let matched = read_tables(&shop.sql().await?, &["public.*".parse()?], &[]).await?;
        assert_eq!(matched.tables.len(), cases.len());
        for (at, case) in cases.iter().enumerate() {
            let table = format!("t{at}");
            let facts = matched.tables.iter().find(|facts| *facts.shape.name.table == *table).expect("matched");
            let column = facts.shape.columns.iter().find(|column| &*column.name == "v").expect("a column");
            assert_eq!(column.kind, case.kind, "{}", case.sql);
            let diff = ShapeDiff::between(&facts.shape, &relation_of(&messages, &table));
            assert!(diff.is_empty(), "{}: {diff:?}", case.sql);
        }
    }
    Ok(())
}

/// Catches a calendar that is not the server's: days and microseconds are what it counts itself.
#[test]
fn dates_and_timestamps_agree_with_the_servers_own_arithmetic() {
    for cluster in clusters() {
        cluster.create_database("types").expect("a database");
        let table = "
            CREATE TABLE moments AS SELECT i AS id, d, (d - date '1970-01-01')::int AS days,
                t, (extract(epoch FROM t) * 1000000)::bigint AS micros, t AT TIME ZONE 'UTC' AS z
            FROM (SELECT i, date '4714-11-24 BC' + (i::bigint * 71509)::int AS d,
                timestamp '4714-11-24 00:00:00 BC' + i * interval '3635 days 07:11:13.000123' AS t
                FROM generate_series(0, 29900) i) s;
            ALTER TABLE moments ADD PRIMARY KEY (id);
            CREATE PUBLICATION types FOR TABLE moments; SELECT pg_create_logical_replication_slot('types', 'pgoutput');
            UPDATE moments SET days = days WHERE id = 0;";
        cluster.psql("types", table).expect("a table");
        let kinds =
            [("d", PgType::Date), ("t", PgType::Timestamp), ("micros", PgType::Int8), ("z", PgType::TimestampTz)];
        let kinds = kinds.map(|(name, kind)| (name.to_owned(), kind)).into();
        let relation = relation_of(&messages(&cluster, "types"), "moments");
        let plan = RowPlan::new(Arc::new(shape(&relation, &kinds, &["id"])), RowOptions::default()).expect("a plan");
        let rows = copied(&copy_of(&cluster, "types", "SELECT * FROM moments", "UTF8"), plan);
        assert!(rows.refused.is_empty(), "{:?}", rows.refused.first());
        let column = |name| rows.batch.column_by_name(name).expect("a column");
        let (dates, days) = (column("d").as_primitive::<Date32Type>(), column("days").as_primitive::<Int32Type>());
        assert_eq!(dates.values(), days.values());
        let micros = column("micros").as_primitive::<Int64Type>();
        for name in ["t", "z"] {
            assert_eq!(column(name).as_primitive::<TimestampMicrosecondType>().values(), micros.values(), "{name}");
        }
        assert_eq!(rows.batch.num_rows(), 29_901);
    }
}

/// Catches an update, a delete or a key change that leads to another table than the server's, under each identity, with
/// large values that the updates do not touch (F-P1, FX-2).
#[test]
fn the_streams_rows_add_up_to_the_table() {
    for cluster in clusters() {
        for (database, identity, key, refuses_toast) in [
            ("whole", "REPLICA IDENTITY FULL", "id", false),
            ("keyed", "REPLICA IDENTITY DEFAULT", "id", true),
            ("indexed", "REPLICA IDENTITY USING INDEX doc_code_key", "code", true),
        ] {
            cluster.create_database(database).expect("a database");
            let workload = format!(
                "CREATE TABLE doc (id int PRIMARY KEY, code text NOT NULL UNIQUE, body text);
                 ALTER TABLE doc ALTER body SET STORAGE EXTERNAL; ALTER TABLE doc {identity};
                 CREATE PUBLICATION types FOR TABLE doc; SELECT pg_create_logical_replication_slot('{database}', 'pgoutput');
                 INSERT INTO doc SELECT i, 'c' || i, repeat('x', 3000 + i) FROM generate_series(1, 40) i;
                 UPDATE doc SET body = 'short' WHERE id % 2 = 0;
                 UPDATE doc SET code = 'd' || id WHERE id % 3 = 0;
                 UPDATE doc SET id = id + 1000 WHERE id % 4 = 0;
                 UPDATE doc SET body = NULL WHERE id % 5 = 0;
                 UPDATE doc SET code = code || '!' WHERE id % 8 = 0;
                 DELETE FROM doc WHERE id % 7 = 0;
                 INSERT INTO doc SELECT i, 'c' || i, 'again' FROM generate_series(7, 35, 14) i;"
            );
            cluster.psql(database, &workload).expect("the workload");
            let kinds = HashMap::from([("code".to_owned(), PgType::Text), ("body".to_owned(), PgType::Text)]);
            let plan_of = |relation: &Relation| {
                RowPlan::new(Arc::new(shape(relation, &kinds, &[key])), RowOptions::default()).expect("a plan")
            };
            let messages = messages(&cluster, database);
            let stream = streamed(&messages, "doc", plan_of);
            assert_eq!(!stream.refused.is_empty(), refuses_toast, "{database}");
            assert!(stream.refused.iter().all(|error| error.code.to_string() == "LF-PG0307"));

            let (mut table, mut last) = (BTreeMap::new(), (0, 0));
            let at = |batch: &RecordBatch, row: usize| {
                let string = |name: &str| {
                    let column = batch.column_by_name(name).expect("a column").as_string::<i32>();
                    column.is_valid(row).then(|| column.value(row).to_owned())
                };
                let id = batch.column(0).as_primitive::<Int32Type>();
                let id = id.is_valid(row).then(|| id.value(row));
                let key = if key == "id" { id.map(|id| id.to_string()) } else { string("code") };
                (key.expect("a key"), (id, string("code"), string("body")))
            };
            let number = |name: &str, row: usize| {
                stream.batch.column_by_name(name).expect("a column").as_primitive::<UInt64Type>().value(row)
            };
            let ops = stream.batch.column_by_name("_op").expect("_op").as_string::<i32>();
            for row in 0..stream.batch.num_rows() {
                let version = (number("_commit_lsn", row), number("_seq", row));
                assert!(version > last, "{database}: versions rise in the order of the stream");
                last = version;
                let (key, image) = at(&stream.batch, row);
                match ops.value(row) {
                    "d" => table.remove(&key),
                    _ => table.insert(key, image),
                };
            }
            let text = copy_of(&cluster, database, "SELECT * FROM doc", "UTF8");
            let copy = copied(&text, plan_of(&relation_of(&messages, "doc")));
            let wanted: BTreeMap<_, _> = (0..copy.batch.num_rows()).map(|row| at(&copy.batch, row)).collect();
            if !refuses_toast {
                assert_eq!(table, wanted, "{database}");
                continue;
            }
            // Rows with a refused change are for `toast: merge` or a re-sync; every other row is the server's.
            let refused: Vec<String> = stream
                .refused
                .iter()
                .map(|error| {
                    let row: serde_json::Value = serde_json::from_slice(&error.received).expect("an object");
                    row[key].as_str().expect("the key").to_owned()
                })
                .collect();
            let clean = |table: BTreeMap<String, _>| -> BTreeMap<String, _> {
                table.into_iter().filter(|(key, _)| !is_touched(key, &refused)).collect()
            };
            let (table, wanted) = (clean(table), clean(wanted));
            assert!(wanted.len() > 5, "{database}: {} rows to compare", wanted.len());
            assert_eq!(table, wanted, "{database}");
        }
    }
}

/// Whether a row, under its old or its new key, had a change refused.
fn is_touched(key: &str, refused: &[String]) -> bool {
    let number = |key: &str| key.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().map(|id| id % 1000);
    refused.iter().any(|other| number(other) == number(key))
}

/// Catches bytes of a database without an encoding that land as text, or that stop its neighbours (I13).
#[test]
fn a_sql_ascii_database_sends_bytes_that_are_no_text() {
    for cluster in clusters() {
        cluster
            .psql(
                "postgres",
                "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
            )
            .expect("a database");
        let workload = r"
            CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION types FOR TABLE t;
            SELECT pg_create_logical_replication_slot('ascii', 'pgoutput');
            INSERT INTO t VALUES (1, 'plain'), (2, E'a\xffb'), (3, E'\xc3\xa9');";
        cluster.psql("ascii", workload).expect("the workload");
        // Asked for UTF-8 the server ends the whole stream at such a text, so here its bytes are asked for as they are.
        let error = messages_in(&cluster, "ascii", "UTF8").expect_err("the server checks what it sends");
        assert!(error.to_string().contains("invalid byte sequence for encoding \"UTF8\""), "{error}");
        let messages = messages_in(&cluster, "ascii", "SQL_ASCII").expect("the slot's changes");
        let kinds = HashMap::from([("v".to_owned(), PgType::Text)]);
        for (invalid_text, refused) in [(InvalidText::Error, 1), (InvalidText::Replace, 0), (InvalidText::Binary, 0)] {
            let policies = Policies { invalid_text, ..Policies::default() };
            let options = RowOptions { policies, ..RowOptions::default() };
            let plan_of = |relation: &Relation| {
                RowPlan::new(Arc::new(shape(relation, &kinds, &["id"])), options.clone()).expect("a plan")
            };
            let stream = streamed(&messages, "t", plan_of);
            let plan = plan_of(&relation_of(&messages, "t"));
            let copy = copied(&copy_of(&cluster, "ascii", "SELECT * FROM t", "SQL_ASCII"), plan);
            assert_eq!(stream.batch.columns()[..2], copy.batch.columns()[..2]);
            assert_eq!((stream.refused.len(), copy.refused.len()), (refused, refused));
            if let Some(error) = stream.refused.first() {
                assert_eq!(error.received, br#"{"id":"2","v":{"hex":"61ff62"}}"#);
            }
        }
    }
}
