//! The sink over the changes of a table: numbered by place, keyed by table and key, whole in their payload.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_schema::Schema;
use landfall_engine::contract::{
    CommitId, CopyMark, Covered, Guarantee, PipelineId, PlanCx, SealedBatch, ShardId, ShardWriter, Sink, TableId,
    TableNote, TableSpec, TokenScope, Written,
};
use landfall_types::{Durability, Epoch, Offset, PartitionId, Place, Timestamp};

use super::tests::World;
use super::{ChangesOf, ChannelSink, ChannelSinkOptions};
use crate::{Channel, ChannelOptions, Delivered};

/// Of table `orders`, by its place: what was done to which row.
#[derive(Clone, Copy)]
struct Change {
    place: (u64, u64),
    op: &'static str,
    id: Option<i64>,
    score: Option<f64>,
}

const fn change(at: u64, within: u64, op: &'static str, id: i64) -> Change {
    Change { place: (at, within), op, id: Some(id), score: None }
}

/// As the chain hands rows to a sink that plans with places.
fn rows(partition: u32, changes: &[Change]) -> RecordBatch {
    let longs = |number: fn(&Change) -> u64| Arc::new(changes.iter().map(number).collect::<UInt64Array>()) as ArrayRef;
    let ids: Int64Array = changes.iter().map(|change| change.id).collect();
    let scores: Float64Array = changes.iter().map(|change| change.score).collect();
    let ops: StringArray = changes.iter().map(|change| Some(change.op)).collect();
    let times = TimestampMicrosecondArray::from_value(1_000_000, changes.len()).with_timezone("UTC");
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(ids) as ArrayRef, true),
        ("score", Arc::new(scores) as ArrayRef, true),
        ("_op", Arc::new(ops) as ArrayRef, false),
        ("_commit_lsn", longs(|change| change.place.0), false),
        ("_seq", longs(|change| change.place.1), false),
        ("_commit_ts", Arc::new(times) as ArrayRef, false),
        ("_xid", Arc::new(UInt32Array::new_null(changes.len())) as ArrayRef, true),
        ("__partition", Arc::new(UInt32Array::from_value(partition, changes.len())) as ArrayRef, false),
        ("__at", longs(|change| change.place.0), false),
        ("__within", longs(|change| change.place.1), false),
    ])
    .unwrap()
}

fn sealed(parts: Vec<RecordBatch>) -> SealedBatch {
    let place = Place::START;
    let covers = vec![Covered { partition: PartitionId(7), epoch: Epoch(1), range: place..place, rows: 0 }];
    SealedBatch { id: CommitId(1), parts, covers, bytes: 0, oldest: Timestamp(0), note: None }
}

fn of_orders(name: &str, key: &[&str]) -> ChannelSinkOptions {
    let key = key.iter().map(|column| Arc::from(*column)).collect();
    let changes_of = Some(ChangesOf { table: "public.orders".into(), key });
    ChannelSinkOptions { name: name.to_owned(), changes_of, ..Default::default() }
}

fn cx() -> PlanCx {
    PlanCx { pipeline: PipelineId("shop".into()), source: "postgres/landfall_shop".into(), online: true }
}

async fn writer(channel: &Channel, options: ChannelSinkOptions) -> Arc<dyn ShardWriter> {
    let sink = ChannelSink::new(channel.clone(), options);
    let plan = sink.plan(&rows(7, &[]).schema(), &cx()).await.unwrap();
    let planned: Vec<&str> = plan.schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert!(
        planned.contains(&"__at") && planned.contains(&"__within") && !planned.contains(&"__offset"),
        "{planned:?}"
    );
    sink.open(&plan, &cx()).await.unwrap();
    sink.writer(ShardId(0))
}

async fn stored(channel: &Channel) -> Vec<(u32, Delivered)> {
    let mut all = Vec::new();
    for partition in 0..channel.partitions() {
        let read = channel.read(PartitionId(partition), Offset(0), 1_000, 1 << 20).await.unwrap();
        all.extend(read.into_iter().map(|one| (partition, one)));
    }
    all
}

