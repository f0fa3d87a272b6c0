//! Chains: a run of publishes that never has a hole (C6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use landfall_types::Code;

use crate::error::ch;

/// A chain: once a publish of it has not got in, no later one that is not yet written does (C6). Clones name the same
/// chain.
#[derive(Clone, Debug, Default)]
pub struct ChainId {
    /// 0: whole. Else the number of the code that broke it, which is never 0.
    broken_by: Arc<AtomicU32>,
}

impl ChainId {
    /// The code of the first publish that did not get in.
    pub(crate) fn broken_by(&self) -> Option<Code> {
        match self.broken_by.load(Ordering::Acquire) {
            0 => None,
            number => Some(ch(u16::try_from(number).unwrap_or(u16::MAX))),
        }
    }

    /// The first one counts.
    pub(crate) fn break_by(&self, code: Code) {
        let number = u32::from(code.number());
        let _ = self.broken_by.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
    }
}
