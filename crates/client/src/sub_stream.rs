//! One sub-stream's ordering section: the short mutex inside which a call gets its stream offset.
//!
//! Whatever decides about a call is read and changed in here: whether the handle takes it, whether this
//! sub-stream does, its offset, and whether a frame may go to the present RPC. So stream order is offset
//! order, the barrier of a poison is exact, and nothing is sent after a close signal was read. Memory only, no
//! await inside (I5).

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::admission::Admission;
use crate::call::PreparedBatch;
use crate::id::AckDurability;
use crate::ledger::{AckEffect, Coalesce, Frame, Ledger};
use crate::waits::{WaitKey, WaitSet};

/// Whether frames go to the present RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Not yet: the RPC is not open.
    Held,
    /// Not any more: the peer announced its end.
    Paused,
    /// Yes.
    Sending,
    /// Never again: our side of the RPC is to be closed.
    HalfClosing,
}

#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) ledger: Ledger,
    pub(crate) waits: WaitSet,
    /// The number of the present RPC. A request stream of an older one gets nothing.
    pub(crate) rpc: u64,
    pub(crate) flow: Flow,
    /// The request stream's waker, while it has nothing to send.
    pub(crate) sender: Option<Waker>,
    /// No RPC will follow: what is unacknowledged stays so.
    pub(crate) stopped: bool,
    /// No progress for the whole budget; still tried at a slow pace.
    pub(crate) lost: bool,
    /// The weakest class of any ack so far.
    pub(crate) durability: Option<AckDurability>,
    pub(crate) reconnects: u64,
}

#[derive(Debug)]
pub(crate) struct SubStream {
    pub(crate) index: u16,
    section: Mutex<Section>,
}

/// A call that the sub-stream did not take.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The handle takes no calls any more.
    Barred(PreparedBatch),
    /// This sub-stream is lost; another may take it.
    Lost(PreparedBatch),
}

/// What the request stream does next.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// Send it.
    Frame(Frame),
    /// Something is queued, and more may join it for a while.
    Linger,
    /// Nothing to send; the waker is kept.
    Pending,
    /// The RPC's sending side is over.
    Done,
}

impl SubStream {
    pub(crate) fn new(index: u16) -> Self {
        SubStream {
            index,
            section: Mutex::new(Section {
                ledger: Ledger::default(),
                waits: WaitSet::default(),
                rpc: 0,
                flow: Flow::Held,
                sender: None,
                stopped: false,
                lost: false,
                durability: None,
                reconnects: 0,
            }),
        }
    }

    pub(crate) fn section(&self) -> MutexGuard<'_, Section> {
        self.section.lock()
    }

    /// Steps 4 to 7 of the ingest order: nothing can fail or wait between the checks and the offset.
    pub(crate) fn admit(&self, admission: &Admission, call: PreparedBatch, by_name: bool) -> Result<u64, Refused> {
        let (offset, sender) = {
            let mut section = self.section.lock();
            if !admission.is_open() || section.stopped {
                return Err(Refused::Barred(call));
            }
            if section.lost && !by_name {
                return Err(Refused::Lost(call));
            }
            let offset = section.ledger.push(call).map_err(Refused::Barred)?;
            let sender = if section.flow == Flow::Sending { section.sender.take() } else { None };
            (offset, sender)
        };
        if let Some(sender) = sender {
            sender.wake();
        }
        Ok(offset)
    }

    /// Takes the section and lets it go: whoever was inside has left, and whoever comes sees what was set before.
    pub(crate) fn barrier(&self) {
        drop(self.section.lock());
    }

    /// A new RPC begins: what is unacknowledged is to be sent on it, once it is open. Returns its number.
    pub(crate) fn begin_rpc(&self) -> u64 {
        let (rpc, old) = {
            let mut section = self.section.lock();
            section.rpc += 1;
            section.flow = Flow::Held;
            section.ledger.restart();
            (section.rpc, section.sender.take())
        };
        // The old request stream sees that it is over.
        if let Some(old) = old {
            old.wake();
        }
        rpc
    }

    /// An RPC is given up: its request stream ends, if it is still the present one.
    pub(crate) fn end_rpc(&self, rpc: u64) {
        let sender = {
            let mut section = self.section.lock();
            if section.rpc != rpc {
                return;
            }
            section.flow = Flow::HalfClosing;
            section.sender.take()
        };
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Sets whether frames may go out.
    pub(crate) fn set_flow(&self, flow: Flow) {
        let sender = {
            let mut section = self.section.lock();
            section.flow = flow;
            section.sender.take()
        };
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// The next message of RPC number `rpc`. `patient`: more records may still join what is queued.
    pub(crate) fn outgoing(&self, rpc: u64, limits: Coalesce, patient: bool, cx: &mut Context<'_>) -> Outgoing {
        let mut section = self.section.lock();
        if section.rpc != rpc || section.stopped {
            return Outgoing::Done;
        }
        match section.flow {
            Flow::HalfClosing => return Outgoing::Done,
            Flow::Held | Flow::Paused => {}
            Flow::Sending => {
                if patient && section.ledger.queued().records > 0 && !section.ledger.next_frame_is_full(limits) {
                    section.sender = Some(cx.waker().clone());
                    return Outgoing::Linger;
                }
                if let Some(frame) = section.ledger.next_frame(limits, now()) {
                    return Outgoing::Frame(frame);
                }
            }
        }
        section.sender = Some(cx.waker().clone());
        Outgoing::Pending
    }

    /// Applies an ack of the present RPC; the waits that it ends are added to `woken`.
    pub(crate) fn ack(&self, wire_offset: i64, durability: AckDurability, woken: &mut Vec<Waker>) -> AckEffect {
        let mut guard = self.section.lock();
        let section = &mut *guard;
        if section.stopped {
            return AckEffect::Ignored;
        }
        let effect = section.ledger.ack(wire_offset);
        if matches!(effect, AckEffect::Moved { .. }) {
            section.durability = section.durability.max(Some(durability));
            section.waits.due(section.ledger.front(), woken);
        }
        effect
    }

    /// No RPC will follow. Every wait ends.
    pub(crate) fn stop(&self) {
        let mut woken = Vec::new();
        {
            let mut section = self.section.lock();
            section.stopped = true;
            section.flow = Flow::HalfClosing;
            section.waits.all(&mut woken);
            woken.extend(section.sender.take());
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The monotonic time that the runtime shows.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until a stream offset is acknowledged: `true`, or until the sub-stream is stopped before: `false`.
/// Dropping it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct FrontWait<'a> {
    sub_stream: &'a SubStream,
    offset: u64,
    key: Option<WaitKey>,
}

impl<'a> FrontWait<'a> {
    pub(crate) fn new(sub_stream: &'a SubStream, offset: u64) -> Self {
        FrontWait { sub_stream, offset, key: None }
    }
}

impl Future for FrontWait<'_> {
    type Output = bool;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut section = self.sub_stream.section.lock();
        if section.ledger.front() > self.offset {
            return Poll::Ready(true);
        }
        if section.stopped {
            return Poll::Ready(false);
        }
        let key = section.waits.wait(self.key, self.offset, cx.waker());
        drop(section);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for FrontWait<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.sub_stream.section.lock().waits.cancel(key);
        }
    }
}

