//! Where a partition starts, and the form on disk.

use std::collections::BTreeMap;

use landfall_state::StateStore;
use landfall_types::{Offset, PartitionId, Place, Timestamp};

use super::{Mark, SinkMark, StartAt, Stored, put, put_record, read, skip_unknown, start_at};
use crate::codes;
use crate::contract::{PipelineId, Positions};

const P: PartitionId = PartitionId(3);

fn at(offset: u64) -> Place {
    Place::of(Offset(offset))
}

fn mark(end: u64, held: Option<u64>) -> Mark {
    Mark::new(at(end), held.map(at), Some("t".to_owned()), Timestamp(5))
}

fn stored(marks: &[(&str, Mark)]) -> Stored {
    let marks: BTreeMap<String, Mark> = marks.iter().map(|(name, mark)| ((*name).to_owned(), mark.clone())).collect();
    Stored { marks: BTreeMap::from([(P, marks)]), record: None }
}

fn sink<'a>(name: &'a str, committed: Option<&'a Positions>) -> SinkMark<'a> {
    SinkMark { name, destination: "t", committed }
}

/// Would catch a start behind a sink's unsettled rows, or rows that a sink gets again although it has them.
#[test]
fn reading_starts_at_the_least_and_each_sink_skips_what_it_has() {
    let held = Positions::from([(P, at(120))]);
    let stored = stored(&[("", mark(90, None)), ("a", mark(100, Some(100))), ("b", mark(80, None))]);
    let start = start_at(&stored, P, &[sink("a", Some(&held)), sink("b", None)]).expect("no contradiction");
    assert_eq!(start, Some(StartAt { resume: at(80), skip: vec![at(90), at(120), at(80)] }));
}

/// Would catch a sink that was added later and reads from the beginning, or one that is skipped wholly.
#[test]
fn a_sink_that_was_added_starts_where_the_pipeline_is() {
    let stored = stored(&[("", mark(90, None)), ("a", mark(70, None))]);
    let start = start_at(&stored, P, &[sink("a", None), sink("new", None)]).expect("no contradiction");
    assert_eq!(start, Some(StartAt { resume: at(70), skip: vec![at(90), at(70), at(70)] }));
}

/// Would catch a lost state file that starts in the middle, or writes into a table again what it has.
#[test]
fn where_only_the_destination_remembers_its_rows_are_skipped() {
    let held = Positions::from([(P, at(50))]);
    let sinks = [sink("a", Some(&held))];
    assert_eq!(start_at(&Stored::default(), P, &sinks).expect("no contradiction"), None);
    assert_eq!(skip_unknown(P, &sinks), [Place::START, at(50)]);
}

/// Would catch a restored or replaced destination that is silently taken as it is.
#[test]
fn a_destination_that_holds_less_or_is_another_is_refused() {
    let stored = stored(&[("", mark(90, None)), ("a", mark(90, Some(90)))]);
    for held in [Positions::from([(P, at(89))]), Positions::new()] {
        let error = start_at(&stored, P, &[sink("a", Some(&held))]).expect_err("it went back");
        assert_eq!(error.code, codes::POSITION_WENT_BACK);
    }
    let other = SinkMark { name: "a", destination: "u", committed: None };
    let error = start_at(&stored, P, &[other]).expect_err("another destination");
    assert_eq!(error.code, codes::SINK_CHANGED);
    assert!(error.text.contains("`t`") && error.text.contains("`u`"), "{error}");
}

/// Would catch positions that are read back otherwise than they were written, or under another pipeline's name.
#[test]
fn marks_are_read_back_by_pipeline_and_source() {
    let store = StateStore::in_memory().expect("a store");
    let state = store.handle();
    let (mine, other) = (PipelineId("a".to_owned()), PipelineId("a.b".to_owned()));
    let changes = vec![
        put(&mine, "s", P, "", &mark(1, None)).expect("a change"),
        put(&mine, "s", P, "out", &mark(2, Some(3))).expect("a change"),
        put(&other, "s", P, "out", &mark(9, None)).expect("a change"),
        put_record(&mine, "s", bytes::Bytes::from_static(b"own")),
    ];
    state.commit_blocking(changes, state.owner()).expect("stored");
    let back = read(&state, &mine, "s").expect("read");
    assert_eq!(back.marks[&P], BTreeMap::from([(String::new(), mark(1, None)), ("out".to_owned(), mark(2, Some(3)))]));
    assert_eq!(back.record.as_deref(), Some(&b"own"[..]));
    let changed = read(&state, &mine, "another").expect_err("another source");
    assert_eq!(changed.code, codes::SOURCE_CHANGED);
}

/// Would catch a form on disk that changes without a new version (`docs/formats/watermarks.md`).
#[test]
fn golden_marks_open() {
    let golden = include_str!("../../../../docs/formats/golden/watermark-v1.json");
    let read: Mark = serde_json::from_str(golden.trim()).expect("the golden file");
    let expected = Mark::new(
        Place { at: 1200, within: 0 },
        Some(Place { at: 1200, within: 0 }),
        Some("8d4a5e9e-6f6e-4bb4-9a53-1f0e6f3f0a11".to_owned()),
        Timestamp(1_764_500_000_000_000),
    );
    assert_eq!(read, expected);
    assert_eq!(serde_json::to_string(&expected).expect("text"), golden.trim());
}

/// Would catch a damaged or newer value that is skipped, so that reading starts from the beginning.
#[test]
fn a_value_that_cannot_be_read_stops_the_pipeline() {
    for value in [&b"{"[..], br#"{"v":2,"end":{"at":1,"within":0},"held":null,"destination":null,"at":0}"#] {
        let store = StateStore::in_memory().expect("a store");
        let state = store.handle();
        let id = PipelineId("a".to_owned());
        let mut change = put(&id, "s", P, "", &mark(1, None)).expect("a change");
        change.value = Some(bytes::Bytes::copy_from_slice(value));
        state.commit_blocking(vec![change], state.owner()).expect("stored");
        assert_eq!(read(&state, &id, "s").expect_err("unreadable").code, codes::STATE_UNREADABLE);
    }
}
