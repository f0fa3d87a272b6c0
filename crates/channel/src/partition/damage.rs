//! The damaged ranges that the opening or a reader has met (I12, C82). Bounded; it decides what is told anew and what a
//! partition's health still lacks. Readers find damage by reading, whether or not it is remembered here.

use std::ops::Range;

use landfall_types::Offset;

/// Ranges apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Damage(Vec<Range<Offset>>);

impl Damage {
    /// Ranges beyond are neither remembered nor told.
    const RANGES_MAX: usize = 64;

    /// Takes a range in. True: some of it was not known.
    pub(crate) fn note(&mut self, range: Range<Offset>) -> bool {
        if self.0.iter().any(|known| known.start <= range.start && range.end <= known.end) {
            return false;
        }
        let touches = |known: &mut Range<Offset>| known.start <= range.end && range.start <= known.end;
        let met: Vec<_> = self.0.extract_if(.., touches).collect();
        if self.0.len() >= Self::RANGES_MAX {
            return false;
        }
        let joined = met.into_iter().fold(range, |all, known| all.start.min(known.start)..all.end.max(known.end));
        self.0.push(joined);
        true
    }

    /// How many ranges retention has not freed.
    pub(crate) fn left(&self, log_start: Offset) -> usize {
        self.0.iter().filter(|range| range.end > log_start).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range<Offset> {
        Offset(start)..Offset(end)
    }

    /// Catches a range that is told at every read of it, one whose growth is not told, a list without end, and damage
    /// that stays a part of health after it was freed.
    #[test]
    fn a_range_is_told_once_grows_and_goes_with_the_log_start() {
        let mut damage = Damage::default();
        assert!(damage.note(range(10, 20)));
        assert!(!damage.note(range(12, 20)), "a reader that comes in the middle");
        assert!(damage.note(range(18, 30)));
        assert!(damage.note(range(40, 50)));
        assert_eq!(damage.left(Offset(0)), 2, "touching ranges are one");
        assert!(damage.note(range(30, 40)));
        assert_eq!(damage.left(Offset(0)), 1);
        assert_eq!(damage.left(Offset(49)), 1);
        assert_eq!(damage.left(Offset(50)), 0);
        for n in 0..1_000u64 {
            damage.note(range(100 + n * 10, 101 + n * 10));
        }
        assert_eq!(damage.left(Offset(0)), Damage::RANGES_MAX);
        assert!(!damage.note(range(1 << 40, 1 << 41)));
    }
}
