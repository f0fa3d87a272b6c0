//! What became of a request's records, as status and JSON (G37). Never 202.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use landfall_channel::PublishOutcome;
use landfall_types::{Durability, PartitionId};
use serde_json::{Map, Value, json};

use crate::http::Problem;
use crate::meters::Outcome;

/// One unit, with the places of its records in the request.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) partition: PartitionId,
    pub(crate) places: Vec<usize>,
    pub(crate) outcome: PublishOutcome,
}

/// What the request asked for and was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// A position for each record.
    pub(crate) each: bool,
    pub(crate) records: usize,
    /// Every unit had a key.
    pub(crate) keyed: bool,
}

impl Group {
    pub(crate) fn meter(&self) -> Outcome {
        match &self.outcome {
            PublishOutcome::Committed(committed) if committed.duplicate => Outcome::Duplicate,
            PublishOutcome::Committed(_) => Outcome::Committed,
            PublishOutcome::NotStored(_) => Outcome::NotStored,
            PublishOutcome::Unresolved(_) => Outcome::Unresolved,
        }
    }

    fn json(&self) -> Value {
        let mut members = Map::new();
        members.insert("partition".into(), json!(self.partition));
        members.insert("records".into(), json!(self.places.len()));
        match &self.outcome {
            PublishOutcome::Committed(committed) => {
                members.insert("first_offset".into(), json!(committed.first));
                members.insert("outcome".into(), json!("committed"));
                members.insert("duplicate".into(), json!(committed.duplicate));
            }
            PublishOutcome::NotStored(not_stored) => {
                members.insert("outcome".into(), json!("not_stored"));
                members.insert("code".into(), json!(landfall_types::Coded::code(&not_stored.error)));
            }
            PublishOutcome::Unresolved(unresolved) => {
                members.insert("outcome".into(), json!("unresolved"));
                members.insert("reference".into(), json!(unresolved.reference.to_string()));
            }
        }
        Value::Object(members)
    }

    /// Why the group is not committed.
    fn problem(&self) -> Option<Problem> {
        match &self.outcome {
            PublishOutcome::Committed(_) => None,
            PublishOutcome::NotStored(not_stored) => Some(Problem::of(&not_stored.error)),
            PublishOutcome::Unresolved(unresolved) => {
                Some(Problem::of(&unresolved.cause).with_reference(unresolved.reference.to_string()))
            }
        }
    }

    /// The worse, the greater: something unresolved, then a refusal that may pass, then one that will not.
    fn badness(&self) -> u8 {
        match self.problem() {
            None => 0,
            Some(problem) if problem.is_unresolved() => 3,
            Some(problem) if problem.status().is_server_error() => 2,
            Some(_) => 1,
        }
    }
}

/// The answer. The worst outcome gives the status, and the groups say the rest.
pub(crate) fn response(durability: Durability, wanted: Wanted, groups: Vec<Group>) -> Response {
    let mut members = Map::new();
    let outcome_of = |word: &str| json!(word);
    members.insert("durability".into(), json!(durability));
    members.insert("records".into(), json!(wanted.records));
    let duplicates: usize = groups
        .iter()
        .filter(|group| group.outcome.committed().is_some_and(|committed| committed.duplicate))
        .map(|group| group.places.len())
        .sum();
    members.insert("duplicates".into(), json!(duplicates));
    members.insert("groups".into(), groups.iter().map(Group::json).collect());
    members.insert("retry_safe".into(), json!(wanted.keyed));
    if wanted.each {
        members.insert("positions".into(), positions(wanted.records, &groups));
    }
    let worst = groups.iter().max_by_key(|group| group.badness()).and_then(Group::problem);
    if let Some(problem) = worst {
        return problem.response_with(members);
    }
    members.insert("outcome".into(), outcome_of("committed"));
    let mut response = Response::new(Body::from(Value::Object(members).to_string()));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The position of each record in the order of the request; null where it is not committed.
fn positions(records: usize, groups: &[Group]) -> Value {
    let mut positions = vec![Value::Null; records];
    for group in groups {
        let Some(committed) = group.outcome.committed() else { continue };
        for (index, place) in group.places.iter().enumerate() {
            if let Some(position) = positions.get_mut(*place) {
                *position =
                    json!({"partition": group.partition, "offset": committed.first.get().saturating_add(index as u64)});
            }
        }
    }
    Value::Array(positions)
}
