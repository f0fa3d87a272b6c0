//! Pushes against a queue that refuses at random: no source row twice or lost, order kept, resume points rise, and the
//! books of each batch agree.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use landfall_types::{Epoch, Offset, PartitionId, Place};
use proptest::prelude::*;

use super::rows::Refusals;
use super::{Chain, ChainCx, ChainFactory, Conform, PushOutcome, ResumePoint, SinkPath};
use crate::codes;
use crate::contract::{PipelineId, SinkId, columns};
use crate::core::{Books, FailCause, Harvester, Issuer, Waker, ring};
use crate::dead_letter::{LetterQueue, Sender};
use crate::meters::DriverMeters;
use crate::options::{OnErrors, Route};
use crate::poll::{PollCx, PollSlot, SourceBatch};
use crate::shard::{ShardQueue, ShareLimits};
use crate::source_rows::SourceRows;
use crate::testing::{numbers, payloads};

fn sink_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("value", DataType::Int64, false),
        Field::new(columns::OFFSET, DataType::UInt64, false),
    ]))
}

struct Rig {
    chain: Chain,
    queues: Vec<Arc<ShardQueue>>,
    letters: Arc<LetterQueue>,
}

fn rig(factory: ChainFactory, sinks: usize, limits: ShareLimits) -> Rig {
    let queues: Vec<_> = (0..sinks).map(|_| ShardQueue::new(limits, metrics::Counter::noop())).collect();
    let letters = LetterQueue::new();
    let paths = queues
        .iter()
        .enumerate()
        .map(|(at, queue)| SinkPath {
            sink: SinkId(u8::try_from(at + 1).expect("few sinks")),
            name: Arc::from(format!("s{at}")),
            schema: sink_schema(),
            filter: None,
            route: Route::Partition,
            queues: vec![queue.clone()],
            chunk_target: 2_000,
            keeps_origin: true,
        })
        .collect();
    let cx = ChainCx {
        factory,
        sinks: paths,
        on_error: OnErrors::default(),
        sender: Sender { pipeline: PipelineId("p".to_owned()), source: "memory".to_owned() },
        letters: Some(letters.clone()),
        meters: DriverMeters::new("p"),
        dead_decode: metrics::Counter::noop(),
        dead_sql: metrics::Counter::noop(),
    };
    Rig { chain: Chain::new(cx).expect("a good plan"), queues, letters }
}

/// One partition's slot, polled by hand.
struct Lane {
    slots: Vec<PollSlot>,
    harvester: Harvester,
}

impl Lane {
    fn new(partition: u32, sinks: usize) -> Self {
        let (issuer, harvester): (Issuer, Harvester) =
            ring(PartitionId(partition), Epoch(1), Place::START, 64, sinks, Arc::new(Waker::new()), Instant::now());
        Lane { slots: vec![PollSlot { issuer, is_open: true }], harvester }
    }

    fn batch(&mut self, texts: &[String]) -> SourceBatch {
        self.slots[0].is_open = true;
        let (partition, start) = (self.slots[0].issuer.partition(), self.slots[0].issuer.end().at);
        let end = start + texts.len() as u64;
        let rows = payloads(partition, start..end, texts);
        let waker = crate::contract::LaneWaker::new(|| {});
        let mut cx = PollCx::new(&mut self.slots, &waker, Instant::now());
        let batch = cx.batch(partition, rows, Place::of(Offset(start))..Place::of(Offset(end)), 10_000);
        assert!(cx.broken().is_none());
        batch
    }
}

