use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::Lsn;
use crate::transport::StatusUpdate;

fn rules() -> FeedbackRules {
    FeedbackRules::default()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn sight(received: u64, durable: u64, bytes: u64, is_reading: bool) -> Sight {
    Sight { received: Lsn(received), durable: Lsn(durable), bytes, is_reading }
}

fn update(write: u64, flush: u64, wants_reply: bool) -> StatusUpdate {
    StatusUpdate { write: Lsn(write), flush: Lsn(flush), apply: Lsn(flush), wants_reply }
}

/// P42. Catches a message that does not go out in time, and ones that go out more often than once per second.
#[test]
fn feedback_goes_out_on_move_on_interval_and_on_request() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(rules(), start);
    // The first one at once: the server sees us.
    assert_eq!(core.step(start, sight(5, 3, 1, true)), FeedbackStep::Send(update(5, 3, false)));
    assert_eq!(core.step(start, sight(5, 3, 1, true)), FeedbackStep::Wait(start + secs(10)));
    // It moved: after a second, not before.
    assert_eq!(core.step(start, sight(9, 4, 2, true)), FeedbackStep::Wait(start + secs(1)));
    assert_eq!(core.step(start + secs(1), sight(9, 6, 2, true)), FeedbackStep::Send(update(9, 6, false)));
    assert_eq!(core.step(start + secs(1), sight(9, 7, 3, true)), FeedbackStep::Wait(start + secs(2)));
    // What was received alone moves nothing before the interval.
    let at = start + secs(2);
    assert_eq!(core.step(at, sight(9, 7, 3, true)), FeedbackStep::Send(update(9, 7, false)));
    assert_eq!(core.step(at + secs(9), sight(99, 7, 4, true)), FeedbackStep::Wait(at + secs(10)));
    assert_eq!(core.step(at + secs(10), sight(99, 7, 5, true)), FeedbackStep::Send(update(99, 7, false)));
    // A reply that is wanted goes out at once, and once.
    core.reply_wanted();
    assert_eq!(core.step(at + secs(10), sight(99, 7, 5, true)), FeedbackStep::Send(update(99, 7, false)));
    assert!(matches!(core.step(at + secs(10), sight(99, 7, 5, true)), FeedbackStep::Wait(_)));
    assert_eq!(core.last(at + secs(11), sight(100, 50, 5, true)), update(100, 50, false));
}

/// P42. Catches an interval that the server's patience does not survive, and one of zero.
#[test]
fn the_interval_follows_the_servers_patience() {
    let interval = |timeout| FeedbackRules::new(secs(10), secs(90), timeout).interval;
    assert_eq!(interval(secs(60)), secs(10));
    assert_eq!(interval(secs(6)), secs(2));
    assert_eq!(interval(Duration::ZERO), secs(10));
}

/// P42. Catches feedback that stops because the server never loses patience: its slot would keep its log for ever.
#[test]
fn wal_sender_timeout_zero_still_gets_feedback() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(FeedbackRules::new(secs(10), secs(90), Duration::ZERO), start);
    let mut sent = 0;
    for second in 0..100 {
        if let FeedbackStep::Send(status) = core.step(start + secs(second), sight(second, 0, second, true)) {
            assert_eq!(status.flush, Lsn(0));
            sent += 1;
        }
    }
    assert_eq!(sent, 10);
}

/// P46, P44. Catches what was received, or what a keepalive or a streamed transaction says, on its way to be confirmed.
#[test]
fn the_streaming_lsn_is_never_confirmed() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(rules(), start);
    for second in 0..1_000 {
        core.reply_wanted();
        let FeedbackStep::Send(status) = core.step(start + secs(second), sight(1_000 + second, 40, second, true))
        else {
            panic!("a reply was wanted")
        };
        assert_eq!((status.write, status.flush, status.apply), (Lsn(1_000 + second), Lsn(40), Lsn(40)));
    }
}

