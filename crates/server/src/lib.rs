//! The server: acknowledged ingest over gRPC and HTTP, reading over HTTP, health, metrics and status, on one
//! listener.
//!
//! It speaks the public Zerobus wire, so official SDKs stream into Landfall when only their endpoint is changed.
//! It promises: an acknowledgement leaves only after the channel has committed in its class (I1); a publish ends
//! in one of three outcomes (I3); nothing of a stream commits past a hole; one stream's failure ends that stream
//! alone (I13); queues, windows and bodies are bounded (I6), and no network bytes can panic it or make it allocate
//! without bound (I14); shutdown is bounded and names what is left (I11).
//!
//! It keeps no copy of a channel's state and builds neither channels nor pipelines; it gets handles. Tokens and
//! TLS are not here yet: without them it listens on loopback only, unless told otherwise.

#![expect(clippy::result_large_err, reason = "a refusal is made once per stream or request, never per record")]

mod admission;
mod body;
mod core;
mod dispatch;
mod error;
mod glob;
mod http;
mod listener;
mod memory;
mod meters;
mod options;
mod refusal;
mod server;
mod sniff;
mod stream;
mod streams;
mod tables;
mod validate;

pub use error::{CODES, ServerError};
pub use options::{AutoCreate, Report, ServerOptions, ServerParts};
pub use server::{DrainReport, Server, ServerHandle};
pub use streams::LeftStream;
pub use tables::{PipelineTables, TableOrder, TablesRefusal};
