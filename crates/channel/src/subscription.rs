//! Subscriptions.
use landfall_types::{Offset, Timestamp};

use crate::{Delivered, ReadError};

/// Where a reader starts (C58).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the log start.
    Earliest,
    /// At the visible tail of this moment.
    Latest,
    /// At an offset, at most the tail.
    Offset(Offset),
    /// At the first record whose append time is not before this.
    Time(Timestamp),
}

/// How a subscription reads.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeOptions {
    /// Records of one page.
    pub records: u32,
    /// Bytes of one page; one larger record comes alone.
    pub bytes: usize,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions { records: 1_024, bytes: 1 << 20 }
    }
}

/// A reader of one partition, from its cursor on, without a gap (I2).
#[derive(Debug)]
pub struct Subscription {
    never: std::convert::Infallible,
}

impl Subscription {
    /// The next page; waits at the tail. After an error that names a range, the next call goes on behind it. `None`:
    /// the channels are closed.
    pub async fn next(&mut self) -> Option<Result<Vec<Delivered>, ReadError>> {
        match self.never {}
    }
    /// The offset of the next record.
    pub fn cursor(&self) -> Offset {
        match self.never {}
    }
}
