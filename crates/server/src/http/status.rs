//! Health, readiness, metrics and status (E144). The server puts together what channels and pipelines report.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use landfall_channel::Health;
use landfall_protocol::{IngestCode, Refusal};
use serde_json::json;

use crate::core::{Core, Phase};
use crate::http::Problem;
use crate::http::form::time_text;
use crate::http::read::json_response;

/// 200 unless a thread's heartbeat is stale; then its name.
pub(crate) async fn health(State(core): State<Arc<Core>>) -> Response {
    let stale = (core.parts.stale_threads)();
    let status = if stale.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json_response(status, &json!({"healthy": stale.is_empty(), "stale_threads": stale}))
}

/// 200 while records are taken and any partition serves, whatever a sink does; the body lists what lacks.
pub(crate) async fn readiness(State(core): State<Arc<Core>>) -> Response {
    let mut lacks = Vec::new();
    let mut serves = false;
    let channels = core.parts.channels.list();
    for status in channels.iter().map(landfall_channel::Channel::status) {
        let before = lacks.len();
        for partition in &status.partitions {
            if matches!(partition.state, "ready" | "committing") {
                serves = true;
                continue;
            }
            let mut lack = format!("{}/{} is {}", status.name, partition.partition, partition.state);
            if let Some(cause) = &partition.cause {
                lack.push_str(": ");
                lack.push_str(cause);
            }
            lacks.push(lack);
        }
        if status.health != Health::Ok && lacks.len() == before {
            lacks.push(format!("{} is {:?}", status.name, status.health).to_lowercase());
        }
    }
    let pipelines_lack = (core.parts.pipelines_lack)();
    let takes = core.phase() == Phase::Serving;
    if !takes {
        lacks.push("the server is shutting down".to_owned());
    }
    let ready = takes && if channels.is_empty() { pipelines_lack.is_empty() } else { serves };
    lacks.extend(pipelines_lack);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json_response(status, &json!({"ready": ready, "lacks": lacks}))
}

/// The metrics in Prometheus' text form.
pub(crate) async fn metrics(State(core): State<Arc<Core>>) -> Result<Response, Problem> {
    let Some(handle) = core.parts.metrics.clone() else {
        return Err(Refusal::new(IngestCode::NotOffered, "this process records no metrics").into());
    };
    let mut response = Response::new(Body::from(handle.render()));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Everything that `landfall top` shows.
pub(crate) async fn status(State(core): State<Arc<Core>>) -> Response {
    let channels: Vec<_> = core.parts.channels.list().iter().map(landfall_channel::Channel::status).collect();
    let ingest = json!({
        "phase": match core.phase() {
            Phase::Serving => "serving",
            Phase::Closing { .. } | Phase::Ended => "draining",
        },
        "streams": core.streams.count(),
    });
    json_response(
        StatusCode::OK,
        &json!({
            "v": 1,
            "at": time_text(core.parts.clock.now()),
            "version": env!("CARGO_PKG_VERSION"),
            "rss_bytes": rss_bytes().await,
            "memory_limit_bytes": core.parts.memory_limit.map(landfall_types::ByteSize::get),
            "ingest": ingest,
            "channels": channels,
            "pipelines": (core.parts.pipelines)(),
        }),
    )
}

/// The process's resident memory; 0 where the system does not tell.
async fn rss_bytes() -> u64 {
    let status = tokio::fs::read_to_string("/proc/self/status").await.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}
