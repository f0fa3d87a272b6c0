//! A floor under the client's speed, far below what it reaches: a lock, a wake-up or a copy per record too many
//! would show.

use std::time::Instant;

use crate::peer::Peer;
use crate::stream;

/// Would catch work per record that does not belong there: ten times the floor is what an unoptimised build does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_records_are_not_bound_by_the_client() {
    const RECORDS: u32 = 200_000;
    let peer = Peer::acking().await;
    let stream = stream(&peer).multiplexed(2).open().await.unwrap();
    let record = bytes::Bytes::from(format!("\"{}\"", "x".repeat(198)));
    let began = Instant::now();
    for _ in 0..RECORDS {
        stream.ingest(record.clone()).await.unwrap();
    }
    stream.flush().await.unwrap();
    let rate = f64::from(RECORDS) / began.elapsed().as_secs_f64();
    let snapshot = stream.snapshot();
    let frames: u64 = snapshot.sub_streams.iter().map(|sub_stream| sub_stream.frames).sum();
    println!("{rate:.0} records/s of 200 B, {:.0} records per frame", f64::from(RECORDS) / frames as f64);
    assert!(rate > 20_000.0, "{rate:.0} records/s");
    stream.close().await.unwrap();
}
