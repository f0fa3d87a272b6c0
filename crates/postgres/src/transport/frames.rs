//! Frames out of bytes: a synchronous reader of the copy stream of a replication connection.
//!
//! Promises: memory is the read-ahead, or one frame that is at most `max_message` long and that somebody has asked for
//! (P11, I14); a longer one is thrown away as it comes but for its head (P5); no bytes can panic it. What is not of the
//! protocol ends the stream with the reason.

use landfall_types::Timestamp;

use super::{Announced, CloseCause, Frame};
use crate::Lsn;
use crate::connect::ServerError;
use crate::transport::wire::server_error;

/// Read at once, and held at most while no frame is asked for.
pub(super) const READ_AHEAD: usize = 256 << 10;
/// What is kept of an oversized message.
pub(super) const HEAD_MAX: usize = 64 << 10;
/// The longest message of the server that carries no data.
const CONTROL_MAX: usize = 64 << 10;

/// Tag, length and kind of a copy message.
const KIND_AT: usize = 5;
/// The same with the three numbers of a data message.
const DATA_HEADER: usize = 30;
/// A whole keepalive.
const KEEPALIVE: usize = 23;

/// Microseconds from 1970 to 2000, from where the server counts.
const EPOCH_2000: i64 = 946_684_800_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    Data { payload: usize },
    Oversized { payload: usize, head: usize },
    KeepAlive,
    Control { tag: u8, len: usize },
}

impl Front {
    /// How many bytes must be there to take it.
    fn span(self) -> usize {
        match self {
            Front::Data { payload } => DATA_HEADER + payload,
            Front::Oversized { head, .. } => DATA_HEADER + head,
            Front::KeepAlive => KEEPALIVE,
            Front::Control { len, .. } => len,
        }
    }

