//! Names and forms of request and response metadata, extensions included.
//!
//! A peer that knows nothing of them ignores them; what a header says is outside input and never fails a
//! request on its own (except the table name, which the server compares).

use std::fmt;
use std::str::FromStr;

/// The bearer.
pub const AUTHORIZATION: &str = "authorization";
/// The table of the stream; may be absent, must equal the created table if present.
pub const TABLE_NAME: &str = "x-databricks-zerobus-table-name";
/// The server's version, in its response headers.
pub const LANDFALL_VERSION: &str = "landfall-version";
/// The extensions that the server knows, in its response headers.
pub const LANDFALL_FEATURES: &str = "landfall-features";
/// `1`: the client reads extension fields in responses.
pub const LANDFALL_ACCEPT: &str = "landfall-accept";
/// `id=32HEX;seq=N`: who sends, and the number of this call's first record.
pub const LANDFALL_PRODUCER: &str = "landfall-producer";
/// `i/n`: bind the stream to partition i mod P.
pub const LANDFALL_SLOT: &str = "landfall-slot";

/// The extensions that a server announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Producer identity: resends are stored once.
    pub producer: bool,
    /// Record keys.
    pub keys: bool,
    /// Binding to a partition.
    pub slot: bool,
}

impl Features {
    /// Reads the header. Unknown words are of a later version and ignored.
    pub fn parse(text: &str) -> Self {
        let mut features = Features::default();
        for word in text.split(',') {
            match word.trim() {
                "producer" => features.producer = true,
                "keys" => features.keys = true,
                "slot" => features.slot = true,
                _ => {}
            }
        }
        features
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (known, word) in [(self.producer, "producer"), (self.keys, "keys"), (self.slot, "slot")] {
            if known {
                f.write_str(if first { "" } else { "," })?;
                f.write_str(word)?;
                first = false;
            }
        }
        Ok(())
    }
}

/// A header that a peer sent is not in its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header `{header}` is not in the form `{form}`")]
pub struct HeaderError {
    header: &'static str,
    form: &'static str,
}

/// Who sends, and where this call starts in its numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// 128 random bits.
    pub id: u128,
    /// The number of this call's first record.
    pub seq: u64,
}

impl fmt::Display for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id={:032x};seq={}", self.id, self.seq)
    }
}

impl FromStr for Producer {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let wrong = || HeaderError { header: LANDFALL_PRODUCER, form: "id=32HEX;seq=N" };
        let (id, seq) = text.split_once(';').ok_or_else(wrong)?;
        let id = id.trim().strip_prefix("id=").ok_or_else(wrong)?;
        let seq = seq.trim().strip_prefix("seq=").ok_or_else(wrong)?;
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        // The number is one of an int64 on the wire.
        let seq = number(seq).filter(|seq| i64::try_from(*seq).is_ok()).ok_or_else(wrong)?;
        Ok(Producer { id: u128::from_str_radix(id, 16).map_err(|_| wrong())?, seq })
    }
}

/// Binds a stream to partition `index` mod the number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The sub-stream.
    pub index: u16,
    /// How many there are.
    pub of: u16,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Slot {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let wrong = || HeaderError { header: LANDFALL_SLOT, form: "i/n with i < n" };
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let small = |text: &str| number(text).and_then(|n| u16::try_from(n).ok()).ok_or_else(wrong);
        let slot = Slot { index: small(index)?, of: small(of)? };
        if slot.index < slot.of { Ok(slot) } else { Err(wrong()) }
    }
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a server whose announcement its own client cannot read.
    #[test]
    fn features_round_trip_and_skip_the_unknown() {
        let all = Features { producer: true, keys: true, slot: true };
        assert_eq!(all.to_string(), "producer,keys,slot");
        assert_eq!(Features::parse(&all.to_string()), all);
        assert_eq!(Features::parse("later, slot ,"), Features { slot: true, ..Features::default() });
        assert_eq!(Features::parse(""), Features::default());
    }

    /// Would catch a producer or slot header that a stranger can bend.
    #[test]
    fn identity_headers_are_exact() {
        let producer = Producer { id: 0xab, seq: 7 };
        assert_eq!(producer.to_string().parse(), Ok(producer));
        for wrong in [
            "",
            "id=ab;seq=1",
            "id=+00000000000000000000000000000ab;seq=1",
            "seq=1;id=x",
            "id=000000000000000000000000000000ab;seq=-1",
            "id=000000000000000000000000000000ab;seq=9223372036854775808",
        ] {
            assert!(wrong.parse::<Producer>().is_err(), "{wrong}");
        }
        assert_eq!("3/4".parse(), Ok(Slot { index: 3, of: 4 }));
        for wrong in ["4/4", "1", "/", "-1/2", "1/70000"] {
            assert!(wrong.parse::<Slot>().is_err(), "{wrong}");
        }
    }
}
