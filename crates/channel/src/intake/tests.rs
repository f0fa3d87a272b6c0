use bytes::Bytes;
use landfall_log::{Codec, Tag, UnitBody};
use landfall_types::Coded;

use super::*;
use crate::error::ch;
use crate::ticket::TicketCell;

pub(crate) fn unit(bytes: usize) -> QueuedUnit {
    let body = UnitBody::new(Tag::None, Codec::None, Bytes::from(vec![0u8; bytes]), 1);
    let now = Instant::now();
    let deadline = Duration::from_secs(10);
    Arc::new(Queued {
        cell: TicketCell::new(),
        bytes: body.encoded_len(),
        body,
        chain: None,
        expect: None,
        key: None,
        sequences: None,
        admitted: now,
        expires: now + deadline,
        deadline,
    })
}

fn intake(items: u32, process: &ProcessBudget) -> Intake {
    let limits = QueueLimits { items, ..QueueLimits::default() };
    let none = Counter::noop;
    let counts = Counts { accepted: none(), in_flight: Gauge::noop(), items: none(), bytes: none() };
    Intake::new(PartitionId(0), limits, Admission::Wait, process.clone(), counts)
}

async fn offer(intake: &Intake, bytes: usize, patience: Duration) -> Result<(), PublishError> {
    let by = Instant::now() + patience;
    let tried = intake.try_hand_over(Handover::One(unit(bytes)));
    intake.wait_to_hand_over(tried, by, patience).await.map(|_| ()).map_err(|(error, _)| error)
}

const SOON: Duration = Duration::from_millis(30);
const LATE: Duration = Duration::from_secs(20);

/// Catches a waiter that is overtaken, one that keeps its place after it has left, and room that leaks with it (I10).
#[tokio::test(flavor = "multi_thread")]
async fn room_is_given_in_line_and_who_leaves_frees_the_place() {
    let process = ProcessBudget::new(1 << 20);
    let intake = Arc::new(intake(2, &process));
    offer(&intake, 10, SOON).await.unwrap();
    offer(&intake, 10, SOON).await.unwrap();
    let refused = offer(&intake, 10, SOON).await.unwrap_err();
    assert_eq!(refused.code(), ch(21));
    let waiting = {
        let intake = Arc::clone(&intake);
        tokio::spawn(async move { offer(&intake, 10, LATE).await })
    };
    while intake.inside.lock().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    let behind = {
        let intake = Arc::clone(&intake);
        tokio::spawn(async move { offer(&intake, 10, LATE).await })
    };
    while intake.inside.lock().waiting.len() < 2 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.is_err());
    let mut claimed = Vec::new();
    let room = |records, bytes| TurnRoom { records, bytes, is_untouched: true };
    assert!(intake.claim(&mut room(1, 1), &mut claimed), "the second one does not fit");
    assert_eq!(claimed.len(), 1, "at least one unit is claimed");
    let (cost, permits) = (claimed[0].1.cost(), claimed[0].1.permits(process.total()));
    intake.release(1, cost, permits);
    behind.await.unwrap().unwrap();
    let mut rest = Vec::new();
    assert!(!intake.claim(&mut room(u32::MAX, usize::MAX), &mut rest));
    for (_, unit) in &rest {
        intake.release(1, unit.cost(), unit.permits(process.total()));
    }
    assert!(intake.is_empty());
    assert_eq!(process.used(), 0);
}

/// Catches a partition that cannot go on and fills the process's budget, so that its neighbours wait for it (C21, I13).
#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_partition_leaves_half_of_the_budget_to_others() {
    let process = ProcessBudget::new(100_000);
    let (stuck, neighbour) = (intake(1_000, &process), intake(1_000, &process));
    stuck.set_uncertain(Some(Instant::now()));
    let mut taken = 0;
    let refused = loop {
        match offer(&stuck, 1_000, SOON).await {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), ch(32));
    assert!(taken > 10 && process.used() < 60_000, "{taken} units, {} bytes", process.used());
    offer(&neighbour, 1_000, SOON).await.unwrap();
    stuck.set_uncertain(None);
    offer(&stuck, 1_000, SOON).await.unwrap();
}

/// Catches a closed gate that lets who waits for room run into its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn closing_the_gate_answers_who_waits() {
    let process = ProcessBudget::new(1 << 20);
    let intake = Arc::new(intake(1, &process));
    offer(&intake, 10, SOON).await.unwrap();
    let waiting = {
        let intake = Arc::clone(&intake);
        tokio::spawn(async move { offer(&intake, 10, LATE).await })
    };
    while intake.inside.lock().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    intake.set_gate(Gate::Closed(PublishError::Superseded));
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), ch(35));
}
