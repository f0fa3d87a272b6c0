//! Tickets.
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::PublishOutcome;

/// A publish waiting for its outcome. Dropping it withdraws what is not taken up yet.
#[derive(Debug)]
#[must_use = "a ticket that is dropped withdraws its publish"]
pub struct Ticket {
    never: std::convert::Infallible,
}

impl Future for Ticket {
    type Output = PublishOutcome;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<PublishOutcome> {
        match self.never {}
    }
}
