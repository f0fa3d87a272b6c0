//! A stream's counts and states at one moment.

use std::time::Duration;

use crate::admission::StreamState;
use crate::capacity::Standing;
use crate::error::Load;
use crate::id::AckDurability;
use crate::sub_stream::Flow;

/// A stream at one moment.
#[derive(Clone, Debug)]
pub struct StreamSnapshot {
    /// What it takes.
    pub state: StreamState,
    /// What is admitted and not acknowledged.
    pub in_flight: Load,
    /// How much may be.
    pub limits: Load,
    /// Calls that wait for room.
    pub capacity_waiters: usize,
    /// Its sub-streams; a single stream has one.
    pub sub_streams: Vec<SubStreamSnapshot>,
}

/// How a sub-stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubStreamState {
    /// Sending.
    Open,
    /// The peer announced the end of its stream: acknowledgements are awaited, nothing is sent.
    Paused,
    /// Reconnecting.
    Recovering,
    /// No progress for the whole recovery budget; tried at the slowest pace.
    Lost,
    /// Ended.
    Stopped,
}

impl SubStreamState {
    pub(crate) fn of(stopped: bool, flow: Flow, standing: Standing) -> Self {
        match (stopped, standing, flow) {
            (true, ..) => SubStreamState::Stopped,
            (false, Standing::Open, Flow::Paused) => SubStreamState::Paused,
            (false, Standing::Open, _) => SubStreamState::Open,
            (false, Standing::Recovering, _) => SubStreamState::Recovering,
            (false, Standing::Lost, _) => SubStreamState::Lost,
        }
    }
}

/// A sub-stream at one moment. Counts run since the stream was opened.
#[derive(Clone, Debug)]
pub struct SubStreamSnapshot {
    /// Which.
    pub sub_stream: u16,
    /// How it stands.
    pub state: SubStreamState,
    /// The stream offset of the next call.
    pub next_offset: u64,
    /// Every call below it is acknowledged.
    pub acked_below: u64,
    /// Calls that are not.
    pub unacked_calls: u64,
    /// Records admitted.
    pub admitted_records: u64,
    /// Records acknowledged.
    pub acked_records: u64,
    /// Records taken back after the end.
    pub taken_back_records: u64,
    /// Records admitted that have met no end yet.
    pub in_flight_records: u64,
    /// Records of them that are not handed to the present connection.
    pub queued_records: u64,
    /// Records sent more than once: each may be stored more than once.
    pub resent_records: u64,
    /// Frames sent.
    pub frames: u64,
    /// Acknowledgements that said nothing new.
    pub ignored_acks: u64,
    /// Attempts to reconnect.
    pub reconnects: u64,
    /// Since the oldest unacknowledged frame was sent.
    pub oldest_unacked_age: Option<Duration>,
    /// The weakest durability class of any acknowledgement so far.
    pub durability: Option<AckDurability>,
}
