//! Randomness for jitter: nothing is decided by it but how long a wait is.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number in 0..1.
pub(crate) fn fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1u64 << 53) as f64
}