    /// How many bytes of a message it brings.
    fn bytes(self) -> usize {
        match self {
            Front::Data { payload } => payload,
            Front::Oversized { head, .. } => head,
            Front::KeepAlive | Front::Control { .. } => 0,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    max_message: usize,
    /// Bytes of an oversized message that are still to be thrown away.
    discard: u64,
}

impl FrameBuffer {
    /// With what a reader before it has taken in too many.
    pub(super) fn new(max_message: usize, already: &[u8]) -> Self {
        let mut bytes = vec![0; READ_AHEAD.max(already.len())];
        for (to, from) in bytes.iter_mut().zip(already) {
            *to = *from;
        }
        FrameBuffer { bytes, start: 0, end: already.len(), max_message, discard: 0 }
    }

    fn buffered(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Where the next bytes are to be read to; empty only if a whole frame is there or the front is too large for the
    /// read-ahead and [`grow`](FrameBuffer::grow) was not called.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > READ_AHEAD {
                // A large message is over; its memory goes.
                self.bytes = vec![0; READ_AHEAD];
            }
        } else if self.start > 0 && self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were read into [`space`](FrameBuffer::space).
    pub(super) fn filled(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
        let buffered = self.end - self.start;
        let thrown = usize::try_from(self.discard).unwrap_or(usize::MAX).min(buffered);
        self.start += thrown;
        self.discard -= thrown as u64;
    }

    /// Memory for the frame in front, which somebody has room for.
    pub(super) fn grow(&mut self) {
        let Ok(Some(front)) = self.front() else { return };
        let span = front.span();
        if span <= self.bytes.len() {
            return;
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.reserve_exact(span - self.bytes.len());
        self.bytes.resize(span, 0);
    }

    /// What comes next, if that is known already. Messages that say nothing to us are taken out on the way.
    pub(super) fn announced(&mut self) -> Result<Option<Announced>, CloseCause> {
        loop {
            let Some(front) = self.front()? else { return Ok(None) };
            let is_whole = self.buffered().len() >= front.span();
            if let Front::Control { tag, len } = front {
                if !is_whole {
                    return Ok(None);
                }
                match tag {
                    // A notice, a changed setting, a notification.
                    b'N' | b'S' | b'A' => self.start += len,
                    b'E' => return Err(CloseCause::Server(self.error(len))),
                    _ => return Err(CloseCause::Ended),
                }
                continue;
            }
            return Ok(Some(Announced { bytes: front.bytes(), is_whole, is_end: false }));
        }
    }

    /// Whether reading on, without growing, can complete the frame in front.
    pub(super) fn fits_read_ahead(&self) -> bool {
        matches!(self.front(), Ok(Some(front)) if front.span() <= self.bytes.len())
    }

    /// The frame in front, if all of it is there.
    pub(super) fn take(&mut self) -> Option<Frame<'_>> {
        let front = self.front().ok()??;
        let from = self.start;
        let frame = self.bytes.get(from..self.end)?.get(..front.span())?;
        match front {
            Front::Data { payload } => {
                self.start += DATA_HEADER + payload;
                Some(Frame::Data {
                    lsn: Lsn(number(frame, 6)?),
                    end_lsn: Lsn(number(frame, 14)?),
                    server_time: time(number(frame, 22)?),
                    bytes: frame.get(DATA_HEADER..)?,
                })
            }
            Front::Oversized { payload, head } => {
                self.start += DATA_HEADER + head;
                self.discard = (payload - head) as u64;
                let (start, end, discard) = (self.start, self.end, self.discard);
                let thrown = usize::try_from(discard).unwrap_or(usize::MAX).min(end - start);
                self.start += thrown;
                self.discard -= thrown as u64;
                Some(Frame::Oversized {
                    lsn: Lsn(number(frame, 6)?),
                    len: payload as u64,
                    server_time: time(number(frame, 22)?),
                    head: frame.get(DATA_HEADER..)?,
                })
            }
            Front::KeepAlive => {
                self.start += KEEPALIVE;
                Some(Frame::KeepAlive {
                    wal_end: Lsn(number(frame, 6)?),
                    server_time: time(number(frame, 14)?),
                    wants_reply: *frame.get(22)? != 0,
                })
            }
            Front::Control { .. } => None,
        }
    }

    /// Reads the header in front.
    fn front(&self) -> Result<Option<Front>, CloseCause> {
        if self.discard > 0 {
            return Ok(None);
        }
        let bytes = self.buffered();
        let (Some(tag), Some(len)) = (bytes.first().copied(), length(bytes)) else { return Ok(None) };
        let violation = |what: String| Err(CloseCause::Violation(what));
        if len < 4 {
            return violation(format!("a message says it is {len} bytes long, and 4 is the least"));
        }
        if tag != b'd' {
            return match tag {
                b'N' | b'S' | b'A' | b'E' | b'c' | b'C' | b'Z' | b'T' | b'D' if len <= CONTROL_MAX => {
                    Ok(Some(Front::Control { tag, len: len + 1 }))
                }
                b'N' | b'S' | b'A' | b'E' | b'c' | b'C' | b'Z' | b'T' | b'D' => {
                    violation(format!("a message 0x{tag:02x} of {len} bytes; {CONTROL_MAX} is the most"))
                }
                _ => violation(format!("a message 0x{tag:02x} where data, a keepalive or the end may come")),
            };
        }
        match (bytes.get(KIND_AT), len) {
            (_, 4) => violation("a copy message without content".to_owned()),
            (None, _) => Ok(None),
            (Some(b'w'), _) => match (len + 1).checked_sub(DATA_HEADER) {
                Some(payload) if payload > self.max_message => {
                    Ok(Some(Front::Oversized { payload, head: HEAD_MAX.min(self.max_message) }))
                }
                Some(payload) => Ok(Some(Front::Data { payload })),
                None => violation(format!("a data message of {len} bytes, shorter than its header")),
            },
            (Some(b'k'), _) if len + 1 == KEEPALIVE => Ok(Some(Front::KeepAlive)),
            (Some(b'k'), _) => violation(format!("a keepalive of {len} bytes; 22 is its length")),
            (Some(kind), _) => violation(format!("a copy message of kind 0x{kind:02x} where w or k may come")),
        }
    }

    fn error(&self, len: usize) -> Box<ServerError> {
        server_error(self.buffered().get(KIND_AT..len).unwrap_or_default())
    }
}

/// The length in a message's header, which counts itself and not the tag.
fn length(bytes: &[u8]) -> Option<usize> {
    let four = bytes.get(1..5)?.first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*four)).ok()
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|eight| u64::from_be_bytes(*eight))
}

/// The server counts from 2000; a hostile number saturates.
fn time(since_2000: u64) -> Timestamp {
    Timestamp(since_2000.cast_signed().saturating_add(EPOCH_2000))
}

/// The same way back, for what we send.
pub(super) fn server_time(now: Timestamp) -> i64 {
    now.0.saturating_sub(EPOCH_2000)
}
