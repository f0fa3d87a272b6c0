use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use landfall_engine::OnTrimmed;
use landfall_engine::contract::{
    CommitId, Covered, DeadLetter, GapReason, LaneId, LaneWaker, Letter, OwnedRecord, PipelineId, PlanCx, PollLimit,
    SealedBatch, ShardId, Sink, Source, SourceCx, SourceEvent, Stage, Written, payload_schema,
};
use landfall_engine::testing::LaneBench;
use landfall_state::StateStore;
use landfall_types::{Code, Epoch, Offset, PartitionId, Place, SystemClock, Timestamp};

use super::{ChannelDeadLetters, ChannelSink, ChannelSinkOptions, ChannelSource};
use crate::{Channel, ChannelOptions, Channels, Header, ProcessOptions, PublishOptions, Record, RingLimits, Start};

const P0: PartitionId = PartitionId(0);
const LIMIT: PollLimit = PollLimit { rows: 100, bytes: 1 << 20 };
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct World {
    dir: tempfile::TempDir,
    state: StateStore,
}

impl World {
    pub(super) fn new() -> World {
        World { dir: tempfile::tempdir().unwrap(), state: StateStore::in_memory().unwrap() }
    }

    pub(super) fn open(&self, options: ChannelOptions) -> (Channels, Channel) {
        let process = ProcessOptions { disk_reserve: Some(landfall_types::ByteSize::mib(64)), ..Default::default() };
        let configs = vec![("orders".to_owned(), options)];
        let clock = Arc::new(SystemClock);
        let channels = Channels::open(self.dir.path(), configs, process, self.state.handle(), clock).unwrap();
        let channel = channels.get("orders").unwrap();
        (channels, channel)
    }
}

async fn publish(channel: &Channel, records: impl IntoIterator<Item = Record>) {
    for outcome in channel.publish_group(records.into_iter().collect(), PublishOptions::default()).await {
        outcome.committed().expect("committed");
    }
}

fn source(channel: &Channel) -> ChannelSource {
    ChannelSource::new(channel.clone(), Start::Earliest, PipelineId("orders".into()))
}

fn cx(record: Option<bytes::Bytes>) -> SourceCx {
    SourceCx { record, waker: LaneWaker::new(|| {}), on_trimmed: OnTrimmed::Stop }
}

fn full(n: u64) -> Record {
    Record {
        key: n.is_multiple_of(2).then(|| format!("key {n}").into()),
        headers: (0..n % 3).map(|h| Header { name: format!("h{h}"), value: n.to_string().into() }).collect(),
        event_time: n.is_multiple_of(5).then_some(Timestamp(n as i64)),
        ..Record::new(format!("payload of record {n}, longer than a view can inline").into_bytes())
    }
}

/// Every cell of the payload schema against the record it came from.
fn assert_rows(rows: &RecordBatch, first: u64) {
    assert_eq!(rows.schema(), payload_schema());
    let (payload, key) = (rows.column(0).as_binary_view(), rows.column(1).as_binary_view());
    let time = rows.column(2).as_primitive::<TimestampMicrosecondType>();
    let headers = rows.column(3).as_list::<i32>();
    let (partition, offset) =
        (rows.column(4).as_primitive::<UInt32Type>(), rows.column(5).as_primitive::<UInt64Type>());
    for at in 0..rows.num_rows() {
        let n = first + at as u64;
        let record = full(n);
        assert_eq!(payload.value(at), record.payload.as_ref());
        assert_eq!((!key.is_null(at)).then(|| key.value(at)), record.key.as_deref());
        assert_eq!((partition.value(at), offset.value(at)), (0, n));
        assert!(record.event_time.is_none_or(|own| own.0 == time.value(at)) && time.value(at) >= 0);
        let entries = headers.value(at);
        let entries = entries.as_struct();
        let (names, values) = (entries.column(0).as_string::<i32>(), entries.column(1).as_binary::<i32>());
        let read: Vec<_> = (0..entries.len()).map(|h| (names.value(h), values.value(h))).collect();
        let own: Vec<_> = record.headers.iter().map(|header| (header.name.as_str(), header.value.as_ref())).collect();
        assert_eq!(read, own);
        assert!(rows.column(6).is_null(at));
    }
}

