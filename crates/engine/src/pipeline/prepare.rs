//! What happens before threads exist in a run: sinks are planned and opened, and say what they hold; stored positions
//! are read. A destination that is down or refuses is waited for, whatever it takes (F-L12).

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use landfall_state::StateHandle;

use super::SinkPart;
use crate::codes;
use crate::contract::{Guarantee, PipelineId, PlanCx, PlanError, Positions, SinkError, SinkIdentity, SinkPlan};
use crate::core::FailCause;
use crate::positions::{Stored, read};

/// A sink that is open.
pub(super) struct OpenSink {
    pub(super) part: SinkPart,
    pub(super) plan: SinkPlan,
    pub(super) identity: SinkIdentity,
    pub(super) committed: Option<Positions>,
}

/// Why a run cannot begin yet.
#[derive(Debug)]
pub(crate) struct NotYet {
    pub(crate) at: String,
    pub(crate) cause: FailCause,
    /// Only a human or a repaired destination helps; else it is passing.
    pub(crate) is_blocked: bool,
    pub(crate) after: Option<Duration>,
}

fn not_yet(at: &str, error: &SinkError) -> NotYet {
    let (is_blocked, after) = match error {
        SinkError::Later { after, .. } => (false, *after),
        SinkError::Unknown { .. } => (false, None),
        SinkError::Destination { .. } | SinkError::Row { .. } | SinkError::Superseded { .. } => (true, None),
    };
    NotYet { at: at.to_owned(), cause: FailCause::new(error.code(), error.to_string()), is_blocked, after }
}

/// How long a sink may take to answer before it counts as down.
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub(super) async fn answered<T>(at: &str, call: impl Future<Output = Result<T, SinkError>>) -> Result<T, NotYet> {
    match tokio::time::timeout(ANSWER_MAX, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(not_yet(at, &error)),
        Err(_) => Err(NotYet {
            at: at.to_owned(),
            cause: FailCause::new(codes::ATTEMPT_TIMEOUT, format!("no answer within {ANSWER_MAX:?}")),
            is_blocked: false,
            after: None,
        }),
    }
}

/// What a sink plans.
pub(super) async fn planned(
    place: &str,
    plan: impl Future<Output = Result<SinkPlan, PlanError>>,
) -> Result<SinkPlan, NotYet> {
    let at = place.to_owned();
    match tokio::time::timeout(ANSWER_MAX, plan).await {
        Ok(Ok(plan)) => Ok(plan),
        Ok(Err(error)) => {
            let cause = FailCause::new(error.code, error.text);
            Err(NotYet { at, cause, is_blocked: true, after: None })
        }
        Err(_) => {
            let cause = FailCause::new(codes::ATTEMPT_TIMEOUT, format!("no answer within {ANSWER_MAX:?}"));
            Err(NotYet { at, cause, is_blocked: false, after: None })
        }
    }
}

/// Opens one sink. `before`: which destination it was when its positions were stored.
pub(super) async fn open(
    part: &SinkPart,
    rows: &SchemaRef,
    cx: &PlanCx,
    before: Option<SinkIdentity>,
) -> Result<OpenSink, NotYet> {
    let place = format!("sink {}", part.name);
    let plan = planned(&place, part.sink.plan(rows, cx)).await?;
    let identity = match &before {
        Some(before) => answered(&place, part.sink.open_again(&plan, cx, before)).await?,
        None => answered(&place, part.sink.open(&plan, cx)).await?,
    };
    let committed = match part.sink.guarantee() {
        Guarantee::Positions => Some(answered(&place, part.sink.committed_positions(cx)).await?),
        _ => None,
    };
    Ok(OpenSink { part: part.clone(), plan, identity, committed })
}

/// Reads stored positions off the async threads.
pub(super) async fn stored(state: &StateHandle, pipeline: &PipelineId, identity: &Arc<str>) -> Result<Stored, NotYet> {
    let (state, pipeline, identity) = (state.clone(), pipeline.clone(), identity.clone());
    let reading = tokio::task::spawn_blocking(move || read(&state, &pipeline, &identity)).await;
    let result = reading.unwrap_or_else(|error| {
        Err(FailCause::new(codes::STATE_UNREADABLE, format!("reading stored positions failed: {error}")))
    });
    result.map_err(|cause| NotYet { at: "positions".to_owned(), cause, is_blocked: true, after: None })
}
