//! A cursor over one JSON text (RFC 8259): white space, literals, strings, numbers, and values that are skipped.
//!
//! Promises: never reads past its bytes, never nests deeper than [`DEPTH_MAX`], and allocates only for strings with
//! escapes and for faults (I14). The bytes must be UTF-8 already; so every text it hands out is. A fault is kept in
//! the cursor, so that a result costs nothing where all goes well. Strings and digits are looked at many bytes at a
//! time: their lengths differ from record to record, and a loop that ends at another byte each time costs more in wrong
//! guesses of the processor than in work.

use landfall_types::Code;

use super::lanes;
use crate::code;

/// Levels of objects and arrays.
pub(super) const DEPTH_MAX: u32 = 128;

/// Reading failed; the cursor knows why.
#[derive(Debug)]
pub(super) struct Failed;

/// A step from a value to one inside it.
#[derive(Debug)]
enum Step {
    Field(String),
    Index(usize),
}

/// Why a record was refused.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: Code,
    at: usize,
    text: String,
    /// From the inside out.
    path: Vec<Step>,
}

impl Fault {
    /// `` `items[3].price` at byte 45: … ``; `base` is where the text starts in its payload.
    pub(super) fn message(&self, base: usize) -> String {
        let at = base + self.at;
        let mut path = String::new();
        for step in self.path.iter().rev() {
            match step {
                Step::Field(name) if path.is_empty() => path.push_str(name),
                Step::Field(name) => {
                    path.push('.');
                    path.push_str(name);
                }
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
            if path.len() > 300 {
                path.push('…');
                break;
            }
        }
        if path.is_empty() {
            format!("at byte {at}: {}", self.text)
        } else {
            format!("`{path}` at byte {at}: {}", self.text)
        }
    }
}

/// A number's text, checked against the grammar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number<'a> {
    pub(super) text: &'a [u8],
    pub(super) is_negative: bool,
    /// The magnitude, where there is no exponent and its digits fit.
    pub(super) exact: Option<Exact>,
}

/// `units` · 10^-`places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    pub(super) units: u64,
    pub(super) places: u32,
}

impl Number<'_> {
    /// The first digits, for a message.
    pub(super) fn excerpt(&self) -> String {
        const EXCERPT_MAX: usize = 40;
        let shown = String::from_utf8_lossy(self.text.get(..EXCERPT_MAX).unwrap_or(self.text)).into_owned();
        if self.text.len() > EXCERPT_MAX { shown + "…" } else { shown }
    }
}

pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    fault: Option<Fault>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Scanner { bytes, at: 0, depth: 0, fault: None }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// What is not read yet.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Passes over bytes that were looked at in the rest.
    #[inline]
    pub(super) fn pass(&mut self, len: usize) {
        self.at += len;
    }

    /// Goes back to a position seen before at the same depth.
    pub(super) fn return_to(&mut self, at: usize) {
        self.at = at;
    }

    pub(super) fn slice_from(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    /// Takes the fault; there is one after a [`Failed`].
    pub(super) fn take_fault(&mut self) -> Fault {
        self.depth = 0;
        self.fault.take().unwrap_or_else(|| Fault {
            code: code::NOT_JSON,
            at: self.at,
            text: "the record cannot be read".to_owned(),
            path: Vec::new(),
        })
    }

    #[cold]
    pub(super) fn fail_at(&mut self, code: Code, at: usize, text: impl Into<String>) -> Failed {
        self.fault = Some(Fault { code, at, text: text.into(), path: Vec::new() });
        Failed
    }

    #[cold]
    pub(super) fn fail(&mut self, code: Code, text: impl Into<String>) -> Failed {
        self.fail_at(code, self.at, text)
    }

    /// Takes over a fault of a cursor over a part of this text.
    #[cold]
    pub(super) fn fail_as(&mut self, fault: Fault, at: usize) -> Failed {
        self.fault = Some(Fault { at, ..fault });
        Failed
    }

    /// Says what is wrong with the byte at the cursor.
    #[cold]
    fn unexpected(&mut self, expected: &str) -> Failed {
        let text = match self.bytes.get(self.at) {
            None => format!("the text ends, expected {expected}"),
            Some(byte) if byte.is_ascii_graphic() => format!("found `{}`, expected {expected}", char::from(*byte)),
            Some(byte) => format!("found byte 0x{byte:02x}, expected {expected}"),
        };
        self.fail(code::NOT_JSON, text)
    }

    /// Puts a field's name before the path of the fault.
    #[cold]
    pub(super) fn inside_field(&mut self, name: &str) {
        if let Some(fault) = &mut self.fault {
            fault.path.push(Step::Field(name.chars().take(100).collect()));
        }
    }

    #[cold]
    pub(super) fn inside_index(&mut self, index: usize) {
        if let Some(fault) = &mut self.fault {
            fault.path.push(Step::Index(index));
        }
    }

    /// The next byte that is not white space; it stays.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Whether nothing but white space is left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    #[inline]
    pub(super) fn takes(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn expect(&mut self, byte: u8, name: &str) -> Result<(), Failed> {
        if self.takes(byte) { Ok(()) } else { Err(self.unexpected(name)) }
    }

    pub(super) fn literal(&mut self, literal: &'static str) -> Result<(), Failed> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(literal.as_bytes())) {
            self.at += literal.len();
            return Ok(());
        }
        Err(self.unexpected(literal))
    }

    /// Enters the object or array whose opening byte was just taken; [`Self::leave`] ends it.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), Failed> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.fail(code::TOO_DEEP, format!("nests deeper than {DEPTH_MAX} levels")));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// After an entry of an object or array: true if another one follows.
    #[inline]
    pub(super) fn more(&mut self, close: u8) -> Result<bool, Failed> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.unexpected(if close == b'}' { "`,` or `}`" } else { "`,` or `]`" })),
        }
    }

    /// A field's name and its colon. Names with escapes are put into `scratch`.
    #[inline]
    pub(super) fn key<'k>(&mut self, scratch: &'k mut Vec<u8>) -> Result<&'k [u8], Failed>
    where
        'a: 'k,
    {
        self.expect(b'"', "a field's name")?;
        let start = self.at;
        self.advance_to_special();
        let key: &'k [u8] = if self.bytes.get(self.at) == Some(&b'"') {
            self.at += 1;
            self.bytes.get(start..self.at - 1).unwrap_or_default()
        } else {
            self.at = start;
            scratch.clear();
            self.unescape(scratch)?;
            scratch
        };
        self.expect(b':', "`:`")?;
        Ok(key)
    }

    /// A string's content where it has no escapes, its opening quote being taken; else the cursor stays.
    #[inline]
    pub(super) fn plain_string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        self.advance_to_special();
        if self.bytes.get(self.at) == Some(&b'"') {
            self.at += 1;
            return self.bytes.get(start..self.at - 1);
        }
        self.at = start;
        None
    }

    /// Appends a string's content, its opening quote being taken.
    #[inline]
    pub(super) fn string_into(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match self.plain_string() {
            Some(text) => {
                out.extend_from_slice(text);
                Ok(())
            }
            None => self.unescape(out),
        }
    }

    fn unescape(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        loop {
            let start = self.at;
            self.advance_to_special();
            out.extend_from_slice(self.slice_from(start));
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return Err(self.unexpected("a character of a string or `\"`")),
            }
        }
    }

    /// The character that an escape stands for, the cursor being on the backslash.
    fn escape(&mut self) -> Result<char, Failed> {
        let start = self.at;
        self.at += 1;
        let c = match self.bytes.get(self.at) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let first = self.hex()?;
                let c = match first {
                    0xD800..0xDC00 => {
                        let paired = self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(b"\\u"));
                        if !paired {
                            return Err(self.fail_at(code::NOT_JSON, start, "a high surrogate without its low one"));
                        }
                        self.at += 2;
                        let second = self.hex()?;
                        // Any other second half leaves no character.
                        (0xDC00..0xE000)
                            .contains(&second)
                            .then(|| char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)))
                            .flatten()
                    }
                    _ => char::from_u32(first),
                };
                return c.ok_or_else(|| self.fail_at(code::NOT_JSON, start, "a lone surrogate is not a character"));
            }
            _ => return Err(self.unexpected("an escape: one of \" \\ / b f n r t u")),
        };
        self.at += 1;
        Ok(c)
    }

    fn hex(&mut self) -> Result<u32, Failed> {
        let mut value = 0;
        for _ in 0..4 {
            match self.bytes.get(self.at).and_then(|byte| char::from(*byte).to_digit(16)) {
                Some(digit) => value = value * 16 + digit,
                None => return Err(self.unexpected("four hexadecimal digits")),
            }
            self.at += 1;
        }
        Ok(value)
    }

    /// Moves to the next quote, backslash or control character, or to the end.
    #[inline]
    fn advance_to_special(&mut self) {
        while let Some(chunk) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<16>()) {
            match lanes::special(chunk) {
                Some(ahead) => {
                    self.at += ahead;
                    return;
                }
                None => self.at += 16,
            }
        }
        while let Some(byte) = self.bytes.get(self.at) {
            if matches!(byte, b'"' | b'\\' | 0..0x20) {
                return;
            }
            self.at += 1;
        }
    }

    /// A number, checked against the grammar.
    #[inline]
    pub(super) fn number(&mut self) -> Result<Number<'a>, Failed> {
        let start = self.at;
        let is_negative = self.bytes.get(self.at) == Some(&b'-');
        self.at += usize::from(is_negative);
        let first = self.at;
        let whole = self.digits(0);
        let digits = self.at - first;
        if digits == 0 {
            return Err(self.unexpected("a digit"));
        }
        if digits > 1 && self.bytes.get(first) == Some(&b'0') {
            return Err(self.fail_at(code::NOT_JSON, first, "a number does not start with a zero before other digits"));
        }
        // So many digits always fit; of more, they are looked at one by one.
        let exactly = |units, places, digits: usize| (digits <= 19).then_some(Exact { units, places });
        let mut exact = exactly(whole, 0, digits).or_else(|| self.checked_magnitude(first));
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            let point = self.at;
            let units = self.digits(whole);
            let places = self.at - point;
            if places == 0 {
                return Err(self.unexpected("a digit"));
            }
            exact = u32::try_from(places).ok().and_then(|count| exactly(units, count, digits + places));
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            exact = None;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            let exponent = self.at;
            self.digits(0);
            if self.at == exponent {
                return Err(self.unexpected("a digit"));
            }
        }
        Ok(Number { text: self.slice_from(start), is_negative, exact })
    }

    /// The digits from `first` to the cursor as a number, where it fits.
    #[cold]
    fn checked_magnitude(&self, first: usize) -> Option<Exact> {
        let digits = self.slice_from(first).iter().map(|digit| u64::from(digit.wrapping_sub(b'0')));
        let units = digits.into_iter().try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(digit))?;
        Some(Exact { units, places: 0 })
    }

    /// Takes digits; `before` and them as one number, modulo 2^64.
    #[inline]
    fn digits(&mut self, before: u64) -> u64 {
        let mut number = before;
        while let Some(chunk) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let (digits, count, scale) = lanes::digits(chunk);
            number = number.wrapping_mul(scale).wrapping_add(digits);
            self.at += count;
            if count < 8 {
                return number;
            }
        }
        while let Some(digit) = self.digit() {
            number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        }
        number
    }

    #[inline]
    fn digit(&mut self) -> Option<u8> {
        let digit = self.bytes.get(self.at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)?;
        self.at += 1;
        Some(digit)
    }

    /// Passes over one value. Structure and strings are checked; the syntax of numbers only where `exact`. A loop, since most
    /// of what is passed over is many small values inside each other.
    pub(super) fn skip_value(&mut self, exact: bool) -> Result<(), Failed> {
        let outside = self.depth;
        // Of each level that was entered here, the innermost in the lowest bit, whether it is an object.
        let mut objects = 0u128;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.skip_string()?;
                }
                Some(open @ (b'{' | b'[')) => {
                    self.at += 1;
                    self.enter()?;
                    let is_object = open == b'{';
                    if !self.takes(if is_object { b'}' } else { b']' }) {
                        objects = (objects << 1) | u128::from(is_object);
                        if is_object {
                            self.skip_key()?;
                        }
                        continue;
                    }
                    self.leave();
                }
                Some(b'-' | b'0'..=b'9') if exact => {
                    self.number()?;
                }
                Some(b'-' | b'0'..=b'9') => {
                    while matches!(self.bytes.get(self.at), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
                        self.at += 1;
                    }
                }
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.unexpected("a value")),
            }
            // Behind a value: the next one of its level, or the end of as many levels as end here.
            loop {
                if self.depth == outside {
                    return Ok(());
                }
                let is_object = objects & 1 == 1;
                if self.more(if is_object { b'}' } else { b']' })? {
                    if is_object {
                        self.skip_key()?;
                    }
                    break;
                }
                self.leave();
                objects >>= 1;
            }
        }
    }

    #[inline]
    fn skip_key(&mut self) -> Result<(), Failed> {
        self.expect(b'"', "a field's name")?;
        self.skip_string()?;
        self.expect(b':', "`:`")
    }

    #[inline]
    fn skip_string(&mut self) -> Result<(), Failed> {
        loop {
            self.advance_to_special();
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.escape()?;
                }
                _ => return Err(self.unexpected("a character of a string or `\"`")),
            }
        }
    }
}

/// What a value is, for a message.
pub(super) fn kind_of(first: u8) -> &'static str {
    match first {
        b'"' => "a text",
        b'{' => "an object",
        b'[' => "an array",
        b't' | b'f' => "a boolean",
        b'n' => "null",
        _ => "a number",
    }
}
