//! `GET` and `POST /v1/pipelines/{pipeline}/tables`: where the tables of a capture stand, and orders to them (G85, P1).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use landfall_protocol::{IngestCode, Refusal, RefusedOutcome};
use serde::Deserialize;

use crate::core::{Core, shown};
use crate::http::query::Parameters;
use crate::http::read::json_response;
use crate::http::{Problem, syntax};
use crate::tables::{TableOrder, TablesRefusal};

/// The largest order: a command and a name.
const BODY_BYTES_MAX: usize = 16 << 10;

/// An order as it is sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    command: String,
    table: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    rehearsal: bool,
}

/// Lists the tables.
pub(crate) async fn list(
    State(core): State<Arc<Core>>,
    Path(pipeline): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Parameters::of(request.uri().query())?.finish()?;
    let tables = core.parts.tables.list(&pipeline).map_err(Problem::from)?;
    Ok(json_response(StatusCode::OK, &tables))
}

/// Hands an order on; the answer means that it is stored, not that it is done.
pub(crate) async fn order(
    State(core): State<Arc<Core>>,
    Path(pipeline): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Parameters::of(request.uri().query())?.finish()?;
    core.refuse_when_draining()?;
    let silence = core.limits().keepalive_interval + core.limits().keepalive_timeout;
    let Ok(body) = tokio::time::timeout(silence, body_of(request.into_body())).await else {
        let text = format!("the body did not come within {silence:?}");
        return Err(Refusal::new(IngestCode::OpenTimeout, text).into());
    };
    let order = order_of(&body?)?;
    // Past this point the order may be carried out whether or not somebody waits for the answer, so it is given by a task
    // of its own: a client that leaves does not leave half of it.
    let given = tokio::spawn(core.parts.tables.order(&pipeline, order));
    let answer = given.await.map_err(|error| {
        let text = format!("the order ended without an answer: {error}; the list shows whether it is stored");
        let outcome = Some(RefusedOutcome::Unresolved);
        Problem::from(Refusal { outcome, ..Refusal::new(IngestCode::Draining, text) })
    })?;
    Ok(json_response(StatusCode::OK, &answer.map_err(Problem::from)?))
}

async fn body_of(body: Body) -> Result<Bytes, Problem> {
    let mut body = std::pin::pin!(body);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| syntax("the body was cut short"))?.into_data() else { continue };
        if bytes.len() + data.len() > BODY_BYTES_MAX {
            let text = format!("an order is larger than {BODY_BYTES_MAX} bytes: it is a command and a table");
            return Err(Problem::from(Refusal::new(IngestCode::CallTooLarge, text)).with_limit(BODY_BYTES_MAX as u64));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// An order is sent as JSON whatever its content type says: there is no other form of it.
fn order_of(body: &[u8]) -> Result<TableOrder, Problem> {
    const FORM: &str =
        "expected {\"command\": \"park\", \"table\": \"public.orders\"}, or \"all\": true in place of a table";
    let sent: Sent =
        serde_json::from_slice(body).map_err(|error| syntax(format!("the order does not parse: {error}; {FORM}")))?;
    let Sent { command, table, all, rehearsal: is_rehearsal } = sent;
    match (&table, all) {
        (None, false) => Err(syntax(format!("`{}` names no table: {FORM}", shown(&command)))),
        (Some(table), true) => Err(syntax(format!("`{}` is one table and `all` is every one: {FORM}", shown(table)))),
        _ => Ok(TableOrder { command, table, is_rehearsal }),
    }
}

impl From<TablesRefusal> for Problem {
    fn from(refusal: TablesRefusal) -> Self {
        let TablesRefusal { code, name, kind, retry, text, is_unknown } = refusal;
        let problem = Problem::named(code, name, kind, retry, text);
        if is_unknown { problem.with_status(StatusCode::NOT_FOUND) } else { problem }
    }
}
