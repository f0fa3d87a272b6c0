//! Ending an uncertain append for good (C36–C40).
//!
//! A fence is the next segment: its header closes the old one at the byte where the append began, so no copy in flight can
//! come back (I3). With [`Intent::Keep`] the same units stand in it at the same offsets. The old file is neither
//! read back nor touched. Repeating the attempts, and their pace, is the caller's.

use landfall_types::{Epoch, Offset};

use crate::error::UncertainCause;
use crate::format::{Front, Kind, Reason};
use crate::outcome::{AbsentReason, Evidence, Intent, Settled};
use crate::successor::{Copied, Draft, SuccessionError};
use crate::unit::{SequenceBlock, Unit};
use crate::writer::{LastOutcome, LastSettled, LogWriter, is_full};

impl LogWriter {
    /// Ends an uncertain append for good (C36, C37). Blocks. Settling again what is settled gives the same answer.
    ///
    /// A trim or a mark that became uncertain is settled with evidence without units.
    pub fn settle(&mut self, evidence: &Evidence, intent: Intent) -> Settled {
        let Some(pending) = &self.pending else {
            let last = self.last_settled.filter(|last| (last.first, last.epoch) == (evidence.first, evidence.epoch));
            return match last {
                Some(last) => last.outcome.into(),
                None => {
                    Settled::Uncertain(UncertainCause::EvidenceMismatch { given: evidence.first, actual: self.next })
                }
            };
        };
        if (pending.tail, pending.epoch) != (evidence.first, evidence.epoch) {
            let actual = pending.tail;
            return Settled::Uncertain(UncertainCause::EvidenceMismatch { given: evidence.first, actual });
        }
        let outcome = match intent {
            Intent::Keep => match self.fence(&evidence.units) {
                Ok(epoch) => LastOutcome::Committed { end: self.next, epoch },
                // The header alone needs no room beyond the spare.
                Err(cause) if is_full(&cause) => match self.fence(&[]) {
                    Ok(_) => LastOutcome::Absent(AbsentReason::NoSpace),
                    Err(_) => return Settled::Uncertain(cause),
                },
                Err(cause) => return Settled::Uncertain(cause),
            },
            Intent::Abandon => match self.fence(&[]) {
                Ok(_) => LastOutcome::Absent(AbsentReason::Abandoned),
                Err(cause) => return Settled::Uncertain(cause),
            },
        };
        self.last_settled = Some(LastSettled { first: evidence.first, epoch: evidence.epoch, outcome });
        outcome.into()
    }

    /// One attempt, under a higher epoch and segment number than any before it.
    fn fence(&mut self, kept: &[Unit]) -> Result<Epoch, UncertainCause> {
        let exhausted = |number, limit| UncertainCause::NumbersExhausted { number, limit };
        let epoch = self.highest_epoch.checked_add(1).ok_or_else(|| exhausted("epoch", u64::from(u32::MAX)))?;
        self.highest_epoch = epoch;
        let number = self.next_number().map_err(|(number, limit)| exhausted(number, limit))?;
        let Some(pending) = self.pending.take() else { return Ok(self.epoch) };
        // Exposed units of class `written` are kept whatever is asked for the append: readers have seen them.
        let unsynced = std::mem::take(&mut self.unsynced);
        let header = self.header(&pending.cut, epoch, number, Reason::Fence, self.catalog.log_start());
        let now = header.created;
        let placed = self.succeed(&pending.cut, header, |draft| {
            for unit in unsynced.iter().chain(kept) {
                push(draft, unit, pending.epoch)?;
            }
            // A mark behind them tells later damage from a torn tail.
            if unsynced.is_empty() && kept.is_empty() { Ok(()) } else { draft.push_control(Kind::Mark, &[], now) }
        });
        match placed {
            Ok(()) => {
                self.epoch = epoch;
                Ok(epoch)
            }
            Err(error) => {
                self.pending = Some(pending);
                self.unsynced = unsynced;
                Err(error.into())
            }
        }
    }

    /// Where the uncertain append begins, if there is one.
    pub fn unsettled(&self) -> Option<Offset> {
        self.pending.as_ref().map(|pending| pending.tail)
    }
}

fn push(draft: &mut Draft, unit: &Unit, origin_epoch: Epoch) -> Result<(), SuccessionError> {
    let body = &unit.body;
    let mut front = [0u8; SequenceBlock::BYTES];
    body.tag().put(&mut front.as_mut_slice());
    draft.push(&Copied {
        front: Front::of(body.tag()),
        tag: *body.tag(),
        codec: body.codec(),
        records: body.records(),
        ticket: unit.ticket,
        origin_epoch,
        append_time: unit.append_time,
        body: [&front[..body.tag().encoded_len()], body.stored()],
        plain_crc: body.crc(),
    })
}