fn values(rows: &RecordBatch) -> Vec<i64> {
    rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// Takes everything out of a queue: (partition, value) in order. Every hold is delivered.
fn drain(queue: &ShardQueue, chunks: usize) -> Vec<(u32, i64)> {
    let mut rows = Vec::new();
    for _ in 0..chunks {
        let Some(chunk) = queue.pop() else { break };
        for segment in chunk.segments {
            rows.extend(values(&segment.rows).into_iter().map(|value| (segment.cover.partition.0, value)));
            let settled = u32::try_from(segment.len()).expect("small");
            segment.hold.book(Books { settled, ..Books::default() });
            segment.hold.deliver();
        }
    }
    rows
}

const TINY: ShareLimits = ShareLimits { high: 4_000, low: 2_000, chunks: 3 };
const WIDE: ShareLimits = ShareLimits { high: usize::MAX, low: usize::MAX, chunks: usize::MAX };

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Would catch any pattern of refusals that loses a row, hands it over twice, reorders a partition or lets a
    /// resume point go back; and books that do not agree with what was handed over.
    #[test]
    fn random_refusals_lose_nothing_and_repeat_nothing(
        batches in prop::collection::vec((0u32..3, 0usize..300, 0usize..4), 1..25),
    ) {
        let mut rig = rig(numbers(Some(|value| value % 3 != 0)), 1, TINY);
        let mut lanes: Vec<Lane> = (0..3).map(|partition| Lane::new(partition, 1)).collect();
        let mut expected: Vec<Vec<i64>> = vec![Vec::new(); 3];
        let mut seen: Vec<Vec<i64>> = vec![Vec::new(); 3];
        let mut next = 0i64;
        let take = |rig: &Rig, seen: &mut Vec<Vec<i64>>, chunks: usize| {
            for (partition, value) in drain(&rig.queues[0], chunks) {
                seen[partition as usize].push(value);
            }
        };
        for (partition, rows, popped) in batches {
            let texts: Vec<String> = (next..next + rows as i64).map(|value| value.to_string()).collect();
            expected[partition as usize].extend((next..next + rows as i64).filter(|value| value % 3 != 0));
            next += rows as i64;
            let batch = lanes[partition as usize].batch(&texts);
            let mut from = ResumePoint::default();
            let mut turns = 0;
            loop {
                match rig.chain.push(partition as usize, &batch, from, &[Place::START; 2]) {
                    PushOutcome::Done => break,
                    PushOutcome::Blocked { resume_at, .. } => {
                        prop_assert!(resume_at >= from, "a resume point went back");
                        from = resume_at;
                        take(&rig, &mut seen, popped);
                        turns += 1;
                        // Where nothing is popped the batch stays parked; a worker always pops in the end.
                        if popped == 0 || turns > 50 {
                            take(&rig, &mut seen, usize::MAX);
                        }
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            batch.ack.expect("it has a hold").deliver();
        }
        while rig.chain.flush() != super::Flushed::Done {
            take(&rig, &mut seen, usize::MAX);
        }
        take(&rig, &mut seen, usize::MAX);
        prop_assert_eq!(&seen, &expected);
        for lane in &mut lanes {
            let mut filtered = 0u64;
            let mut is_balanced = true;
            lane.harvester.harvest(|slot| {
                is_balanced &= slot.balances();
                filtered += u64::from(slot.books.filtered) * u64::from(slot.sink == 1);
            });
            prop_assert!(is_balanced && lane.harvester.is_settled());
            let partition = lane.harvester.partition().0 as usize;
            prop_assert_eq!(filtered + expected[partition].len() as u64, lane.harvester.rows_issued());
        }
    }
}

/// Would catch a chunk that overtakes the one that was refused before it.
#[test]
fn no_chunk_overtakes_a_parked_one() {
    let mut rig = rig(numbers(None), 1, ShareLimits { high: 3_000, low: 1_000, chunks: 64 });
    let mut lane = Lane::new(0, 1);
    let texts: Vec<String> = (0..100).map(|value| value.to_string()).collect();
    let mut parked = Vec::new();
    // Batches of 100 rows until one is refused; the one behind it must wait for it.
    while parked.len() < 2 {
        let batch = lane.batch(&texts);
        match rig.chain.push(parked.len(), &batch, ResumePoint::default(), &[Place::START; 2]) {
            PushOutcome::Done => batch.ack.expect("a hold").deliver(),
            PushOutcome::Blocked { resume_at, .. } => parked.push((batch, resume_at)),
            other => panic!("{other:?}"),
        }
    }
    let mut offsets = Vec::new();
    let mut take = |rig: &Rig| {
        while let Some(chunk) = rig.queues[0].pop() {
            for segment in chunk.segments {
                offsets.extend(segment.offsets.values().to_vec());
                segment.hold.deliver();
            }
        }
    };
    take(&rig);
    for (slot, (batch, from)) in parked.into_iter().enumerate() {
        let done = rig.chain.push(slot, &batch, from, &[Place::START; 2]);
        assert!(matches!(done, PushOutcome::Done), "{done:?}");
        take(&rig);
    }
    rig.chain.flush();
    take(&rig);
    assert!(offsets.is_sorted_by(|one, other| one < other), "{offsets:?}");
}

/// Would catch rows that a sink has already and gets again, or a batch that is decoded although all sinks have it.
#[test]
fn rows_below_a_sinks_position_are_skipped_for_it_alone() {
    let mut rig = rig(numbers(None), 2, WIDE);
    let mut lane = Lane::new(0, 2);
    let texts: Vec<String> = (0..10).map(|value| value.to_string()).collect();
    let at = |offset| Place::of(Offset(offset));
    let batch = lane.batch(&texts);
    let done = rig.chain.push(0, &batch, ResumePoint::default(), &[at(0), at(4), at(10)]);
    assert!(matches!(done, PushOutcome::Done));
    batch.ack.expect("a hold").deliver();
    // A batch that would panic the decoder, below every position.
    let batch = lane.batch(&["panic".to_owned()]);
    let done = rig.chain.push(0, &batch, ResumePoint::default(), &[at(11), at(11), at(11)]);
    assert!(matches!(done, PushOutcome::Done), "{done:?}");
    batch.ack.expect("a hold").deliver();
    rig.chain.flush();
    let first = rig.queues[0].pop().expect("rows 4 to 9");
    assert_eq!(first.segments[0].cover.range, at(4)..at(10));
    assert_eq!(values(&first.segments[0].rows), [4, 5, 6, 7, 8, 9]);
    for segment in first.segments {
        segment.hold.book(Books { settled: 6, ..Books::default() });
        segment.hold.deliver();
    }
    assert!(rig.queues[1].pop().is_none());
    let mut replayed = [0; 3];
    lane.harvester.harvest(|slot| {
        assert!(slot.balances());
        replayed[slot.sink] += slot.books.replayed;
    });
    assert_eq!(replayed, [0, 5, 11]);
    assert!(lane.harvester.is_settled());
}

/// Would catch a bad record whose batch is lost with it, whose letter misses its bytes, or that is let go before its
/// letter is stored.
#[test]
fn a_bad_record_is_a_letter_that_holds_its_batch() {
    let mut rig = rig(numbers(None), 1, WIDE);
    let mut lane = Lane::new(0, 1);
    let batch = lane.batch(&["1".to_owned(), "two".to_owned(), "3".to_owned()]);
    let done = rig.chain.push(0, &batch, ResumePoint::default(), &[Place::START; 2]);
    assert!(matches!(done, PushOutcome::Done));
    batch.ack.expect("a hold").deliver();
    rig.chain.flush();
    assert_eq!(drain(&rig.queues[0], 1), [(0, 1), (0, 3)]);
    lane.harvester.harvest(|_| {});
    assert_eq!((lane.harvester.watermark(0).at, lane.harvester.watermark(1).at), (0, 3));
    let parcel = rig.letters.take_for_test().expect("a parcel");
    assert_eq!(&parcel.letters[0].record.payload[..], b"two");
    assert_eq!(parcel.letters[0].record.offset, Offset(1));
    parcel.holds.into_iter().for_each(crate::core::Ack::deliver);
    lane.harvester.harvest(|slot| assert_eq!(slot.books.dead, 0, "counted for sinks, not for the chain"));
    assert_eq!(lane.harvester.watermark(0).at, 3);
}

/// Would catch a panic that takes the driver with it, or a chain that cannot go on after one.
#[test]
fn a_panic_in_the_chain_fails_exactly_its_batch() {
    let mut rig = rig(numbers(None), 1, WIDE);
    let mut lane = Lane::new(0, 1);
    let good = lane.batch(&["1".to_owned()]);
    assert!(matches!(rig.chain.push(0, &good, ResumePoint::default(), &[Place::START; 2]), PushOutcome::Done));
    good.ack.expect("a hold").deliver();
    let bad = lane.batch(&["panic".to_owned()]);
    let PushOutcome::Panicked(cause) = rig.chain.push(0, &bad, ResumePoint::default(), &[Place::START; 2]) else {
        panic!("it panics");
    };
    assert!(cause.text.contains("partition 0 1..2") && cause.text.contains("a record that panics"), "{cause}");
    bad.ack.expect("a hold").fail(&cause);
    rig.chain.abandon(0);
    rig.chain.flush();
    assert_eq!(drain(&rig.queues[0], 1), [(0, 1)]);
    let harvest = lane.harvester.harvest(|_| {});
    assert_eq!((lane.harvester.watermark(1).at, harvest.failed.contains(&1)), (1, true));
    assert_eq!(lane.harvester.cause(1), Some(FailCause::new(codes::PANIC, cause.text)));
}

fn conform(input: RecordBatch, sink: Vec<Field>) -> Result<(RecordBatch, Refusals), String> {
    let schema: SchemaRef = Arc::new(Schema::new(sink));
    let plan = Conform::plan(&input.schema(), &schema, "out").map_err(|error| error.text)?;
    let offsets = UInt64Array::from_iter_values((0..input.num_rows() as u64).map(|row| row / 2));
    let mut refusals = Refusals::new();
    let conformed = plan
        .apply(&input, &offsets, &SourceRows::records(offsets.clone()), &mut refusals)
        .map_err(|error| error.text)?;
    Ok((conformed.rows, refusals))
}

/// Catches a row that gets its neighbour's place, which a destination would take for a repeat of that one (P98, E124).
#[test]
fn a_sink_that_asks_has_each_rows_place() {
    let place = |at: u64, within: u64| Place { at, within };
    let all = [place(9, 1), place(9, 2), place(12, 1), place(12, 7)];
    let offsets = UInt64Array::from(vec![4, 5, 6, 9]);
    let places = SourceRows::of_table(offsets, Arc::from(all)).expect("as many places as rows");
    // The second row was filtered, and the last does not fit.
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![1, 3, 1 << 40]));
    let input = RecordBatch::try_from_iter([("value", wide)]).expect("a column");
    let long = |name: &str| Field::new(name, DataType::UInt64, false);
    let sink = vec![Field::new("value", DataType::Int32, true), long(columns::AT), long(columns::WITHIN)];
    let plan = Conform::plan(&input.schema(), &Arc::new(Schema::new(sink)), "out").expect("planned");
    let mut refusals = Refusals::new();
    let left = UInt64Array::from(vec![4, 6, 9]);
    let rows = plan.apply(&input, &left, &places, &mut refusals).expect("applied").rows;
    let numbers = |at: usize| rows.column(at).as_primitive::<UInt64Type>().values().to_vec();
    assert_eq!((numbers(1), numbers(2)), (vec![9, 12], vec![1, 1]));
    assert_eq!(refusals.keys().collect::<Vec<_>>(), [&9]);
    let text = vec![Field::new(columns::AT, DataType::Utf8, false)];
    assert!(Conform::plan(&input.schema(), &Arc::new(Schema::new(text)), "out").is_err());
}

/// Would catch a value that is cut or nulled to fit, a null that reaches a NOT NULL column, or half a record that goes
/// on without its other half.
#[test]
fn what_does_not_fit_the_sinks_columns_is_a_row_error_of_its_record() {
    // Rows 0 and 1 are record 0, rows 2 and 3 record 1, and so on.
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(1 << 40), Some(3), Some(4), None, Some(6)]));
    let input = RecordBatch::try_from_iter([("value", wide)]).expect("a column");
    let (rows, refusals) = conform(input, vec![Field::new("value", DataType::Int32, false)]).expect("it can be cast");
    assert_eq!(rows.num_rows(), 2, "record 1 alone");
    assert_eq!(refusals[&0].code, codes::CAST);
    assert_eq!(refusals[&2].code, codes::NULL_IN_NOT_NULL);
    assert!(refusals[&0].text.contains("value"));

    let halves: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 3.5, 4.0]));
    let input = RecordBatch::try_from_iter([("value", halves)]).expect("a column");
    let (rows, refusals) = conform(input, vec![Field::new("value", DataType::Int64, true)]).expect("a cast");
    assert_eq!((values(&rows), refusals.len()), (vec![1, 2], 1));

    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let input = RecordBatch::try_from_iter([("text", texts)]).expect("a column");
    let missing = conform(input.clone(), vec![Field::new("value", DataType::Int64, false)]).expect_err("required");
    assert!(missing.contains("value") && missing.contains("out"), "{missing}");
    let (rows, _) = conform(input, vec![Field::new("value", DataType::Int64, true)]).expect("nullable");
    assert_eq!(rows.column(0).null_count(), 2);
}
