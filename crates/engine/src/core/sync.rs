//! The primitives that the core is built on, so that loom can run the same code as production.

#[cfg(feature = "loom")]
pub(crate) use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};
