//! `GET /v1/channels/{channel}/tail`: server-sent events over a subscription (G40).
//!
//! One partition. It goes on for ever at the reader's pace: a slow one holds its page and no more (I6). A range that
//! cannot be given is told before it is skipped, never passed over in silence (I2).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use http::{HeaderValue, header};
use landfall_channel::{ReadError, Start, SubscribeOptions, Subscription};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::Offset;

use crate::core::{COME_BACK_AFTER, Core, shown};
use crate::http::form::write_record;
use crate::http::query::Parameters;
use crate::http::read::{of_read, start, the_partition};
use crate::http::{Problem, channel, syntax};

/// A comment keeps proxies from taking a quiet tail for a dead one.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// A place among the open tails, given back on drop.
#[derive(Debug)]
struct TailPermit(Arc<Core>);

impl Drop for TailPermit {
    fn drop(&mut self) {
        self.0.tails.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    }
}

fn permit(core: &Arc<Core>) -> Result<TailPermit, Problem> {
    use std::sync::atomic::Ordering::AcqRel;
    let limit = core.limits().max_tails;
    let permit = TailPermit(Arc::clone(core));
    if core.tails.fetch_add(1, AcqRel) >= limit {
        let text = format!("`server.ingest.max_tails` ({limit}) is reached: close some, or raise it");
        return Err(Refusal::new(IngestCode::Overloaded, text).retry_after(COME_BACK_AFTER).into());
    }
    Ok(permit)
}

/// Streams records as events.
pub(crate) async fn tail(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    core.refuse_when_draining()?;
    let channel = channel(&core, &name)?;
    let mut parameters = Parameters::of(request.uri().query())?;
    let partition = the_partition(&channel, parameters.partition()?)?;
    let from = parameters.take("from");
    parameters.finish()?;
    let from = match request.headers().get("last-event-id") {
        Some(id) => after(id.to_str().unwrap_or_default())?,
        None => start(&channel, partition, from.as_deref())?,
    };
    let permit = permit(&core)?;
    let subscription = channel
        .subscribe(partition, Start::Offset(from), SubscribeOptions::default())
        .map_err(|error| of_read(&error))?;
    let mut response = Response::new(Body::from_stream(events(core, subscription, permit)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The offset after the last event that the client has seen.
fn after(id: &str) -> Result<Offset, Problem> {
    let next = id.parse::<u64>().ok().and_then(|seen| Offset(seen).checked_add(1));
    next.ok_or_else(|| {
        syntax(format!("`Last-Event-ID: {}`: expected the offset of an event of this partition", shown(id)))
    })
}

enum Stage {
    Open,
    Ended,
}

fn events(
    core: Arc<Core>,
    subscription: Subscription,
    permit: TailPermit,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    futures::stream::unfold(
        (core, subscription, permit, Stage::Open),
        |(core, mut subscription, permit, stage)| async move {
            if matches!(stage, Stage::Ended) {
                return None;
            }
            let mut out = BytesMut::new();
            let mut next = Stage::Open;
            tokio::select! {
                biased;
                () = core.closing() => {
                    out.put_slice(b"event: end\ndata: {}\n\n");
                    next = Stage::Ended;
                }
                page = tokio::time::timeout(COMMENT_EVERY, subscription.next()) => match page {
                    Err(_) => out.put_slice(b": still here\n\n"),
                    Ok(None) => {
                        out.put_slice(b"event: end\ndata: {}\n\n");
                        next = Stage::Ended;
                    }
                    Ok(Some(Ok(page))) => for delivered in &page {
                        out.put_slice(format!("event: record\nid: {}\ndata: ", delivered.offset).as_bytes());
                        write_record(&mut out, delivered);
                        out.put_slice(b"\n\n");
                    },
                    Ok(Some(Err(error))) => next = failure(&mut out, &error),
                }
            }
            Some((Ok(out.freeze()), (core, subscription, permit, next)))
        },
    )
}

/// Tells a range that is skipped; anything else ends the tail.
fn failure(out: &mut BytesMut, error: &ReadError) -> Stage {
    let (event, from, to) = match error {
        ReadError::Trimmed { from, log_start, .. } => ("trimmed", from, log_start),
        ReadError::Damaged { from, to, .. } => ("damaged", from, to),
        _ => {
            let code = landfall_types::Coded::code(error);
            out.put_slice(format!("event: end\ndata: {}\n\n", serde_json::json!({"code": code})).as_bytes());
            return Stage::Ended;
        }
    };
    out.put_slice(format!("event: {event}\ndata: {}\n\n", serde_json::json!({"from": from, "to": to})).as_bytes());
    Stage::Open
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a reconnect that repeats or loses the event it names.
    #[test]
    fn a_tail_goes_on_after_the_last_event() {
        assert_eq!(after("41").unwrap(), Offset(42));
        for bad in ["", "x", "-1", "1.5", "18446744073709551615"] {
            assert!(after(bad).is_err(), "{bad}");
        }
    }
}