/// P48. Catches a dead peer that is waited for without end, and one that is given up without being asked.
#[test]
fn a_silent_peer_is_detected() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(rules(), start);
    let mut asked = Vec::new();
    let mut at = start;
    let silent = loop {
        match core.step(at, sight(1, 1, 0, true)) {
            FeedbackStep::Send(status) if status.wants_reply => asked.push(at - start),
            FeedbackStep::Send(_) => {}
            FeedbackStep::Wait(until) => at = until,
            FeedbackStep::Silent(silent) => break silent,
        }
    };
    assert_eq!((asked, silent), (vec![secs(30)], secs(90)));
    assert_eq!(at - start, secs(90));
}

/// P48. Catches a peer that is called silent although bytes of a large message keep coming.
#[test]
fn a_slow_large_message_is_no_silence() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(rules(), start);
    for second in 0..1_000 {
        let step = core.step(start + secs(second), sight(1, 1, second, true));
        assert!(!matches!(step, FeedbackStep::Silent(_) | FeedbackStep::Send(StatusUpdate { wants_reply: true, .. })));
    }
}

/// P48. Catches a full queue that is taken for a dead peer, and a clock that does not start again after it.
#[test]
fn a_parked_pump_is_not_a_silent_peer() {
    let start = Instant::now();
    let mut core = FeedbackCore::new(rules(), start);
    let mut sent = 0;
    for second in 0..600 {
        match core.step(start + secs(second), sight(1, 1, 7, false)) {
            FeedbackStep::Send(status) => {
                assert!(!status.wants_reply);
                sent += 1;
            }
            FeedbackStep::Wait(_) => {}
            FeedbackStep::Silent(silent) => panic!("silent for {silent:?} while parked"),
        }
    }
    assert_eq!(sent, 60, "feedback goes on");
    let mut at = start + secs(599);
    loop {
        match core.step(at, sight(1, 1, 7, true)) {
            FeedbackStep::Wait(until) => at = until,
            FeedbackStep::Send(_) => {}
            FeedbackStep::Silent(silent) => break assert_eq!(silent, secs(90)),
        }
    }
    assert_eq!(at, start + secs(599 + 90));
}

/// P45. Catches a slot whose log grows for ever because only other tables are written.
#[test]
fn keepalives_move_an_idle_slot() {
    let start = Instant::now();
    let mut advance = KeepAliveAdvance::new(secs(10), Lsn(100));
    let idle = Pending::default();
    assert_eq!(advance.offer(start, Lsn(100), idle), None, "it is there already");
    assert_eq!(advance.offer(start, Lsn(200), idle), Some(Lsn(200)));
    // At most once per interval.
    assert_eq!(advance.offer(start + secs(9), Lsn(300), idle), None);
    assert_eq!(advance.offer(start + secs(10), Lsn(300), idle), Some(Lsn(300)));
    // A commit went further.
    advance.settled(Lsn(500));
    assert_eq!(advance.offer(start + secs(30), Lsn(450), idle), None);
    assert_eq!(advance.offer(start + secs(30), Lsn(501), idle), Some(Lsn(501)));
}

/// P45. Catches a position that is forgotten because its keepalive came too early or while rows were on their way: a
/// server with nothing to say does not repeat it for half a minute, and what waits for the position waits as long.
#[test]
fn a_keepalive_that_came_too_early_moves_the_slot_later() {
    let start = Instant::now();
    let (idle, busy) = (Pending::default(), Pending { has_unacked_rows: true, ..Pending::default() });
    let mut advance = KeepAliveAdvance::new(secs(10), Lsn(100));
    assert_eq!(advance.offer(start, Lsn(200), idle), Some(Lsn(200)));
    assert!(!advance.is_held());
    assert_eq!(advance.offer(start + secs(1), Lsn(300), idle), None);
    assert_eq!(advance.again(start + secs(9), idle), None);
    assert_eq!(advance.again(start + secs(10), idle), Some(Lsn(300)));
    assert_eq!(advance.again(start + secs(30), idle), None, "it is there already");
    assert_eq!(advance.offer(start + secs(40), Lsn(400), busy), None);
    assert_eq!(advance.again(start + secs(41), busy), None);
    assert_eq!(advance.again(start + secs(42), idle), Some(Lsn(400)));
    // Inside a transaction nobody knows whether its end is before the position.
    let inside = Pending { has_open_transaction: true, ..Pending::default() };
    assert_eq!(advance.offer(start + secs(60), Lsn(500), inside), None);
    assert_eq!(advance.again(start + secs(80), idle), None);
}

