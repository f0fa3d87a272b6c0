//! The client against a scripted peer: each test is a property of `ingest.md` §5 and §6.

mod capacity;
mod endings;
mod metering;
mod opening;
mod order;
mod peer;
mod recovery;
mod throughput;

use std::time::Duration;

use landfall_client::{Client, IngestStream, MultiplexedStream, StreamBuilder};

/// A stream to be opened, with short delays before reconnecting.
pub(crate) fn stream(peer: &peer::Peer) -> StreamBuilder {
    let client = Client::builder(peer.url()).build().unwrap();
    client
        .stream("storefront.events")
        .json()
        .backoff_initial(Duration::from_millis(1))
        .backoff_max(Duration::from_millis(20))
        .recovery_budget(Duration::from_secs(20))
        .close_timeout(Duration::from_secs(20))
        .flush_timeout(Duration::from_secs(20))
}

pub(crate) async fn single(peer: &peer::Peer) -> IngestStream {
    stream(peer).coalesce_records(1).open().await.unwrap()
}

pub(crate) async fn multiplexed(peer: &peer::Peer, sub_streams: u16) -> MultiplexedStream {
    stream(peer).coalesce_records(1).multiplexed(sub_streams).open().await.unwrap()
}

/// Waits until something holds that no event announces, looking again and again, with a deadline.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let looking = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), looking).await.is_ok(), "{what} did not happen");
}

/// Polls a future once: what a publisher that does not wait would see.
pub(crate) fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
