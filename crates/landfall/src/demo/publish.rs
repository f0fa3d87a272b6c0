//! The demo's publisher: generated events through the multiplexed client, over gRPC on loopback.

use std::ops::Range;

use anyhow::Context;
use landfall_client::Client;

use super::progress::Progress;
use super::{CHANNEL, PIPELINE};
use crate::assembly::Running;
use crate::storefront;

const SUB_STREAMS: u16 = 4;
/// How often progress is shown, in records.
const SHOW_EVERY: u64 = 2_000;

/// Publishes every record of a range and returns once all are acknowledged.
pub(super) async fn all(running: &Running, range: Range<u64>, seed: u64, progress: &Progress) -> anyhow::Result<()> {
    let client = Client::builder(format!("http://{}", running.address())).application("landfall-demo").build()?;
    let stream = client.stream(CHANNEL).json().multiplexed(SUB_STREAMS).open().await?;
    let pipeline = running.pipeline(PIPELINE);
    let mut record = String::with_capacity(512);
    for n in range.clone() {
        storefront::write_record(seed, n, &mut record);
        stream.ingest(record.as_str()).await.map_err(|rejected| rejected.error).context("publishing")?;
        let done = n - range.start + 1;
        if done.is_multiple_of(SHOW_EVERY) {
            progress.published(done);
            let balance = pipeline.as_ref().and_then(|pipeline| pipeline.balance("delta"));
            progress.landed(balance.map_or(0, |balance| balance.delivered + balance.dead_lettered));
        }
    }
    stream.flush().await.context("waiting for the last acknowledgements")?;
    progress.published(range.end - range.start);
    stream.close().await.context("closing the stream")?;
    Ok(())
}
