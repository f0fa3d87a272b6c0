//! Chains: a run of publishes that never has a hole (C6).
//!
//! Each publish takes a place when it is admitted. One that does not get in breaks the chain at its place: those behind it
//! that are not written yet are refused, those before it are not touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use landfall_types::Code;

use crate::error::ch;

/// A chain: once a publish of it has not got in, no later one that is not yet written does (C6). Clones name the same
/// chain.
#[derive(Clone, Debug, Default)]
pub struct ChainId {
    links: Arc<Links>,
}

#[derive(Debug)]
struct Links {
    next: AtomicU64,
    /// The first place at which it is broken, and behind it, in 16 bits, the number of the code that broke it.
    broken: AtomicU64,
}

const WHOLE: u64 = u64::MAX;
const CODE_BITS: u32 = 16;

impl Default for Links {
    fn default() -> Self {
        Links { next: AtomicU64::new(0), broken: AtomicU64::new(WHOLE) }
    }
}

impl ChainId {
    /// The place of a publish that is being admitted.
    pub(crate) fn enter(&self) -> Link {
        Link { links: Arc::clone(&self.links), at: self.links.next.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A publish's place in its chain.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    links: Arc<Links>,
    at: u64,
}

impl Link {
    /// The code of the first publish before this one that did not get in.
    pub(crate) fn broken_by(&self) -> Option<Code> {
        let broken = self.links.broken.load(Ordering::Acquire);
        let is_before = broken != WHOLE && broken >> CODE_BITS < self.at;
        is_before.then(|| ch((broken & u64::from(u16::MAX)) as u16))
    }

    /// This one has not got in.
    pub(crate) fn break_by(&self, code: Code) {
        self.links.broken.fetch_min(self.at << CODE_BITS | u64::from(code.number()), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a refusal that takes those before it along, one that lets a later one through, and a first cause that is
    /// forgotten.
    #[test]
    fn a_break_takes_only_those_behind_it() {
        let chain = ChainId::default();
        let links: Vec<_> = (0..4).map(|_| chain.enter()).collect();
        assert!(links.iter().all(|link| link.broken_by().is_none()));
        links[2].break_by(ch(20));
        let broken: Vec<_> = links.iter().map(Link::broken_by).collect();
        assert_eq!(broken, [None, None, None, Some(ch(20))]);
        links[1].break_by(ch(30));
        links[3].break_by(ch(14));
        let broken: Vec<_> = links.iter().chain([&chain.enter()]).map(Link::broken_by).collect();
        assert_eq!(broken, [None, None, Some(ch(30)), Some(ch(30)), Some(ch(30))]);
        assert_eq!(ChainId::default().enter().broken_by(), None);
    }
}
