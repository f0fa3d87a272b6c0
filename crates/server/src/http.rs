//! The HTTP side: publish, read, tail, positions, health, readiness, metrics and status (G35–G41, G85).
//!
//! Every refusal is `application/problem+json` with a stable code; a URL or method that is not served says so in
//! the same form. Bodies are bounded as sent and as decoded (I14).

mod body;
mod form;
mod outcome;
mod problem;
mod publish;
mod query;
mod read;
mod records;
mod status;
mod tables;
mod tail;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use landfall_channel::Channel;
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::{Code, Kind};

use crate::core::{Core, shown};

pub(crate) use problem::Problem;

/// The routes, with everything else refused in HTTP's own kind.
pub(crate) fn routes(core: Arc<Core>) -> Router {
    let not_offered = || async { Problem::from(Refusal::new(IngestCode::NotOffered, "not offered by this version")) };
    Router::new()
        .route("/v1/channels/{channel}/records", post(publish::publish).get(read::read))
        .route("/v1/channels/{channel}/positions", get(read::positions))
        .route("/v1/channels/{channel}/tail", get(tail::tail))
        .route("/v1/channels/{channel}/outcomes", get(not_offered))
        .route("/v1/channels/{channel}/outcomes/{reference}", get(not_offered))
        .route("/v1/channels/{channel}/consumers/{name}/{verb}", post(not_offered))
        .route("/v1/pipelines/{pipeline}/tables", get(tables::list).post(tables::order))
        .route("/v1/reload", post(not_offered))
        .route("/oidc/v1/token", post(not_offered))
        .route("/v1/status", get(status::status))
        .route("/healthz", get(status::health))
        .route("/readyz", get(status::readiness))
        .route("/metrics", get(status::metrics))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&core), count))
        .with_state(core)
}

async fn unknown_url() -> Problem {
    Problem::from(Refusal::new(
        IngestCode::UrlUnknown,
        "no route goes by this URL; records are at /v1/channels/CHANNEL/records",
    ))
}

async fn wrong_method() -> Problem {
    let text = "this URL is served, but not by this method";
    Problem::from(Refusal::new(IngestCode::BodyEncoding, text)).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Counts each answer by route; the route is one of ours, so labels cannot grow by what clients send.
async fn count(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<axum::extract::MatchedPath>().map(|path| route_label(path.as_str()));
    let response = next.run(request).await;
    core.meters.http(route.unwrap_or("other"), response.status().as_u16());
    response
}

fn route_label(path: &str) -> &'static str {
    const KNOWN: [&str; 9] =
        ["records", "positions", "tables", "tail", "status", "healthz", "readyz", "metrics", "token"];
    let last = path.rsplit('/').next().unwrap_or_default();
    KNOWN.into_iter().find(|known| *known == last).unwrap_or("other")
}

/// The channel of a URL.
fn channel(core: &Core, name: &str) -> Result<Channel, Problem> {
    core.parts.channels.get(name).ok_or_else(|| {
        const UNKNOWN_CHANNEL: Code = Code::new("CH", 5);
        let text = format!("no channel is called `{}`: declare it under `channels`", shown(name));
        Problem::coded(UNKNOWN_CHANNEL, Kind::Invalid, landfall_types::Retry::Never, text)
    })
}

/// A refusal of a request whose parameter, header or body does not parse.
fn syntax(text: impl Into<String>) -> Problem {
    Problem::from(Refusal::new(IngestCode::BodySyntax, text))
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response()
    }
}
