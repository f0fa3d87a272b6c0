//! `GET /v1/channels/{channel}/records` and `…/positions` (G36, G39).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use landfall_channel::{Channel, Delivered, ReadError};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::{Offset, PartitionId};
use serde_json::json;

use crate::core::{Core, shown};
use crate::http::form::write_record;
use crate::http::query::Parameters;
use crate::http::{Problem, channel, syntax};

const LIMIT: (u64, u64) = (100, 10_000);
const MAX_BYTES: (u64, u64) = (1 << 20, 16 << 20);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Reads committed records in order, without a gap (I2).
pub(crate) async fn read(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let channel = channel(&core, &name)?;
    let mut parameters = Parameters::of(request.uri().query())?;
    let partition = the_partition(&channel, parameters.partition()?)?;
    let from = parameters.take("from");
    let limit = parameters.number("limit", 1..=LIMIT.1)?.unwrap_or(LIMIT.0);
    let max_bytes = parameters.size("max_bytes", 1 << 10..=MAX_BYTES.1)?.unwrap_or(MAX_BYTES.0);
    let wait = parameters.duration("wait", MAX_WAIT)?.unwrap_or(Duration::ZERO);
    parameters.finish()?;
    let raw = request.headers().get(header::ACCEPT).is_some_and(|accept| accept == "application/octet-stream");
    if raw && limit != 1 {
        return Err(syntax("`Accept: application/octet-stream` gives the bytes of one record: add `limit=1`"));
    }
    let from = start(&channel, partition, from.as_deref())?;
    let tail = channel.tail(partition).unwrap_or_default();
    if from > tail {
        let text = format!("offset {from} is past the tail of partition {partition}, the next record gets {tail}");
        return Err(Refusal::new(IngestCode::OffsetPastTail, text).into());
    }
    if from == tail && !wait.is_zero() {
        // A drain ends the wait too: with nothing to say, the answer is empty.
        let came = async {
            tokio::select! { () = channel.wait_past(partition, from) => {}, () = core.closing() => {} }
        };
        let _ = tokio::time::timeout(wait, came).await;
    }
    let (records, bytes) = (u32::try_from(limit).unwrap_or(u32::MAX), usize::try_from(max_bytes).unwrap_or(usize::MAX));
    let found = channel.read(partition, from, records, bytes).await.map_err(|error| of_read(&error))?;
    let next = found.last().map_or(Some(from), |last| last.offset.checked_add(1)).unwrap_or(Offset::MAX);
    let (content_type, body) = if raw {
        ("application/octet-stream", found.into_iter().next().map(|one| one.record.payload).unwrap_or_default())
    } else {
        ("application/x-ndjson", ndjson(&found))
    };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    put_offsets(
        headers,
        next,
        channel.tail(partition).unwrap_or_default(),
        channel.log_start(partition).unwrap_or_default(),
    );
    Ok(response)
}

fn put_offsets(headers: &mut HeaderMap, next: Offset, end: Offset, earliest: Offset) {
    headers.insert("landfall-next-offset", HeaderValue::from(next.get()));
    headers.insert("landfall-end-offset", HeaderValue::from(end.get()));
    headers.insert("landfall-earliest-offset", HeaderValue::from(earliest.get()));
}

fn ndjson(found: &[Delivered]) -> Bytes {
    let mut out = BytesMut::with_capacity(found.iter().map(|one| one.record.payload.len() + 128).sum());
    for delivered in found {
        write_record(&mut out, delivered);
        out.put_u8(b'\n');
    }
    out.freeze()
}

/// The partition that a request means: the one it names, or the only one.
pub(crate) fn the_partition(channel: &Channel, named: Option<PartitionId>) -> Result<PartitionId, Problem> {
    let partitions = channel.partitions();
    match named {
        Some(partition) if partition.0 < partitions => Ok(partition),
        Some(partition) => {
            Err(Problem::of(&ReadError::UnknownPartition { channel: channel.name().into(), partition, partitions }))
        }
        None if partitions == 1 => Ok(PartitionId(0)),
        None => {
            let text = format!("channel {} has {partitions} partitions: add `partition=P`", channel.name());
            Err(Refusal::new(IngestCode::PartitionRequired, text).into())
        }
    }
}

/// Where reading starts: without a word, at the log start.
pub(crate) fn start(channel: &Channel, partition: PartitionId, from: Option<&str>) -> Result<Offset, Problem> {
    match from {
        None | Some("earliest") => Ok(channel.log_start(partition).unwrap_or_default()),
        Some("latest") => Ok(channel.tail(partition).unwrap_or_default()),
        Some(text) => text
            .parse()
            .map(Offset)
            .map_err(|_| syntax(format!("`from={}`: expected an offset, `earliest` or `latest`", shown(text)))),
    }
}

/// A read that got nothing, with the range it names.
pub(crate) fn of_read(error: &ReadError) -> Problem {
    let problem = Problem::of(error);
    match error {
        ReadError::Trimmed { from, log_start, .. } => problem.with_range(from.get(), log_start.get()),
        ReadError::Damaged { from, to, .. } => problem.with_range(from.get(), to.get()),
        ReadError::PastTail { .. } => Problem::from(Refusal::new(IngestCode::OffsetPastTail, error.to_string())),
        _ => problem,
    }
}

/// The next offset of every partition, as JSON and in the form that a key's `since` takes.
pub(crate) async fn positions(State(core): State<Arc<Core>>, Path(name): Path<String>) -> Result<Response, Problem> {
    let positions = channel(&core, &name)?.positions();
    let since: Vec<String> = positions.iter().map(|(partition, offset)| format!("{partition}:{offset}")).collect();
    let by_partition: serde_json::Map<_, _> =
        positions.iter().map(|(partition, offset)| (partition.to_string(), json!(offset))).collect();
    Ok(json_response(StatusCode::OK, &json!({"positions": by_partition, "since": since.join(",")})))
}

/// A JSON answer.
pub(crate) fn json_response(status: StatusCode, value: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
