//! The stream of one connection, from where it starts to its end in order.

use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Coded, with_causes};
use tokio::sync::watch;

use super::copies::Copies;
use super::decoder::Decoder;
use super::handover::Generation;
use super::report::Stage;
use super::shared::Shared;
use super::starts::Starts;
use super::task::{Ended, told_to_stop};
use crate::feedback::FeedbackRules;
use crate::meters::StreamMeters;
use crate::pump::{PumpEnd, PumpParts, pump};
use crate::queue::{QueueMeters, QueueParts, QueueingSink};
use crate::reconnect::Backoff;
use crate::transport::{ReplicationConnection, StreamOptions};

/// How long the tail of a queue may take at the end of a connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// What a stream starts with, and what makes it start again.
pub(super) struct Starting<'a> {
    pub(super) generation: Generation,
    pub(super) starts: Starts,
    pub(super) copies: &'a mut Copies,
    /// The lane was opened anew.
    pub(super) reopened: &'a mut watch::Receiver<u64>,
    /// The record says more than is carried out.
    pub(super) ordered: &'a mut watch::Receiver<u64>,
}

pub(super) async fn stream(
    shared: &Arc<Shared>,
    starting: Starting<'_>,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, Ended> {
    let Starting { generation, starts, copies, reopened, ordered } = starting;
    let Starts { connection, mut tables, from } = starts;
    let options = &shared.options;
    for table in &mut tables {
        table.is_parked |= shared.is_parked(table.relation);
    }
    let mut connection = match connection {
        Some(connection) => connection,
        None => ReplicationConnection::connect(&options.connect).await.map_err(|error| Ended::later(&error))?,
    };
    let timeout = connection.show("wal_sender_timeout").await.map_err(|error| Ended::later(&error))?;
    let rules = FeedbackRules::new(options.feedback_interval, options.liveness_timeout, parse_duration(&timeout));
    let stream = StreamOptions {
        slot: options.slot.clone(),
        from,
        publications: vec![options.publication.clone()],
        protocol: 1,
        is_streaming: false,
        with_messages: false,
        origin: options.origin.clone(),
        max_message: options.max_message,
    };
    let transport = connection.start(&stream).await.map_err(|error| Ended::later(&error))?;
    let idle_interval = options.queue.idle_interval.min((options.linger / 2).max(Duration::from_millis(1)));
    let settings = crate::QueueSettings { idle_interval, ..options.queue };
    let parts = QueueParts { meters: QueueMeters::new(&options.pipeline), ..QueueParts::new(settings) };
    let decoder = Decoder::new(Arc::clone(shared), generation, tables, from);
    let mut queue = QueueingSink::start(Box::new(decoder), parts);
    let (end_stream, ended) = watch::channel(false);
    let meters = StreamMeters::new(&options.pipeline);
    let parts = PumpParts { from, durable: Arc::clone(&shared.durable), rules, meters: meters.clone(), stop: ended };
    shared.set_stage(Stage::Streaming);
    tracing::info!(pipeline = %options.pipeline, slot = %options.slot, %from, "streaming");
    let received_before = shared.sight.lock().server_end;
    let mut stop = shared.stop.subscribe();
    let (end, why) = {
        let mut pumping = std::pin::pin!(pump(transport, &mut queue, parts));
        tokio::select! {
            end = &mut pumping => (end, None),
            () = told_to_stop(&mut stop) => {
                end_stream.send_replace(true);
                (pumping.await, Some(Ended::Stopped))
            }
            () = started_again(shared, copies, generation, reopened, ordered) => {
                end_stream.send_replace(true);
                (pumping.await, Some(Ended::Again))
            }
        }
    };
    if shared.sight.lock().server_end > received_before {
        backoff.reset();
    }
    if matches!(why, Some(Ended::Again)) {
        // Rows behind the checkpoint come again: what the queue still holds is void. The decoder has to be gone before the
        // rounds are forgotten: what it cut after that would stand before rows that are not settled (I7).
        queue.abandon().await;
        return Err(Ended::Again);
    }
    let closed = queue.close(CLOSE_WITHIN).await;
    if let Some(why) = why {
        if let Err(error) = closed {
            tracing::warn!(pipeline = %options.pipeline, "the end of the stream: {error}");
        }
        return Err(why);
    }
    meters.reconnected(end.code());
    Err(match &end {
        PumpEnd::Queue(error) => Ended::Later { code: end.code(), text: with_causes(error) },
        _ => Ended::later(&end),
    })
}

/// The lane was opened anew, an order is to be carried out, or a snapshot is ready for tables that wait for one.
async fn started_again(
    shared: &Arc<Shared>,
    copies: &mut Copies,
    generation: Generation,
    reopened: &mut watch::Receiver<u64>,
    ordered: &mut watch::Receiver<u64>,
) {
    tokio::select! {
        _ = reopened.changed() => {}
        _ = ordered.changed() => {}
        () = copies.until_ready(shared, generation) => {}
    }
}

/// `1min`, `60s`, `500ms`, `0`: as SHOW gives it.
fn parse_duration(text: &str) -> Duration {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let number: u64 = digits.trim().parse().unwrap_or_default();
    match text.get(digits.len()..).unwrap_or_default() {
        "ms" | "" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.saturating_mul(60)),
        "h" => Duration::from_secs(number.saturating_mul(3_600)),
        _ => Duration::from_secs(number.saturating_mul(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches feedback by the default rhythm although the server's patience is shorter.
    #[test]
    fn a_setting_is_read_with_its_unit() {
        let read = |text| parse_duration(text).as_millis();
        assert_eq!(
            (read("1min"), read("30s"), read("500ms"), read("0"), read("1d")),
            (60_000, 30_000, 500, 0, 86_400_000)
        );
    }
}
