//! Cutting segments and the share of a shard.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use landfall_types::{Epoch, Offset, PartitionId, Place, Timestamp};
use proptest::prelude::*;

use super::{Chunk, Full, Segment, ShardQueue, ShareLimits, compacted};
use crate::contract::{Covered, SinkId};
use crate::core::{Harvester, Wake, Waker, ring};
use crate::source_rows::SourceRows;

/// A segment of rows with these offsets, of a slice with the source offsets `0..source`.
fn segment(offsets: &[u64], source: u64, bytes: usize) -> (Segment, Harvester) {
    let (mut issuer, harvester) =
        ring(PartitionId(0), Epoch(1), Place::START, 4, 1, Arc::new(Waker::new()), Instant::now());
    let range = Place::START..Place::of(Offset(source));
    let rows = u32::try_from(source).expect("small");
    let ack = issuer.issue(range.clone(), rows, bytes, Instant::now()).expect("an empty ring");
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(offsets.iter().map(|offset| *offset as i64)));
    let segment = Segment {
        rows: RecordBatch::try_from_iter([("value", values)]).expect("one column"),
        offsets: offsets.to_vec().into(),
        origin: None,
        source: SourceRows::records(UInt64Array::from_iter_values(0..source)),
        note: None,
        cover: Covered { partition: PartitionId(0), epoch: Epoch(1), range, rows },
        hold: ack.share(SinkId(1)),
        oldest: Timestamp(0),
        bytes,
        charge: None,
    };
    ack.deliver();
    (segment, harvester)
}

fn chunk(bytes: usize) -> Chunk {
    let mut chunk = Chunk::default();
    chunk.push(segment(&[0], 1, bytes).0);
    chunk
}

proptest! {
    /// Would catch a cut inside a record, a cover with a hole, a row that is lost, or a byte that is counted twice.
    #[test]
    fn a_cut_lies_between_records_and_covers_chain(
        counts in prop::collection::vec(0usize..4, 1..40),
        wanted in 1usize..60,
    ) {
        let offsets: Vec<u64> =
            counts.iter().enumerate().flat_map(|(at, count)| vec![at as u64; *count]).collect();
        prop_assume!(!offsets.is_empty());
        let source = counts.len() as u64;
        let (whole, _harvester) = segment(&offsets, source, 1000);
        match whole.cut(wanted) {
            Err(whole) => prop_assert_eq!(whole.len(), offsets.len()),
            Ok((head, rest)) => {
                prop_assert!(head.len() >= wanted.min(offsets.len()) && rest.len() > 0);
                prop_assert_eq!(head.len() + rest.len(), offsets.len());
                let (last, first) = (offsets[head.len() - 1], offsets[head.len()]);
                prop_assert!(last < first, "one record on both sides");
                prop_assert_eq!(head.cover.range.start, Place::START);
                prop_assert_eq!(head.cover.range.end, rest.cover.range.start);
                prop_assert_eq!(rest.cover.range.end.at, source);
                prop_assert_eq!(head.cover.rows + rest.cover.rows, source as u32);
                prop_assert_eq!(u64::from(head.cover.rows), first);
                prop_assert_eq!(head.bytes + rest.bytes, 1000);
            }
        }
    }
}

fn queue(high: usize, low: usize, chunks: usize) -> Arc<ShardQueue> {
    ShardQueue::new(ShareLimits { high, low, chunks }, metrics::Counter::noop())
}

/// Would catch a refusal that loses the chunk or its bytes, or a share that is not given back.
#[test]
fn a_full_queue_returns_the_chunk() {
    let queue = queue(100, 50, 8);
    queue.try_send(chunk(80)).expect("room");
    let Err(Full(refused)) = queue.try_send(chunk(30)) else { panic!("110 of 100 bytes") };
    assert_eq!((refused.bytes, refused.segments.len()), (30, 1));
    assert_eq!(queue.queued().share, 80);
    drop(refused);
    assert_eq!(queue.queued().share, 80, "what was refused was never counted");
    drop(queue.pop());
    assert_eq!((queue.queued().share, queue.queued().bytes), (0, 0));
}

/// Would catch a shard that opens above its low mark, or that does not say so.
#[test]
fn a_shut_shard_opens_below_its_low_mark_with_one_wake() {
    let queue = queue(100, 50, 8);
    let driver = Arc::new(Waker::new());
    queue.add_driver(driver.clone());
    queue.try_send(chunk(40)).expect("room");
    queue.try_send(chunk(40)).expect("room");
    assert!(queue.try_send(chunk(30)).is_err());
    assert!(queue.try_send(chunk(1)).is_err(), "it fits, but the shard is shut");
    let first = queue.pop();
    assert_eq!((queue.queued().share, driver.take()), (80, Wake::NONE), "popped bytes still count");
    drop(first);
    assert_eq!((queue.queued().share, driver.take()), (40, Wake::ROOM));
    queue.try_send(chunk(30)).expect("open again");
}

/// Would catch a chunk that is larger than the share and can never enter.
#[test]
fn a_chunk_larger_than_the_share_enters_an_empty_one() {
    let queue = queue(100, 50, 8);
    queue.try_send(chunk(500)).expect("an empty share takes it");
    assert!(queue.try_send(chunk(1)).is_err());
    drop(queue.pop());
    queue.try_send(chunk(500)).expect("and again");
}

/// Would catch a queue that is bounded in bytes alone.
#[test]
fn a_queue_is_bounded_in_chunks_too() {
    let queue = queue(1000, 500, 4);
    for _ in 0..4 {
        queue.try_send(chunk(1)).expect("room");
    }
    assert!(queue.try_send(chunk(1)).is_err());
    let popped: Vec<_> = (0..2).filter_map(|_| queue.pop()).collect();
    assert_eq!(popped.len(), 2);
    queue.try_send(chunk(1)).expect("half empty opens it");
}

/// Would catch a small slice that keeps a large batch alive and is counted as small.
#[test]
fn a_slice_that_pins_its_parent_is_copied() {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
    let texts: ArrayRef = Arc::new(arrow_array::StringViewArray::from_iter_values(
        (0..100_000).map(|n| format!("a text that does not fit into a view: {n}")),
    ));
    let whole = RecordBatch::try_from_iter([("value", values), ("text", texts)]).expect("columns");
    let slice = compacted(whole.slice(500, 10));
    assert!(slice.get_array_memory_size() < 8 * 1024, "{}", slice.get_array_memory_size());
    assert_eq!(slice, whole.slice(500, 10));
    let kept = compacted(whole.clone());
    assert_eq!(kept.get_array_memory_size(), whole.get_array_memory_size(), "a whole batch is not copied");
}
