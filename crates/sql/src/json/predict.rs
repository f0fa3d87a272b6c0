//! Names of fields in the order in which the record before had them: most records are spelled alike, so each name is
//! compared with one instead of being looked up.
//!
//! A prediction decides nothing: what it does not meet is read as if there were none. It is bounded by
//! [`FIELDS_MAX`], whatever records bring.

/// Fields of an object that are remembered.
const FIELDS_MAX: usize = 128;

/// Bytes of a name that is worth it, with its quotes and colon.
const TEXT_MAX: usize = 48;

/// `"name":` in the one spelling that is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Its first bytes.
    word: u128,
    mask: u128,
    text: [u8; TEXT_MAX],
    len: usize,
}

impl Key {
    /// `None` where a name needs escapes, or is too long to be worth it.
    pub(super) fn of(name: &[u8]) -> Option<Key> {
        let len = name.len() + 3;
        if len > TEXT_MAX || name.iter().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
            return None;
        }
        let mut text = [0u8; TEXT_MAX];
        text.iter_mut().zip([b"\"", name, b"\":"].into_iter().flatten()).for_each(|(into, byte)| *into = *byte);
        let word = u128::from_le_bytes(text.first_chunk().copied().unwrap_or_default());
        let mask = u128::MAX >> (128 - 8 * len.min(16));
        Some(Key { word, mask, text, len })
    }

    /// The bytes of it.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a text starts with it.
    #[inline]
    pub(super) fn starts(&self, text: &[u8]) -> bool {
        let whole = || self.text.get(..self.len).is_some_and(|own| text.starts_with(own));
        match text.first_chunk::<16>() {
            Some(chunk) => (u128::from_le_bytes(*chunk) ^ self.word) & self.mask == 0 && (self.len <= 16 || whole()),
            None => whole(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The name, and the column that it is of, if any.
    fields: Vec<(Key, Option<usize>)>,
}

impl Order {
    /// Begins with the declared order.
    pub(super) fn declared<'a>(names: impl Iterator<Item = &'a str>) -> Order {
        let fields = names.enumerate().filter_map(|(at, name)| Some((Key::of(name.as_bytes())?, Some(at))));
        Order { fields: fields.take(FIELDS_MAX).collect() }
    }

    /// The column of the name that a text starts with, and the bytes of that name, if it is the one at `step` or the one
    /// behind, for a field may be missing.
    #[inline]
    pub(super) fn predicted(&self, text: &[u8], step: &mut usize) -> Option<(Option<usize>, usize)> {
        let (key, place) = self.fields.get(*step)?;
        if key.starts(text) {
            *step += 1;
            return Some((*place, key.len()));
        }
        let (key, place) = self.fields.get(*step + 1)?;
        key.starts(text).then(|| {
            *step += 2;
            (*place, key.len())
        })
    }

    /// A name that was not predicted stands at `step`.
    pub(super) fn learn(&mut self, name: &[u8], place: Option<usize>, step: &mut usize) {
        let Some(key) = Key::of(name) else { return };
        if let Some(field) = self.fields.get_mut(*step) {
            *field = (key, place);
        } else if self.fields.len() < FIELDS_MAX {
            self.fields.push((key, place));
        } else {
            return;
        }
        *step += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches a comparison that takes part of a name, or looks behind the text.
        #[test]
        fn a_key_is_met_by_its_own_spelling_alone(
            name in "[a-c]{0,48}",
            other in "[a-c]{0,48}",
            behind in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let text = [format!("\"{other}\":").as_bytes(), &behind].concat();
            match Key::of(name.as_bytes()) {
                Some(key) => prop_assert_eq!(key.starts(&text), name == other),
                None => prop_assert!(name.len() > TEXT_MAX - 3),
            }
            if let Some(key) = Key::of(other.as_bytes()) {
                prop_assert!((0..key.len()).all(|end| !key.starts(&text[..end])), "a part of it is not it");
            }
        }
    }
}
