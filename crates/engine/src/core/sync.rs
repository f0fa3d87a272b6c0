//! The primitives that the core is built on, so that loom can run the same code as production.

#[cfg(feature = "loom")]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread,
};
pub(crate) use std::sync::Arc;
#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    thread,
};