/// Catches a lane that loses, repeats or changes rows where ring, pages and waiting meet, that promises a wake and gives
/// none, or that keeps what it read pages into once it follows the ring (C57, C69, I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_yields_every_record_once_from_pages_ring_and_wakes() {
    let world = World::new();
    let options = ChannelOptions { ring: RingLimits { records: 50, ..Default::default() }, ..Default::default() };
    let (_channels, channel) = world.open(options);
    publish(&channel, (0..1_000).map(full)).await;
    for n in 1_000..1_100 {
        publish(&channel, [full(n)]).await;
    }
    let mut source = source(&channel);
    source.open(cx(None)).unwrap();
    assert!(matches!(source.poll_event().unwrap(), Some(SourceEvent::Assigned(all)) if all == [P0]));
    let start = source.start_of(P0).unwrap();
    let mut lane = source.open_lane(LaneId(1), &[(P0, start, Epoch(1))]).unwrap();
    let mut bench = LaneBench::new(&[(P0, start)]);
    let publisher = {
        let channel = channel.clone();
        tokio::spawn(async move {
            for n in 1_100..1_200 {
                publish(&channel, [full(n)]).await;
            }
        })
    };
    let bench = tokio::task::spawn_blocking(move || {
        let (mut seen, mut has_kept) = (0u64, false);
        while seen < 1_200 {
            let batch = bench.next(&mut lane, LIMIT, PATIENCE).unwrap().unwrap();
            has_kept |= lane.keeps_buffers();
            assert!(batch.rows.num_rows() <= LIMIT.rows);
            assert_eq!(batch.covered().range.start, Place::of(Offset(seen)));
            assert_rows(&batch.rows, seen);
            seen += batch.rows.num_rows() as u64;
            LaneBench::deliver(batch);
        }
        assert_eq!(bench.watermark(P0), Some(Place::of(Offset(1_200))));
        bench.next(&mut lane, LIMIT, Duration::ZERO).unwrap_err();
        assert!(has_kept && !lane.keeps_buffers());
        bench
    });
    publisher.await.unwrap();
    bench.await.unwrap();
}

/// Catches a floor that runs ahead of the watermark, one that is lost by a restart, and a position past the tail that
/// waits silently (C69, F-L14).
#[tokio::test(flavor = "multi_thread")]
async fn commits_raise_the_floor_and_survive_and_a_position_past_the_tail_is_an_error() {
    let world = World::new();
    let (channels, channel) = world.open(ChannelOptions::default());
    publish(&channel, (0..1_500).map(full)).await;
    let mut first = source(&channel);
    first.open(cx(None)).unwrap();
    first.commit(&[(P0, Place::of(Offset(1_000)))]);
    first.flush_commits(Instant::now() + PATIENCE).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| first.poll_event().unwrap()).collect();
    assert!(
        events.iter().any(|event| matches!(event, SourceEvent::Committed(at) if at[0].1 == Place::of(Offset(1_000))))
    );
    let lag = |channel: &Channel| channel.status().consumers.first().map(|own| (own.name.clone(), own.lag_records));
    assert_eq!(lag(&channel), Some(("pipeline:orders".into(), 500)));
    drop(first);
    channels.close();
    let (_channels, channel) = world.open(ChannelOptions::default());
    assert_eq!(lag(&channel), Some(("pipeline:orders".into(), 500)));
    let mut again = source(&channel);
    again.open(cx(None)).unwrap();
    let error = again.open_lane(LaneId(1), &[(P0, Place::of(Offset(2_000)), Epoch(1))]).unwrap_err().to_string();
    assert!(error.contains("2000") && error.contains("1500"), "{error}");
}

