//! The one place where an ingest waits: its stand in the line for room (I10).
//!
//! Bounded by a deadline. A grant that races the deadline is exactly one of the two; a dropped wait leaves no
//! trace, and gives a grant that it never saw to the next in line.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use crate::capacity::{Place, Target, Wait};
use crate::error::Load;
use crate::shared::{Room, Shared};

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The deadline passed.
    Timeout,
    /// The stream has ended.
    Ended,
}

/// Waits in line until `deadline`. `again`: the place that the caller had before.
pub(crate) async fn wait_for_room<'a>(
    shared: &'a Shared,
    target: Target,
    load: Load,
    deadline: Instant,
    again: &mut Option<Place>,
) -> Result<Room<'a>, NoRoom> {
    let mut stand = Stand { shared, target, load, place: None, again: *again };
    let waited = tokio::time::timeout_at(deadline, &mut stand).await;
    *again = stand.again;
    let granted = match waited {
        Ok(outcome) => outcome?,
        Err(_) => stand.leave().ok_or(NoRoom::Timeout)?,
    };
    Ok(Room::new(shared, granted, load))
}

struct Stand<'a> {
    shared: &'a Shared,
    target: Target,
    load: Load,
    place: Option<Place>,
    again: Option<Place>,
}

impl Stand<'_> {
    fn leave(&mut self) -> Option<u16> {
        let place = self.place.take()?;
        let mut woken = Vec::new();
        let granted = self.shared.capacity.lock().leave(place, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        granted
    }
}

impl Future for Stand<'_> {
    type Output = Result<u16, NoRoom>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut capacity = this.shared.capacity.lock();
        match this.place {
            Some(place) => match capacity.poll(place, cx.waker()) {
                Wait::Pending => Poll::Pending,
                Wait::Granted(sub_stream) => {
                    this.place = None;
                    Poll::Ready(Ok(sub_stream))
                }
                Wait::Ended => {
                    this.place = None;
                    Poll::Ready(Err(NoRoom::Ended))
                }
            },
            None => {
                // Whoever had a place before does not jump the line by trying as a newcomer.
                if this.again.is_none()
                    && let Some(sub_stream) = capacity.try_reserve(this.target, this.load)
                {
                    return Poll::Ready(Ok(sub_stream));
                }
                let mut woken = Vec::new();
                let entered = capacity.enter(this.target, this.load, this.again, cx.waker().clone(), &mut woken);
                let Some(place) = entered else { return Poll::Ready(Err(NoRoom::Ended)) };
                this.again = Some(place);
                let wait = capacity.poll(place, cx.waker());
                drop(capacity);
                woken.into_iter().for_each(Waker::wake);
                match wait {
                    Wait::Granted(sub_stream) => Poll::Ready(Ok(sub_stream)),
                    Wait::Ended => Poll::Ready(Err(NoRoom::Ended)),
                    Wait::Pending => {
                        this.place = Some(place);
                        Poll::Pending
                    }
                }
            }
        }
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        if let Some(sub_stream) = self.leave() {
            self.shared.release(sub_stream, self.load);
        }
    }
}
