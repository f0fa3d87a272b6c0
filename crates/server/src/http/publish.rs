//! `POST /v1/channels/{channel}/records` (G35–G37).
//!
//! The whole request is checked first. Records of one partition are one unit; with keys of their own, each record
//! is. The publish runs on its own task: a client that hangs up cancels nothing that is claimed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::future::join_all;
use http::HeaderMap;
use landfall_channel::{Channel, PublishOptions, Record, UnresolvedCause};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::{Code, Kind, PartitionId, Retry};
use tokio::task::JoinError;

use crate::core::{Core, is_of_a_pipeline, shown};
use crate::http::outcome::{self, Group, Wanted};
use crate::http::query::Parameters;
use crate::http::{Problem, body, channel, records, syntax};
use crate::memory::Account;
use crate::meters::Outcome;

/// Publishes a request's records and tells what became of them.
pub(crate) async fn publish(
    State(core): State<Arc<Core>>,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    core.refuse_when_draining()?;
    let channel = channel(&core, &name)?;
    if is_of_a_pipeline(&name) {
        let text = format!("`{}` holds dead letters, which their pipeline alone writes", shown(&name));
        return Err(Problem::from(Refusal::new(IngestCode::PermissionDenied, text)));
    }
    let (parts, sent) = request.into_parts();
    let mut parameters = Parameters::of(parts.uri.query())?;
    let fields = records::Fields::of(&mut parameters)?;
    let each = match parameters.take("positions").as_deref() {
        None => false,
        Some("each") => true,
        Some(_) => return Err(syntax("`positions`: expected `each`")),
    };
    parameters.finish()?;
    let request_key = request_key(&parts.headers)?;
    let body::Received { bytes, account } = body::receive(&core, &parts.headers, sent).await?;
    let records = records::parse(&channel, &parts.headers, &fields, bytes).await.inspect_err(|_| {
        core.meters.received.increment(1);
        core.meters.records(Outcome::Refused, 1);
    })?;
    let plan = Plan::of(&core, &channel, records, request_key)?;
    let wanted = Wanted { each, records: plan.count, keyed: plan.keyed };
    let published = tokio::spawn(carry_out(core, channel.clone(), plan, account)).await;
    let groups = published.map_err(|lost| without_word(&lost))?;
    Ok(outcome::response(channel.durability(), wanted, groups))
}

/// The publish's task ended by a panic, or with the runtime. What it had handed over may be committed (I3).
fn without_word(lost: &JoinError) -> Problem {
    tracing::error!(cause = %lost, "a publish ended without telling its outcome");
    Problem::of(&UnresolvedCause::CommitterLost).with_text(
        "the publish ended without telling its outcome, and records of it may be stored: retry with the same key",
    )
}

/// `Idempotency-Key`, without its quotes.
fn request_key(headers: &HeaderMap) -> Result<Option<Bytes>, Problem> {
    if headers.contains_key("landfall-key-since") || headers.contains_key("landfall-absent-token") {
        // Passing over them would risk the second record that they are there to prevent.
        let text = "`Landfall-Key-Since` and `Landfall-Absent-Token` are not offered by this version";
        return Err(Refusal::new(IngestCode::NotOffered, text).into());
    }
    let mut values = headers.get_all("idempotency-key").into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = || syntax("`Idempotency-Key`: expected 1 to 200 visible ASCII characters, once");
    if values.next().is_some() {
        return Err(wrong());
    }
    let text = value.as_bytes();
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    if !(1..=200).contains(&text.len()) || !text.iter().all(u8::is_ascii_graphic) {
        return Err(wrong());
    }
    Ok(Some(Bytes::copy_from_slice(text)))
}

/// Which records go where, as which units.
#[derive(Debug)]
struct Plan {
    /// Per partition, the records with their places in the request.
    partitions: BTreeMap<PartitionId, (Vec<usize>, Vec<Record>)>,
    /// Each record is a unit of its own.
    singles: bool,
    /// Every unit has a key, so that the request may be made again.
    keyed: bool,
    count: usize,
}

