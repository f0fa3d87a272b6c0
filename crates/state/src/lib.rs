//! The data directory's owner and its small state: LOCK and `state.redb`.
//!
//! [`DataDirLock`] makes one process the owner of a data directory (C90–C93, I5). [`StateStore`] opens `state.redb`
//! with one writer thread; any number of owners hand it [`Change`]s through a [`StateHandle`], and all requests
//! that wait share one durable transaction (C68, E86). The crate knows tables of bytes to bytes; what a row means
//! is its owner's. A lost file is never silently made anew (I12), and an older owner's write is refused (F-L13).
//!
//! It does not know channels, pipelines or cursors, and it does not retry: a failed write blocks its owner.

mod error;
mod handle;
mod lock;
mod reader;
mod store;
mod writer;

pub use error::{CODES, LockError, StateError};
pub use handle::{Change, Commit, StateHandle};
pub use lock::DataDirLock;
pub use reader::{StateLook, StateReader};
pub use store::StateStore;