/// Catches a pipeline that goes on under old numbers in another history (C63).
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_history_is_told_and_not_read() {
    let world = World::new();
    let (channels, channel) = world.open(ChannelOptions::default());
    publish(&channel, (0..10).map(full)).await;
    let mut first = source(&channel);
    first.open(cx(None)).unwrap();
    let mut lane = first.open_lane(LaneId(1), &[(P0, Place::START, Epoch(1))]).unwrap();
    let mut bench = LaneBench::new(&[(P0, Place::START)]);
    let batch = bench.next(&mut lane, LIMIT, PATIENCE).unwrap().unwrap();
    assert_eq!(batch.rows.num_rows(), 10);
    LaneBench::deliver(batch);
    let at = Place::of(Offset(10));
    let record = first.record(&[(P0, at)]).expect("news");
    assert!(first.record(&[(P0, at)]).is_none(), "unchanged");
    drop((lane, first));
    channels.close();
    let (_channels, channel) = world.open(ChannelOptions::default());
    publish(&channel, [full(10)]).await;
    let mut same = source(&channel);
    same.open(cx(Some(record.clone()))).unwrap();
    let mut lane = same.open_lane(LaneId(1), &[(P0, at, Epoch(1))]).unwrap();
    let mut bench = LaneBench::new(&[(P0, at)]);
    assert_rows(&bench.next(&mut lane, LIMIT, PATIENCE).unwrap().unwrap().rows, 10);
    let mut other = record.to_vec();
    let last = other.len() - 1;
    other[last] ^= 0x40;
    let mut source = source(&channel);
    source.open(cx(Some(other.into()))).unwrap();
    let mut lane = source.open_lane(LaneId(1), &[(P0, at, Epoch(1))]).unwrap();
    let error = LaneBench::new(&[(P0, at)]).next(&mut lane, LIMIT, PATIENCE).unwrap_err();
    assert!(error.contains("LF-CH0052"), "{error}");
}

/// Catches a lane that gives rows behind a gap before anybody has decided about it: once they are settled, the watermark
/// has passed it (E67, I7). And one that never goes on although it may.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_stops_at_what_was_trimmed_unless_it_may_go_on() {
    let world = World::new();
    let mut options = ChannelOptions { segment_bytes: landfall_types::ByteSize::mib(1), ..Default::default() };
    options.limits.record_bytes = landfall_types::ByteSize::kib(256);
    options.limits.batch_bytes = landfall_types::ByteSize::kib(512);
    options.turn.bytes = landfall_types::ByteSize::kib(512);
    options.retention.max_bytes = Some(landfall_types::ByteSize::mib(2));
    let (_channels, channel) = world.open(options);
    for _ in 0..30 {
        publish(&channel, [Record::new(vec![7u8; 200 << 10])]).await;
    }
    let deadline = Instant::now() + PATIENCE;
    while channel.log_start(P0) == Some(Offset(0)) {
        assert!(Instant::now() < deadline, "retention frees what is over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for on_trimmed in [OnTrimmed::Stop, OnTrimmed::Continue] {
        let mut source = source(&channel);
        source.open(SourceCx { on_trimmed, ..cx(None) }).unwrap();
        let mut lane = source.open_lane(LaneId(1), &[(P0, Place::START, Epoch(1))]).unwrap();
        let mut bench = LaneBench::new(&[(P0, Place::START)]);
        let (seen, gaps) = tokio::task::spawn_blocking(move || {
            let (mut seen, mut gaps) = (Vec::new(), Vec::new());
            let deadline = Instant::now() + PATIENCE;
            // Some more looks after the gap was told: nothing may follow.
            let mut looks = 0;
            while looks < 50 && seen.is_empty() {
                assert!(Instant::now() < deadline, "the gap is not told");
                match bench.next(&mut lane, LIMIT, Duration::from_millis(2)) {
                    Ok(Some(batch)) => {
                        // Its cover takes the gap in: settled, it moves the watermark over it.
                        assert_eq!(batch.covered().range.start, Place::START);
                        let offsets = batch.rows.column(5).as_primitive::<UInt64Type>();
                        seen.push(Place::of(Offset(offsets.value(0))));
                        LaneBench::deliver(batch);
                    }
                    Ok(None) => panic!("a channel has no end"),
                    // No wake in that time, which is what a lane that stops is to do.
                    Err(error) => assert!(error.contains("in time"), "{error}"),
                }
                while let Some(event) = source.poll_event().unwrap() {
                    if let SourceEvent::Gap(P0, range, GapReason::Trimmed) = event {
                        gaps.push(range);
                    }
                }
                looks += usize::from(!gaps.is_empty());
            }
            (seen, gaps)
        })
        .await
        .unwrap();
        assert_eq!(gaps.len(), 1, "{on_trimmed:?}: told once");
        assert_eq!(gaps[0].start, Place::START);
        let behind = gaps[0].end;
        match on_trimmed {
            OnTrimmed::Stop => assert_eq!(seen, []),
            OnTrimmed::Continue => assert_eq!(seen, [behind]),
        }
    }
}

