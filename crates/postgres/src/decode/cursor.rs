//! A cursor over a message's bytes: every read is checked, none allocates (I14).

/// What stood where something else was expected. Turned into a [`super::DecodeError`] with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The message is no pgoutput message of protocol 1 here.
    Malformed {
        /// What should be at this byte.
        expected: &'static str,
        /// The byte, counted from the message's kind.
        at: usize,
    },
    /// A number is beyond what the server can mean.
    Limit {
        /// Of what.
        what: &'static str,
        /// As sent.
        value: u64,
        /// The most.
        limit: u64,
    },
    /// A value came in binary form, which was not asked for.
    Binary,
}

/// Reads a message from its start to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { rest: bytes, len: bytes.len() }
    }

    /// How many bytes were read.
    pub(crate) fn at(&self) -> usize {
        self.len - self.rest.len()
    }

    /// What was not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn fault(&self, expected: &'static str) -> Fault {
        Fault::Malformed { expected, at: self.at() }
    }

    pub(crate) fn take(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(self.fault(expected))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(self.fault(expected))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, expected: &'static str) -> Result<u8, Fault> {
        self.array::<1>(expected).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, expected: &'static str) -> Result<u16, Fault> {
        self.array(expected).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, expected: &'static str) -> Result<u32, Fault> {
        self.array(expected).map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, expected: &'static str) -> Result<i32, Fault> {
        self.array(expected).map(i32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, expected: &'static str) -> Result<u64, Fault> {
        self.array(expected).map(u64::from_be_bytes)
    }

    pub(crate) fn i64(&mut self, expected: &'static str) -> Result<i64, Fault> {
        self.array(expected).map(i64::from_be_bytes)
    }

    /// A text that ends with a zero byte.
    pub(crate) fn text(&mut self, expected: &'static str) -> Result<&'a str, Fault> {
        let fault = self.fault(expected);
        let end = memchr::memchr(0, self.rest).ok_or(fault)?;
        let bytes = self.take(end, expected)?;
        self.take(1, expected)?;
        std::str::from_utf8(bytes).map_err(|_| fault)
    }

    /// A text of at most `limit` bytes.
    pub(crate) fn name(&mut self, expected: &'static str, limit: usize) -> Result<&'a str, Fault> {
        let name = self.text(expected)?;
        if name.len() > limit {
            return Err(Fault::Limit { what: expected, value: name.len() as u64, limit: limit as u64 });
        }
        Ok(name)
    }

    /// Nothing may follow: a byte left over means that the message was misread.
    pub(crate) fn end(&self) -> Result<(), Fault> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.fault("the end of the message")) }
    }
}