fn field(one: &Delivered, name: &str) -> serde_json::Value {
    serde_json::from_slice::<serde_json::Value>(&one.record.payload).unwrap()[name].clone()
}

/// Catches a change that is stored twice or lost when it comes again in other cuts and with other offsets, after a restart
/// too, and a row whose changes are spread over partitions or change places (P98, E124, I9).
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_come_again_are_stored_once_and_in_the_order_of_their_row() {
    let world = World::new();
    let copied: Vec<Change> = (1..=20).map(|n| change(99, n, "s", n as i64)).collect();
    let streamed: Vec<Change> = (0..60).map(|n| change(200 + n / 7, n % 7 + 1, "u", (n % 20) as i64 + 1)).collect();
    for round in 0..2 {
        let (channels, channel) = world.open(ChannelOptions { partitions: 3, ..Default::default() });
        let writer = writer(&channel, of_orders("feed", &["id"])).await;
        let first = writer.write(&sealed(vec![rows(8, &copied[..15])])).await.unwrap();
        assert_eq!(first, if round == 0 { Written::Durable } else { Written::AlreadyThere });
        writer.write(&sealed(vec![rows(8, &copied[10..]), rows(7, &streamed[..5])])).await.unwrap();
        for cut in [0..30, 3..4, 20..60, 59..60] {
            writer.write(&sealed(vec![rows(7, &streamed[cut])])).await.unwrap();
        }
        assert_eq!(writer.write(&sealed(vec![rows(7, &streamed)])).await.unwrap(), Written::AlreadyThere);
        let mut of_row: BTreeMap<i64, Vec<(u32, u64, u64)>> = BTreeMap::new();
        for (partition, one) in stored(&channel).await {
            let id = field(&one, "id").as_i64().unwrap();
            assert_eq!(one.record.key.as_deref(), Some(format!(r#"["public.orders",{id}]"#).as_bytes()));
            let number = |name| field(&one, name).as_u64().unwrap();
            of_row.entry(id).or_default().push((partition, number("_commit_lsn"), number("_seq")));
        }
        assert_eq!(of_row.len(), 20);
        for (id, changes) in &of_row {
            assert_eq!(changes.len(), 4, "round {round}, row {id}: {changes:?}");
            assert!(changes.iter().all(|(partition, ..)| *partition == changes[0].0), "row {id}: {changes:?}");
            assert!(changes.windows(2).all(|pair| pair[0] < pair[1]), "row {id}: {changes:?}");
        }
        assert!(of_row.values().any(|changes| changes[0].0 != of_row[&1][0].0), "keys spread over partitions");
        channels.close();
    }
}

/// Catches a payload that leaves out what a change is or of which table, that turns a value into another or into null, and
/// a key that rows of two tables could share.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_says_what_changed_where_and_when() {
    let world = World::new();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let writer = writer(&channel, of_orders("feed", &["id", "score"])).await;
    let score = |score, number| Change { score: Some(score), ..change(300, number, "i", i64::MAX) };
    let empty = Change { id: None, ..change(301, 1, "t", 0) };
    let all = [score(0.5, 1), score(f64::NAN, 2), score(f64::NEG_INFINITY, 3), change(300, 4, "d", 1), empty];
    writer.write(&sealed(vec![rows(7, &all)])).await.unwrap();
    let read = stored(&channel).await;
    let text = |at: usize| String::from_utf8(read[at].1.record.payload.to_vec()).unwrap();
    let key = |at: usize| String::from_utf8(read[at].1.record.key.clone().unwrap().to_vec()).unwrap();
    assert_eq!(
        text(0),
        r#"{"id":9223372036854775807,"score":0.5,"_op":"i","_commit_lsn":300,"_seq":1,"_commit_ts":"1970-01-01T00:00:01Z","_xid":null,"_table":"public.orders"}"#
    );
    assert!(text(1).contains(r#""score":"NaN""#) && text(2).contains(r#""score":"-Infinity""#), "{}", text(1));
    assert!(text(3).contains(r#""id":1,"score":null,"_op":"d""#), "{}", text(3));
    assert!(text(4).contains(r#""id":null,"score":null,"_op":"t""#), "{}", text(4));
    assert_eq!(key(0), r#"["public.orders",9223372036854775807,0.5]"#);
    assert_eq!(key(1), r#"["public.orders",9223372036854775807,"NaN"]"#);
    assert_eq!(key(3), r#"["public.orders",1,null]"#);
    assert_eq!(key(4), r#"["public.orders"]"#, "a truncate is of no row");
}

/// Catches a sink whose rows are dropped as repeats of its twin's, and rows that are dropped as repeats in a partition that
/// they go to only since another column is the key.
#[tokio::test(flavor = "multi_thread")]
async fn who_numbers_is_one_sink_in_one_way_to_route() {
    let world = World::new();
    let (_channels, channel) = world.open(ChannelOptions { partitions: 3, ..Default::default() });
    let by_id = ChannelSinkOptions { key_column: Some("id".into()), ..of_orders("feed", &["id"]) };
    let changes: Vec<Change> = (1..=9).map(|n| change(400, n, "i", n as i64)).collect();
    for (count, options) in [(9, of_orders("feed", &["id"])), (18, of_orders("other", &["id"])), (27, by_id)] {
        let writer = writer(&channel, options).await;
        assert_eq!(writer.write(&sealed(vec![rows(7, &changes)])).await.unwrap(), Written::Durable);
        assert_eq!(stored(&channel).await.len(), count);
    }
    let plain: Vec<_> = stored(&channel).await.into_iter().filter_map(|(_, one)| one.record.key).collect();
    assert!(plain.iter().any(|key| key.as_ref() == b"7"), "a named column is the key as it is");
}

/// Catches rows of one shape that are keyed by the key of another, so that they go elsewhere when they come again; and a key
/// that a plan for a shape lets through although its query leaves it out (P84, P85).
#[tokio::test(flavor = "multi_thread")]
async fn each_shape_is_keyed_by_its_own_key() {
    let world = World::new();
    let (_channels, channel) = world.open(ChannelOptions { partitions: 3, ..Default::default() });
    let sink = ChannelSink::new(channel.clone(), of_orders("feed", &["id"]));
    let schema = rows(7, &[]).schema();
    let plan = sink.plan(&schema, &cx()).await.unwrap();
    sink.open(&plan, &cx()).await.unwrap();
    let writer = sink.writer(ShardId(0));
    let spec = |shape, key: &[&str]| TableSpec {
        id: TableId(5),
        name: "public.orders".into(),
        schema: schema.clone(),
        shape,
        key: key.iter().map(|name| Arc::from(*name)).collect(),
    };
    for (shape, key) in [(2, &["id", "score"][..]), (3, &[])] {
        let plan = sink.plan_shape(&spec(shape, key), &schema, &cx()).await.unwrap();
        sink.reshape(shape, &plan, &cx()).await.unwrap();
    }
    let bare = Arc::new(Schema::new(schema.fields().iter().skip(1).cloned().collect::<Vec<_>>()));
    let refused = sink.plan_shape(&spec(4, &["id"]), &bare, &cx()).await.unwrap_err();
    assert!(refused.text.contains("leaves out `id`"), "{}", refused.text);
    sink.plan_shape(&spec(4, &["score"]), &bare, &cx()).await.unwrap();

    let written = |shape, at| {
        let changes: Vec<Change> = (1..=9).map(|n| change(at, n, "i", n as i64)).collect();
        let note = Some(TableNote { shape, copy: CopyMark::None });
        SealedBatch { note, ..sealed(vec![rows(7, &changes)]) }
    };
    // Up and down the shapes, as a replay over two changes brings them.
    for (shape, at) in [(1, 100), (2, 200), (3, 300), (1, 100), (2, 200), (3, 300), (1, 400)] {
        writer.write(&written(shape, at)).await.unwrap();
    }
    let mut keys: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (_, one) in stored(&channel).await {
        let key = String::from_utf8(one.record.key.clone().unwrap().to_vec()).unwrap();
        keys.entry(field(&one, "_commit_lsn").as_u64().unwrap()).or_default().push(key);
    }
    let all = |spell: fn(u64) -> String| (1..=9).map(spell).collect::<Vec<_>>();
    let by_id = all(|n| format!(r#"["public.orders",{n}]"#));
    let by_both = all(|n| format!(r#"["public.orders",{n},null]"#));
    let by_table = all(|_| r#"["public.orders"]"#.to_owned());
    for (at, mut expected) in [(100, by_id.clone()), (200, by_both), (300, by_table), (400, by_id)] {
        let mut found = keys.remove(&at).unwrap_or_default();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "at {at}");
    }
}

/// Catches a plan that lets through what no replay could tell apart or no reader could understand, and a promise that the
/// channel's class does not hold (what `check` prints).
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_cannot_be_told_apart_are_refused_in_the_plan() {
    let world = World::new();
    let (channels, channel) = world.open(ChannelOptions::default());
    let whole = rows(7, &[]).schema();
    let with = |name: &str, column: ArrayRef| {
        let extra = RecordBatch::try_from_iter([(name, column)]).unwrap().schema();
        Arc::new(Schema::new(whole.fields().iter().chain(extra.fields()).cloned().collect::<Vec<_>>()))
    };
    let table = with("_table", Arc::new(StringArray::new_null(0)));
    let unnested = with("__unnest", Arc::new(UInt32Array::new_null(0)));
    let keyless = Arc::new(Schema::new(whole.fields().iter().skip(1).cloned().collect::<Vec<_>>()));
    let named = |key: &str| ChannelSinkOptions { key_column: Some(key.into()), ..of_orders("feed", &["id"]) };
    let payload = ChannelSinkOptions { payload_column: Some("_op".into()), ..of_orders("feed", &["id"]) };
    let plain = || of_orders("feed", &["id"]);
    for (schema, options, word) in [
        (&whole, plain(), None),
        (&whole, of_orders("feed", &[]), None),
        (&whole, named("id"), None),
        (&keyless, named("_op"), None),
        (&table, plain(), Some("_table")),
        (&unnested, plain(), Some("unnest")),
        (&keyless, plain(), Some("leaves out `id`")),
        (&whole, named("score"), Some("whole number")),
        (&whole, payload, Some("payload")),
    ] {
        let planned = ChannelSink::new(channel.clone(), options).plan(schema, &cx()).await;
        match (planned, word) {
            (Ok(plan), None) => assert!(plan.notes.iter().any(|note| note.contains("interrupted")), "{:?}", plan.notes),
            (Err(error), Some(word)) => assert!(error.text.contains(word), "{}", error.text),
            (planned, word) => panic!("{word:?}: {planned:?}"),
        }
    }
    let guarantee = ChannelSink::new(channel, plain()).guarantee();
    assert!(matches!(&guarantee, Guarantee::Token { per: TokenScope::Row, window: Some(_) }), "{guarantee:?}");
    assert!(guarantee.why().contains("1h"), "{}", guarantee.why());
    channels.close();
    let retention = crate::Retention { max_bytes: Some(landfall_types::ByteSize::mib(64)), ..Default::default() };
    let memory = ChannelOptions { durability: Durability::Memory, retention, ..Default::default() };
    let other = World::new();
    let (_channels, channel) = other.open(memory);
    assert_eq!(ChannelSink::new(channel, plain()).guarantee().as_str(), "at least once");
}
