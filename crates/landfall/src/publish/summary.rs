//! What became of everything that was published, by what the server's answers say of each unit.
//!
//! One request is answered by one status and may hold units with different outcomes, and it may take several tries.
//! A record counts as not stored only if no try can have stored it (I3).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::endpoint::EndpointError;

/// What became of everything that was published.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) committed: u64,
    pub(super) duplicates: u64,
    pub(super) not_stored: u64,
    pub(super) unresolved: u64,
    #[serde(serialize_with = "positions")]
    pub(super) positions: BTreeMap<u64, Positions>,
    pub(super) references: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Positions {
    pub(super) partition: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) records: u64,
}

fn positions<S: serde::Serializer>(map: &BTreeMap<u64, Positions>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map.values())
}

/// One unit of a request, by an answer.
#[derive(Debug, Clone)]
struct Unit {
    partition: u64,
    first: u64,
    records: u64,
    fate: Fate,
    duplicate: bool,
    reference: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Committed,
    NotStored,
    Unresolved,
}

fn units(answer: &Value) -> Vec<Unit> {
    let groups = answer.get("groups").and_then(Value::as_array);
    let unit = |group: &Value| {
        let number = |key: &str| group.get(key).and_then(Value::as_u64).unwrap_or(0);
        Unit {
            partition: number("partition"),
            first: number("first_offset"),
            records: number("records"),
            fate: match group.get("outcome").and_then(Value::as_str) {
                Some("committed") => Fate::Committed,
                Some("not_stored") => Fate::NotStored,
                // A word that is not known here promises nothing either way.
                _ => Fate::Unresolved,
            },
            duplicate: group.get("duplicate").and_then(Value::as_bool) == Some(true),
            reference: group.get("reference").and_then(Value::as_str).map(str::to_owned),
        }
    };
    groups.into_iter().flatten().map(unit).collect()
}

/// What the failed tries of one request have told, taken together.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By the last answer that had any.
    units: Vec<Unit>,
    /// A try may have stored records that no later word speaks for.
    in_doubt: bool,
    reference: Option<String>,
}

impl Told {
    /// Takes in a try that was not answered by 200.
    pub(super) fn hear(&mut self, error: &EndpointError) {
        let problem = match error {
            // Never sent.
            EndpointError::Address { .. } | EndpointError::Unreachable { may_have_arrived: false, .. } => return,
            EndpointError::Unreachable { .. } => {
                self.in_doubt = true;
                return;
            }
            EndpointError::Refused { problem, .. } => problem,
        };
        let units = units(problem);
        if units.is_empty() {
            if problem.get("outcome").and_then(Value::as_str) == Some("unresolved") {
                self.in_doubt = true;
                self.reference = problem.get("reference").and_then(Value::as_str).map(str::to_owned);
            }
            return;
        }
        // What an earlier try stored, a later one may be refused: it is stored all the same.
        self.in_doubt |= self.units.iter().any(|unit| unit.fate != Fate::NotStored);
        self.units = units;
    }
}

impl Summary {
    /// Counts a request that was answered by 200: everything in it is committed.
    pub(super) fn count_committed(&mut self, body: &[u8], records: u64) {
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        self.committed += records;
        for unit in units(&answer) {
            self.place(&unit, unit.records.min(records));
        }
    }

    /// Counts a request that was given up: by its units where an answer told of them, else as one.
    pub(super) fn count_refused(&mut self, told: Told, records: u64) {
        let mut left = records;
        let mut unstored = 0;
        for unit in &told.units {
            // An answer cannot make more of a request than it held.
            let count = unit.records.min(left);
            left -= count;
            match unit.fate {
                Fate::Committed => {
                    self.committed += count;
                    self.place(unit, count);
                }
                Fate::NotStored => unstored += count,
                Fate::Unresolved => {
                    self.unresolved += count;
                    self.references.extend(unit.reference.clone());
                }
            }
        }
        match told.units.is_empty() {
            true => unstored = left,
            // Units that do not add up to the request leave the rest without a word.
            false => self.unresolved += left,
        }
        if told.in_doubt {
            self.unresolved += unstored;
            self.references.extend(told.reference);
        } else {
            self.not_stored += unstored;
        }
    }

