//! Ids and positions. Each is a newtype, so that an offset cannot be taken for an epoch (I2, I5).

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The first number.
            pub const ZERO: Self = Self(0);
            /// The last number that the format can hold; it is never assigned.
            pub const MAX: Self = Self(<$inner>::MAX);

            /// The bare number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// `self + n`, or `None` where the number would reach [`Self::MAX`]: numbers never wrap.
            pub fn checked_add(self, n: $inner) -> Option<Self> {
                match self.0.checked_add(n) {
                    Some(sum) if sum < <$inner>::MAX => Some(Self(sum)),
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(n: $inner) -> Self {
                Self(n)
            }
        }
    };
}

number! {
    /// The number of a record inside its partition: dense, from 0.
    Offset(u64)
}
number! {
    /// The number of a partition inside its channel or source, from 0.
    PartitionId(u32)
}
number! {
    /// Raised by every fence of a log's tail (`log`), and by every (re)start of a partition in a pipeline (`engine`).
    Epoch(u32)
}
number! {
    /// The number of a segment file inside its partition; never reused.
    SegmentNumber(u64)
}
number! {
    /// The number of a ticket inside its epoch.
    TicketNumber(u64)
}

impl Offset {
    /// How many records lie from `earlier` up to `self`; 0 where `earlier` is ahead.
    pub const fn since(self, earlier: Offset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The engine's position inside a partition: (offset, 0) for record sources, two numbers for a change source.
/// Compared lexicographically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The offset, or a change source's commit position.
    pub at: u64,
    /// The place inside `at`; 0 for record sources.
    pub within: u64,
}

impl Place {
    /// The first place of a partition.
    pub const START: Place = Place { at: 0, within: 0 };

    /// A place of a record source.
    pub const fn of(offset: Offset) -> Self {
        Place { at: offset.0, within: 0 }
    }

    /// The offset part.
    pub const fn offset(self) -> Offset {
        Offset(self.at)
    }
}

impl From<Offset> for Place {
    fn from(offset: Offset) -> Self {
        Place::of(offset)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.within == 0 { self.at.fmt(f) } else { write!(f, "{}/{}", self.at, self.within) }
    }
}

/// The identity of a channel: 16 random bytes, kept in `channel.yaml` and in every segment header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub [u8; 16]);

/// The text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id: expected 32 hexadecimal digits")]
pub struct IdError {
    text: String,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChannelId({self})")
    }
}

impl std::str::FromStr for ChannelId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || IdError { text: text.chars().take(64).collect() };
        if text.len() != 32 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut id = [0u8; 16];
        for (at, byte) in id.iter_mut().enumerate() {
            let pair = text.get(at * 2..at * 2 + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(ChannelId(id))
    }
}

impl Serialize for ChannelId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChannelId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a wrap at the end of the number space (F-L6).
    #[test]
    fn numbers_at_their_limit_are_refused_not_wrapped() {
        assert_eq!(Offset(u64::MAX - 2).checked_add(1), Some(Offset(u64::MAX - 1)));
        assert_eq!(Offset(u64::MAX - 1).checked_add(1), None);
        assert_eq!(Epoch(u32::MAX).checked_add(1), None);
    }

    /// Would catch an order that looks at `within` first.
    #[test]
    fn places_order_by_at_then_within() {
        assert!(Place { at: 1, within: 9 } < Place { at: 2, within: 0 });
        assert!(Place { at: 2, within: 0 } < Place { at: 2, within: 1 });
    }

    /// Would catch an id that does not survive its text form.
    #[test]
    fn a_channel_id_round_trips_through_text() {
        let id = ChannelId([0x0f; 16]);
        assert_eq!(id.to_string().parse::<ChannelId>(), Ok(id));
        assert!("zz".parse::<ChannelId>().is_err());
        assert!("é".repeat(16).parse::<ChannelId>().is_err());
    }
}