/// Shared by the handle, the request streams and the sessions.
pub(crate) type SubStreams = Arc<[SubStream]>;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use landfall_protocol::wire::RecordType;

    use super::*;
    use crate::admission::FirstCause;
    use crate::call::CallLimits;
    use crate::error::IngestError;

    const LIMITS: CallLimits = CallLimits { record_type: RecordType::Json, max_bytes: 100, max_records: 10 };

    /// Would catch an offset that is taken outside the section: then what is sent is not in offset order.
    #[test]
    fn stream_order_is_offset_order_under_contention() {
        let sub_stream = SubStream::new(0);
        let admission = Admission::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (sub_stream, admission) = (&sub_stream, &admission);
                scope.spawn(move || {
                    for n in 0..2_000u64 {
                        let call = LIMITS.prepare(format!("{}", thread * 1_000_000 + n)).unwrap();
                        sub_stream.admit(admission, call, false).unwrap();
                    }
                });
            }
        });
        let rpc = sub_stream.begin_rpc();
        sub_stream.set_flow(Flow::Sending);
        let mut cx = Context::from_waker(Waker::noop());
        let mut last = [None::<u64>; 4];
        let mut seen = 0u64;
        while let Outgoing::Frame(frame) =
            sub_stream.outgoing(rpc, Coalesce { records: 100, bytes: 10_000 }, false, &mut cx)
        {
            for call in frame.calls {
                let n: u64 = std::str::from_utf8(&call.records()[0]).unwrap().parse().unwrap();
                let (thread, n) = ((n / 1_000_000) as usize, n % 1_000_000);
                assert!(last[thread].is_none_or(|last| last + 1 == n), "thread {thread}: {n} after {:?}", last[thread]);
                last[thread] = Some(n);
                seen += 1;
            }
        }
        assert_eq!(seen, 8_000);
    }

    /// Would catch a call admitted after the barrier: it would be in no flush and in no unacked list.
    #[test]
    fn nothing_admitted_after_barrier() {
        for _ in 0..200 {
            let sub_stream = SubStream::new(0);
            let admission = Admission::default();
            let begun = AtomicBool::new(false);
            let (at_barrier, admitted) = std::thread::scope(|scope| {
                let publishers: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut admitted = 0u64;
                            loop {
                                begun.store(true, Ordering::Release);
                                match sub_stream.admit(&admission, LIMITS.prepare("1").unwrap(), false) {
                                    Ok(_) => admitted += 1,
                                    Err(Refused::Barred(_)) => return admitted,
                                    Err(Refused::Lost(_)) => panic!("not lost"),
                                }
                            }
                        })
                    })
                    .collect();
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                admission.fail(FirstCause { error: Arc::new(IngestError::Closed), sub_stream: 0 });
                sub_stream.barrier();
                let at_barrier = sub_stream.section().ledger.next();
                let admitted: u64 = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
                (at_barrier, admitted)
            });
            assert_eq!(at_barrier, admitted);
            assert_eq!(sub_stream.section().ledger.next(), at_barrier);
        }
    }

    /// Would catch a request stream of an old RPC that still takes records, and a frame sent while held.
    #[test]
    fn an_old_rpc_gets_nothing() {
        let sub_stream = SubStream::new(0);
        let admission = Admission::default();
        let limits = Coalesce { records: 1, bytes: 100 };
        let mut cx = Context::from_waker(Waker::noop());
        sub_stream.admit(&admission, LIMITS.prepare("1").unwrap(), false).unwrap();
        let old = sub_stream.begin_rpc();
        assert!(matches!(sub_stream.outgoing(old, limits, false, &mut cx), Outgoing::Pending));
        sub_stream.set_flow(Flow::Sending);
        assert!(matches!(sub_stream.outgoing(old, limits, false, &mut cx), Outgoing::Frame(_)));
        let new = sub_stream.begin_rpc();
        sub_stream.set_flow(Flow::Sending);
        assert!(matches!(sub_stream.outgoing(old, limits, false, &mut cx), Outgoing::Done));
        assert!(
            matches!(sub_stream.outgoing(new, limits, false, &mut cx), Outgoing::Frame(frame) if frame.wire_offset == 0)
        );
    }
}