    fn place(&mut self, unit: &Unit, records: u64) {
        if records == 0 {
            return;
        }
        if unit.duplicate {
            self.duplicates += records;
        }
        let (partition, first) = (unit.partition, unit.first);
        let last = first.saturating_add(records - 1);
        let entry = self.positions.entry(partition).or_insert(Positions { partition, first, last, records: 0 });
        entry.first = entry.first.min(first);
        entry.last = entry.last.max(last);
        entry.records += records;
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    fn refused(status: u16, problem: Value) -> EndpointError {
        let status = StatusCode::from_u16(status).expect("a status");
        EndpointError::Refused { url: String::new(), status, detail: String::new(), problem }
    }

    fn cut() -> EndpointError {
        let cause = "the connection was cut".to_owned();
        EndpointError::Unreachable { url: String::new(), cause, may_have_arrived: true }
    }

    fn no_connection() -> EndpointError {
        let cause = "connection refused".to_owned();
        EndpointError::Unreachable { url: String::new(), cause, may_have_arrived: false }
    }

    /// Committed, not stored, unresolved.
    fn counted(tries: &[EndpointError], records: u64) -> (u64, u64, u64) {
        let mut told = Told::default();
        tries.iter().for_each(|error| told.hear(error));
        let mut summary = Summary::default();
        summary.count_refused(told, records);
        (summary.committed, summary.not_stored, summary.unresolved)
    }

    fn group(outcome: &str, records: u64) -> Value {
        json!({"partition": 1, "records": records, "first_offset": 5, "outcome": outcome, "duplicate": false})
    }

    /// Would catch committed records that are told as not stored because one beside them was refused.
    #[test]
    fn a_refused_unit_leaves_the_count_of_the_committed_ones_as_it_is() {
        let groups = json!([group("committed", 999), group("not_stored", 1)]);
        let partly = json!({"outcome": "not_stored", "groups": groups});
        assert_eq!(counted(&[refused(400, partly.clone())], 1000), (999, 1, 0));
        // A later answer without units says nothing against what was committed.
        let draining = json!({"outcome": "not_stored"});
        assert_eq!(counted(&[refused(503, partly), refused(503, draining)], 1000), (999, 1, 0));
        let unclear = json!({"outcome": "unresolved", "groups": [group("not_stored", 2), group("unresolved", 3)]});
        assert_eq!(counted(&[refused(503, unclear)], 6), (0, 2, 4));
    }

    /// Would catch "not stored" for records that an earlier try, whose answer was lost, may have stored (I3).
    #[test]
    fn after_a_lost_answer_only_a_commit_ends_the_doubt() {
        let draining = || refused(503, json!({"outcome": "not_stored"}));
        assert_eq!(counted(&[draining(), draining()], 7), (0, 7, 0));
        assert_eq!(counted(&[cut(), draining()], 7), (0, 0, 7));
        // Without a connection nothing was sent; after a lost answer that is no comfort.
        assert_eq!(counted(&[no_connection(), no_connection()], 7), (0, 7, 0));
        assert_eq!(counted(&[cut(), no_connection()], 7), (0, 0, 7));
        assert_eq!(counted(&[refused(503, json!({"outcome": "unresolved"})), draining()], 7), (0, 0, 7));
        let partly = json!({"outcome": "not_stored", "groups": [group("committed", 4), group("not_stored", 3)]});
        assert_eq!(counted(&[cut(), refused(503, partly.clone())], 7), (4, 0, 3));
        let none = json!({"outcome": "not_stored", "groups": [group("not_stored", 4), group("not_stored", 3)]});
        assert_eq!(counted(&[refused(503, partly), refused(503, none)], 7), (0, 0, 7));
    }

    /// Would catch an answer of a strange server that overflows a count or makes more records than were sent.
    #[test]
    fn an_answer_makes_no_more_of_a_request_than_it_held() {
        let most = json!({"partition": 0, "records": u64::MAX, "first_offset": u64::MAX, "outcome": "committed"});
        assert_eq!(counted(&[refused(400, json!({"groups": [most.clone(), most]}))], 3), (3, 0, 0));
        assert_eq!(counted(&[refused(400, json!({"groups": [{}, 7, null]}))], 3), (0, 0, 3));
    }
}
