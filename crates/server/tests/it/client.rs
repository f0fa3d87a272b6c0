//! Our own client against our own server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_channel::ChannelOptions;
use landfall_client::Client;
use landfall_server::ServerOptions;

use crate::world::{PATIENCE, World, soon};

/// Would catch a record that is lost, stored twice, or out of order on its sub-stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_multiplexed_stream_lands_every_record_once() {
    let options = ChannelOptions { partitions: 2, ..ChannelOptions::default() };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let client = Client::builder(format!("http://{}", world.address())).build().unwrap();
    let stream = soon(client.stream("events").json().multiplexed(4).open()).await.unwrap();
    for n in 0..5_000 {
        soon(stream.ingest(format!("{{\"n\":{n}}}"))).await.unwrap();
    }
    soon(stream.flush()).await.unwrap();
    soon(stream.close()).await.unwrap();
    let mut all = Vec::new();
    for partition in 0..2 {
        all.extend(world.stored("events", partition).await.into_iter().map(|one| one.record.payload));
    }
    all.sort();
    let mut expected: Vec<_> = (0..5_000).map(|n| Bytes::from(format!("{{\"n\":{n}}}"))).collect();
    expected.sort();
    assert!(all == expected, "{} stored of {}", all.len(), expected.len());
    world.close().await;
}

/// Would catch a drain under load that acknowledges what is not stored.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_has_acknowledged_at_a_drain_is_stored() {
    let world = World::plain().await;
    let client = Client::builder(format!("http://{}", world.address())).build().unwrap();
    let stream = soon(client.stream("events").json().multiplexed(1).open()).await.unwrap();
    let publisher = tokio::spawn(async move {
        let mut acked = 0u64;
        for n in 0..1_000_000u64 {
            let publish = async {
                let id = stream.ingest(n.to_string()).await.ok()?;
                if n % 50 == 49 { stream.wait_for(id).await.ok().map(|_| n + 1) } else { Some(acked) }
            };
            match tokio::time::timeout(Duration::from_secs(3), publish).await {
                Ok(Some(upto)) => acked = upto,
                _ => break,
            }
        }
        acked
    });
    let channel = world.channel("events");
    soon(channel.wait_past(landfall_types::PartitionId(0), landfall_types::Offset(500))).await;
    let report = world.server.drain(Duration::from_secs(1), Instant::now() + PATIENCE).await;
    assert!(report.is_clean(), "{report:?}");
    let acked = soon(publisher).await.unwrap();
    assert!(acked >= 50, "{acked}");
    let stored = world.payloads("events").await;
    for (n, payload) in (0..acked).zip(&stored) {
        assert_eq!(*payload, n.to_string(), "record {n}");
    }
    assert!(stored.len() as u64 >= acked, "{acked} acknowledged, {} stored", stored.len());
}