impl Plan {
    fn of(core: &Core, channel: &Channel, records: Vec<Record>, request_key: Option<Bytes>) -> Result<Plan, Problem> {
        let count = records.len();
        let singles = records.iter().any(|record| record.idempotency_key.is_some());
        if singles {
            let limit = core.limits().max_keyed_records;
            if count as u64 > limit {
                let text =
                    format!("{count} records with keys of their own, `server.ingest.max_keyed_records` is {limit}");
                return Err(Problem::from(Refusal::new(IngestCode::CallTooLarge, text)).with_limit(limit));
            }
            if request_key.is_some() {
                return Err(syntax(
                    "`Idempotency-Key` names one unit, and the records have keys of their own: use one of both",
                ));
            }
        }
        // Records without a key of their own rotate together: one partition for all of them.
        let mut together = None;
        let mut partitions: BTreeMap<PartitionId, (Vec<usize>, Vec<Record>)> = BTreeMap::new();
        for (place, record) in records.into_iter().enumerate() {
            let routed_by = record.key.as_deref().or(record.idempotency_key.as_deref());
            let partition = match routed_by {
                Some(key) => channel.partition_for(Some(key)),
                None => *together.get_or_insert_with(|| channel.partition_for(request_key.as_deref())),
            };
            let (places, group) = partitions.entry(partition).or_default();
            places.push(place);
            group.push(record);
        }
        if request_key.is_some() && partitions.len() > 1 {
            let text = format!(
                "the record keys of this request lead to {} partitions, and one idempotency key names one unit",
                partitions.len()
            );
            return Err(Refusal::new(IngestCode::KeySpansPartitions, text).into());
        }
        let keyed = singles || request_key.is_some();
        if let (Some(key), Some((_, group))) = (request_key, partitions.values_mut().next())
            && let Some(first) = group.first_mut()
        {
            first.idempotency_key = Some(key);
        }
        let plan = Plan { partitions, singles, keyed, count };
        if !singles {
            plan.check_batches(channel)?;
        }
        Ok(plan)
    }

    /// Whether each partition's records fit one batch; found here, before another partition's are published.
    fn check_batches(&self, channel: &Channel) -> Result<(), Problem> {
        const BATCH_TOO_LARGE: Code = Code::new("CH", 2);
        let limits = &channel.options().limits;
        for (partition, (_, group)) in &self.partitions {
            let bytes: usize = group.iter().map(crate::stream::encoded_len).sum();
            let bounds = [
                ("records", group.len() as u64, u64::from(limits.batch_records)),
                ("bytes", bytes as u64, limits.batch_bytes.get()),
            ];
            for (what, value, limit) in bounds {
                if value > limit {
                    let text = format!(
                        "{value} {what} for partition {partition}, the limit of a batch is {limit}: send fewer at a time"
                    );
                    return Err(Problem::coded(BATCH_TOO_LARGE, Kind::Invalid, Retry::Never, text).with_limit(limit));
                }
            }
        }
        Ok(())
    }
}

async fn carry_out(core: Arc<Core>, channel: Channel, plan: Plan, account: Arc<Account>) -> Vec<Group> {
    let options = |partition| PublishOptions {
        partition: Some(partition),
        deadline: Some(core.limits().commit_wait),
        ..PublishOptions::default()
    };
    core.meters.received.increment(plan.count as u64);
    core.meters.in_flight.increment(plan.count as f64);
    let singles = plan.singles;
    let published = join_all(plan.partitions.into_iter().map(|(partition, (places, records))| {
        let (channel, options) = (&channel, options(partition));
        core.meters.bytes.increment(records.iter().map(|record| record.payload.len() as u64).sum());
        async move {
            if singles {
                let outcomes = channel.publish_group(records, options).await;
                let groups = outcomes.into_iter().zip(places);
                groups.map(|(outcome, place)| Group { partition, places: vec![place], outcome }).collect()
            } else {
                vec![Group { partition, places, outcome: channel.publish_batch(records, options).await }]
            }
        }
    }))
    .await;
    drop(account);
    let groups: Vec<Group> = published.into_iter().flatten().collect();
    for group in &groups {
        core.meters.in_flight.decrement(group.places.len() as f64);
        core.meters.records(group.meter(), group.places.len() as u64);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch "not stored" for records that a publish had handed over before its task died (I3).
    #[tokio::test]
    async fn a_publish_whose_task_died_is_unresolved() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let lost = task.await.expect_err("it was aborted");
        let problem = without_word(&lost);
        assert!(problem.is_unresolved());
        assert_eq!(problem.status(), http::StatusCode::SERVICE_UNAVAILABLE);
    }
}