/// P45, P46. Catches a keepalive that confirms rows that are on their way.
#[test]
fn a_keepalive_with_pending_rows_moves_nothing() {
    let mut advance = KeepAliveAdvance::new(secs(10), Lsn(0));
    for (has_open_transaction, has_unacked_rows) in [(true, false), (false, true), (true, true)] {
        let pending = Pending { has_open_transaction, has_unacked_rows };
        assert_eq!(advance.offer(Instant::now(), Lsn(9), pending), None);
    }
    assert_eq!(advance.offer(Instant::now(), Lsn(9), Pending::default()), Some(Lsn(9)));
}

/// F-P2. Catches an idle captured table that holds the log while its neighbour writes 100 MB: every interval the
/// confirmed position follows the keepalives, through the same floor as commits.
#[test]
fn f_p2_an_idle_table_beside_a_busy_one_frees_the_log() {
    let start = Instant::now();
    let (mut advance, durable) = (KeepAliveAdvance::new(secs(10), Lsn(0)), DurableLsn::new(Lsn(0)));
    let mut core = FeedbackCore::new(rules(), start);
    let (mut held_max, mut confirmed) = (0, 0);
    for second in 0..100u64 {
        let (now, wal_end) = (start + secs(second), second << 20);
        if let Some(through) = advance.offer(now, Lsn(wal_end), Pending::default()) {
            durable.advance(through);
        }
        while let FeedbackStep::Send(status) = core.step(now, sight(wal_end, durable.get().0, second, true)) {
            confirmed = status.flush.0;
        }
        held_max = held_max.max(wal_end - confirmed);
    }
    assert!(held_max <= 12 << 20, "{held_max} bytes held");
}

#[derive(Clone, Debug)]
enum Event {
    Durable(u64),
    Received(u64),
    Bytes,
    Reply,
    Park(bool),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        (0u64..1_000).prop_map(Event::Durable),
        (0u64..1_000).prop_map(Event::Received),
        Just(Event::Bytes),
        Just(Event::Reply),
        any::<bool>().prop_map(Event::Park),
    ];
    proptest::collection::vec((0u64..20_000, event), 1..200)
}

proptest! {
    /// P43, P46. Catches a number that falls within a connection, a flush that nobody made durable, a gap between two
    /// messages above the interval, and a wait that lies in the past.
    #[test]
    fn no_number_ever_falls_and_no_gap_is_too_long(events in events()) {
        let start = Instant::now();
        let mut core = FeedbackCore::new(rules(), start);
        let (mut now, mut sight) = (start, Sight { is_reading: true, ..Sight::default() });
        let (mut durable_max, mut last) = (0, update(0, 0, false));
        let mut sent_at = None;
        for (millis, event) in events {
            let until = now + Duration::from_millis(millis);
            // The shell: step, send or wait until the next event.
            loop {
                match core.step(now, sight) {
                    FeedbackStep::Send(status) => {
                        prop_assert!(status.write >= last.write && status.flush >= last.flush);
                        prop_assert!(status.flush.0 <= durable_max && status.apply == status.flush);
                        if let Some(sent_at) = sent_at {
                            prop_assert!(now - sent_at <= rules().interval);
                        }
                        (last, sent_at) = (status, Some(now));
                    }
                    FeedbackStep::Wait(next) => {
                        prop_assert!(next > now);
                        now = next.min(until);
                        if now == until {
                            break;
                        }
                    }
                    FeedbackStep::Silent(silent) => {
                        prop_assert!(silent >= rules().liveness && sight.is_reading);
                        return Ok(());
                    }
                }
            }
            match event {
                // The atomic only rises; the core must not rely on it.
                Event::Durable(lsn) => {
                    sight.durable = Lsn(lsn);
                    durable_max = durable_max.max(lsn);
                }
                Event::Received(lsn) => sight.received = Lsn(lsn),
                Event::Bytes => sight.bytes += 1,
                Event::Reply => core.reply_wanted(),
                Event::Park(is_parked) => sight.is_reading = !is_parked,
            }
        }
    }
}