fn plan_cx() -> PlanCx {
    PlanCx { pipeline: PipelineId("copy".into()), source: "channel:x".into(), online: true }
}

fn rows(offsets: std::ops::Range<u64>, partition: u32) -> RecordBatch {
    let count = (offsets.end - offsets.start) as usize;
    let schema = Schema::new(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("__partition", DataType::UInt32, false),
        Field::new("__offset", DataType::UInt64, false),
    ]);
    let names: StringArray = offsets.clone().map(|n| Some(format!("line\n{partition}/{n}"))).collect();
    let columns: Vec<Arc<dyn Array>> = vec![
        Arc::new(names),
        Arc::new(UInt32Array::from_value(partition, count)),
        Arc::new(UInt64Array::from_iter_values(offsets)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn sealed(parts: Vec<RecordBatch>) -> SealedBatch {
    let covers = vec![Covered { partition: P0, epoch: Epoch(1), range: Place::START..Place::START, rows: 0 }];
    SealedBatch { id: CommitId(1), parts, covers, bytes: 0, oldest: Timestamp(0), note: None }
}

/// Catches a row that a repeated, differently cut or overlapping batch stores twice, now or after a restart (I9, E124).
#[tokio::test(flavor = "multi_thread")]
async fn rows_written_again_are_stored_once() {
    let world = World::new();
    for round in 0..2 {
        let (channels, channel) = world.open(ChannelOptions { partitions: 2, ..Default::default() });
        let sink = ChannelSink::new(channel.clone(), ChannelSinkOptions::default());
        let plan = sink.plan(&rows(0..1, 0).schema(), &plan_cx()).await.unwrap();
        sink.open(&plan, &plan_cx()).await.unwrap();
        let writer = sink.writer(ShardId(0));
        let first = writer.write(&sealed(vec![rows(0..10, 0), rows(0..5, 1)])).await.unwrap();
        assert_eq!(first, if round == 0 { Written::Durable } else { Written::AlreadyThere });
        assert_eq!(writer.write(&sealed(vec![rows(0..10, 0)])).await.unwrap(), Written::AlreadyThere);
        writer.write(&sealed(vec![rows(5..15, 0), rows(3..8, 1)])).await.unwrap();
        for (partition, count) in [(0u32, 15u64), (1, 8)] {
            let read = channel.read(PartitionId(partition), Offset(0), 100, 1 << 20).await.unwrap();
            let expected = (0..count).map(|n| format!("{{\"name\":\"line\\n{partition}/{n}\"}}"));
            let texts = read.iter().map(|one| String::from_utf8(one.record.payload.to_vec()).unwrap());
            assert!(texts.eq(expected), "round {round}, partition {partition}: {read:?}");
        }
        channels.close();
    }
}

/// `rows` with a key in every other row.
fn half_keyed(offsets: std::ops::Range<u64>, partition: u32) -> RecordBatch {
    let plain = rows(offsets.clone(), partition);
    let mut fields = plain.schema().fields().to_vec();
    fields.push(Arc::new(Field::new("k", DataType::Utf8, true)));
    let keys: StringArray = offsets.map(|n| n.is_multiple_of(2).then(|| format!("key {n}"))).collect();
    let mut columns = plain.columns().to_vec();
    columns.push(Arc::new(keys));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Catches a row without a key that goes to another partition when it is written again, where its number is not known
/// (stored twice) or is below one that is (lost) (I9, C12, E124).
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_key_is_null_are_stored_once_however_often_they_come() {
    let world = World::new();
    let (_channels, channel) = world.open(ChannelOptions { partitions: 3, ..Default::default() });
    let options =
        ChannelSinkOptions { payload_column: Some("name".into()), key_column: Some("k".into()), ..Default::default() };
    let sink = ChannelSink::new(channel.clone(), options);
    let plan = sink.plan(&half_keyed(0..1, 0).schema(), &plan_cx()).await.unwrap();
    sink.open(&plan, &plan_cx()).await.unwrap();
    let writer = sink.writer(ShardId(0));
    let batch = || sealed(vec![half_keyed(0..30, 0), half_keyed(0..20, 1)]);
    assert_eq!(writer.write(&batch()).await.unwrap(), Written::Durable);
    for _ in 0..3 {
        // Others publish without keys meanwhile, so it is another partition's turn.
        let before = channel.partition_for(None);
        while channel.partition_for(None) == before {}
        assert_eq!(writer.write(&batch()).await.unwrap(), Written::AlreadyThere);
    }
    writer.write(&sealed(vec![half_keyed(20..40, 0)])).await.unwrap();
    let mut stored = Vec::new();
    for partition in 0..3 {
        let read = channel.read(PartitionId(partition), Offset(0), 1_000, 1 << 20).await.unwrap();
        stored.extend(read.iter().map(|one| String::from_utf8(one.record.payload.to_vec()).unwrap()));
    }
    let mut expected: Vec<String> =
        [(0, 40), (1, 20)].iter().flat_map(|(at, count)| (0..*count).map(move |n| format!("line\n{at}/{n}"))).collect();
    stored.sort();
    expected.sort();
    assert_eq!(stored, expected);
}

/// Catches a plan that lets a missing or unfit column through (what `check` relies on).
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_cannot_be_a_payload_is_refused_in_the_plan() {
    let world = World::new();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let schema = rows(0..1, 0).schema();
    for (payload, key, fits) in
        [("name", None, true), ("nam", None, false), ("__offset", None, false), ("name", Some("x"), false)]
    {
        let (payload_column, key_column) = (Some(payload.into()), key.map(str::to_owned));
        let options = ChannelSinkOptions { payload_column, key_column, ..Default::default() };
        let planned = ChannelSink::new(channel.clone(), options).plan(&schema, &plan_cx()).await;
        assert_eq!(planned.is_ok(), fits, "{payload}");
    }
}

fn letter(offset: u64, text: &str) -> Letter {
    Letter {
        record: OwnedRecord {
            partition: P0,
            offset: Offset(offset),
            within: 0,
            payload: "{broken".into(),
            key: Some("k".into()),
            headers: vec![Header { name: "own".into(), value: "1".into() }],
            timestamp: Timestamp(7),
            schema: None,
        },
        pipeline: PipelineId("orders".into()),
        sink: None,
        stage: Stage::Decode,
        code: Code::new("DC", 1),
        text: text.to_owned(),
        source: "channel:x".into(),
    }
}

/// Catches a second letter for one row and stage, a letter without its origin, and one that does not fit (E111).
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_is_stored_once_as_it_was_with_its_origin() {
    let world = World::new();
    let options = ChannelOptions { limits: crate::Limits::default().for_dead_letters(), ..Default::default() };
    for round in 0..2 {
        let (channels, channel) = world.open(options.clone());
        let letters = ChannelDeadLetters::new(channel.clone());
        letters.store(&[letter(1, "bad"), letter(2, "bad")]).await.unwrap();
        letters.store(&[letter(2, "bad, in other words"), letter(1, "bad")]).await.unwrap();
        let mut foreign = letter(3, "x");
        foreign.record.headers = (0..500).map(|n| Header { name: format!("{n:0200}"), value: "v".into() }).collect();
        letters.store(&[foreign]).await.unwrap();
        assert_eq!(channel.tail(P0), Some(Offset(3)), "round {round}");
        let read = channel.read(P0, Offset(0), 10, 1 << 20).await.unwrap();
        let first = &read[0].record;
        assert_eq!((first.payload.as_ref(), first.key.as_deref()), (&b"{broken"[..], Some(&b"k"[..])));
        assert_eq!(first.event_time, Some(Timestamp(7)));
        let value = |name: &str| first.headers.iter().find(|own| own.name == name).map(|own| own.value.as_ref());
        for (name, expected) in [
            ("own", "1"),
            ("landfall-pipeline", "orders"),
            ("landfall-stage", "decode"),
            ("landfall-code", "LF-DC0001"),
            ("landfall-text", "bad"),
            ("landfall-source", "channel:x"),
            ("landfall-partition", "0"),
            ("landfall-offset", "1"),
        ] {
            assert_eq!(value(name), Some(expected.as_bytes()), "{name}");
        }
        assert!(read[2].record.headers.iter().any(|own| own.name == "landfall-cut" && own.value == "headers"));
        channels.close();
    }
}
