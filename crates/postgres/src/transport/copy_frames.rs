//! Rows of a COPY out of bytes: a synchronous reader of the messages that the server sends after a COPY … TO STDOUT.
//!
//! Promises: memory is the read-ahead, or one message that is at most as long as a row may be (I14); no bytes can panic
//! it. What is not of the protocol is an error.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use super::wire::server_error;
use crate::connect::{ConnectError, ServerError};

/// Read at once. The server sends 8 KiB at a time: a few of them are there when it is faster than we are.
pub(crate) const READ_AHEAD: usize = 64 << 10;
/// The longest message that carries no rows.
const CONTROL_MAX: usize = 64 << 10;
/// Tag and length.
const HEADER: usize = 5;

/// What a message is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CopyPiece<'a> {
    /// Text: a row with its line end, as servers do it; nothing promises that.
    Text(&'a [u8]),
    /// The COPY is over, and the connection is free for another command.
    End,
}

/// Why no more rows come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyFault {
    /// A message above the limit; it was not read.
    #[error("a row of {len} bytes, and {limit} are the most")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The server gave up.
    #[error(transparent)]
    Server(Box<ServerError>),
    /// The connection is of no use any more.
    #[error(transparent)]
    Connection(#[from] ConnectError),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CopyFrames {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl CopyFrames {
    /// Takes over what a reader before it has taken in too many.
    pub(super) fn take_in(&mut self, already: &[u8]) {
        let buffered = self.buffered().len();
        self.make_room(buffered.saturating_add(already.len()));
        if let Some(space) = self.bytes.get_mut(self.end..).and_then(|space| space.get_mut(..already.len())) {
            space.copy_from_slice(already);
            self.end += already.len();
        }
    }

    fn buffered(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Where the next bytes are to be read to; never empty behind a [`next`](CopyFrames::next) that gave nothing.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() != READ_AHEAD {
                // The first read, or a large row is over and its memory goes.
                self.bytes = vec![0; READ_AHEAD];
            }
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were read into [`space`](CopyFrames::space).
    pub(super) fn filled(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
    }

    /// The next piece that is whole, or `None` until more is read. Messages that say nothing to us are taken out on the way.
    pub(super) fn next(&mut self, row_bytes_max: usize) -> Result<Option<CopyPiece<'_>>, CopyFault> {
        loop {
            let buffered = self.buffered();
            let Some([tag, a, b, c, d]) = buffered.first_chunk::<HEADER>().copied() else {
                self.make_room(HEADER);
                return Ok(None);
            };
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            let Some(body) = len.checked_sub(4) else {
                return Err(violation(format!(
                    "a message 0x{tag:02x} says it is {len} bytes long, and 4 is the least"
                )));
            };
            match tag {
                b'd' if body > row_bytes_max => return Err(CopyFault::TooLong { len: body, limit: row_bytes_max }),
                b'd' => {}
                b'c' | b'C' | b'N' | b'S' | b'A' | b'E' | b'Z' if body <= CONTROL_MAX => {}
                b'c' | b'C' | b'N' | b'S' | b'A' | b'E' | b'Z' => {
                    let what = format!("a message 0x{tag:02x} of {body} bytes; {CONTROL_MAX} is the most");
                    return Err(violation(what));
                }
                _ => return Err(violation(format!("a message 0x{tag:02x} where rows of a copy or its end may come"))),
            }
            let whole = HEADER + body;
            if buffered.len() < whole {
                self.make_room(whole);
                return Ok(None);
            }
            let from = self.start + HEADER;
            self.start += whole;
            let body = from..self.start;
            match tag {
                b'd' => return Ok(Some(CopyPiece::Text(self.bytes.get(body).unwrap_or_default()))),
                b'E' => return Err(CopyFault::Server(server_error(self.bytes.get(body).unwrap_or_default()))),
                b'Z' => return Ok(Some(CopyPiece::End)),
                // The end of the rows, the tag of the command, notices, settings.
                _ => {}
            }
        }
    }

    /// Moves what is there to the front if a message of `whole` bytes does not fit behind it, and grows if it must.
    fn make_room(&mut self, whole: usize) {
        if self.start.saturating_add(whole) <= self.bytes.len() && self.end < self.bytes.len() {
            return;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let least = whole.max(READ_AHEAD);
        if self.bytes.len() < least {
            self.bytes.reserve_exact(least - self.bytes.len());
            self.bytes.resize(least, 0);
        }
    }
}

fn violation(what: String) -> CopyFault {
    CopyFault::Connection(ConnectError::Protocol { what })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut message = vec![tag];
        message.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        message.extend_from_slice(body);
        message
    }

    /// Feeds `bytes` in reads of at most `step`, and gives the text of all pieces, how many there were, and whether the
    /// end came.
    fn read(bytes: &[u8], already: usize, step: usize, limit: usize) -> Result<(Vec<Vec<u8>>, bool), CopyFault> {
        let mut frames = CopyFrames::default();
        let (already, mut rest) = bytes.split_at(already.min(bytes.len()));
        frames.take_in(already);
        let mut pieces = Vec::new();
        loop {
            match frames.next(limit)? {
                Some(CopyPiece::Text(text)) => pieces.push(text.to_vec()),
                Some(CopyPiece::End) => return Ok((pieces, true)),
                None if rest.is_empty() => return Ok((pieces, false)),
                None => {
                    let space = frames.space();
                    assert!(!space.is_empty(), "a read of nothing looks like the end of the connection");
                    let count = step.min(space.len()).min(rest.len());
                    space[..count].copy_from_slice(&rest[..count]);
                    frames.filled(count);
                    rest = &rest[count..];
                }
            }
        }
    }

    proptest! {
        /// Catches rows that are lost, doubled or torn where a read ends in the middle of a message, or a message is
        /// larger than the read-ahead.
        #[test]
        fn rows_are_the_same_however_they_are_read(
            rows in proptest::collection::vec(prop_oneof![
                9 => proptest::collection::vec(any::<u8>(), 0..200),
                1 => (READ_AHEAD - 20..READ_AHEAD * 3).prop_map(|len| vec![b'x'; len]),
            ], 0..40),
            notices in proptest::collection::vec(any::<proptest::sample::Index>(), 0..3),
            already in 0usize..300,
            step in prop_oneof![1usize..40, 1_000usize..200_000],
        ) {
            let mut messages: Vec<Vec<u8>> = rows.iter().map(|row| message(b'd', row)).collect();
            for at in notices {
                messages.insert(at.index(messages.len() + 1), message(b'N', b"SNOTICE\0\0"));
            }
            messages.extend([message(b'c', b""), message(b'C', b"COPY 1\0"), message(b'Z', b"T")]);
            let (pieces, has_ended) = read(&messages.concat(), already, step, READ_AHEAD * 4).unwrap();
            prop_assert_eq!(pieces, rows);
            prop_assert!(has_ended);
        }

        /// Catches bytes that panic the reader or make it allocate beyond the limit (I14).
        #[test]
        fn no_bytes_panic_it(bytes in proptest::collection::vec(any::<u8>(), 0..400), step in 1usize..50) {
            let _ = read(&bytes, 0, step, 1_000);
            let mut likely = message(b'd', b"1\ta\n");
            likely.extend_from_slice(&bytes);
            let _ = read(&likely, 0, step, 1_000);
        }
    }

    /// Catches a row above the limit that is read into memory first, and a refusal of the server taken for the end.
    #[test]
    fn long_rows_and_refusals_are_told_apart() {
        let long = message(b'd', &[b'x'; 1_001]);
        let error = read(&long[..HEADER], 0, 10, 1_000).unwrap_err();
        assert!(matches!(error, CopyFault::TooLong { len: 1_001, limit: 1_000 }), "{error:?}");
        let mut refused = message(b'd', b"1\n");
        refused.extend(message(b'E', b"SERROR\0C57014\0Mcanceled\0\0"));
        let error = read(&refused, 0, 10, 1_000).unwrap_err();
        assert!(matches!(&error, CopyFault::Server(error) if error.sqlstate == "57014"), "{error:?}");
        let error = read(&message(b'T', b""), 0, 10, 1_000).unwrap_err();
        assert!(matches!(&error, CopyFault::Connection(_)), "{error:?}");
    }
}
