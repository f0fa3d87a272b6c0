//! The ingest client: acknowledged, ordered, bounded streams of records into a channel.
//!
//! Floor 2, on `protocol` and `types` alone, so it is usable without the rest; it speaks the public wire, so it
//! also works against the service that Landfall is compatible with. A [`Client`] opens an [`IngestStream`] or a
//! [`MultiplexedStream`] of several; both are a [`StreamHandle`].
//!
//! ```no_run
//! # async fn publish() -> Result<(), Box<dyn std::error::Error>> {
//! use landfall_client::{Client, Credentials};
//!
//! let client = Client::builder("http://127.0.0.1:7420").credentials(Credentials::bearer("token")).build()?;
//! let stream = client.stream("storefront.events").json().multiplexed(4).open().await?;
//! let id = stream.ingest(r#"{"order_id": 1}"#).await?; // admitted, in order
//! stream.wait_for(id).await?;                          // committed
//! stream.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! It promises: a call that was given an id ends acknowledged, refused, or is handed back by
//! [`StreamHandle::take_unacked`] with its id and what may have become of it (I3); memory is bounded in records
//! and bytes (I6); a wait for room is first come, first served, bounded, and gives the call back (I10); one
//! sub-stream's trouble stays its own (I13). After a reconnect it sends again what was not acknowledged, in
//! order: at least once, counted.
//!
//! Not here yet: TLS, tokens fetched from a token endpoint, producer identity (resends stored once), persistent
//! streams, refused calls set aside, an observer of acknowledgements.
//!
//! Inside, pure synchronous cores (the capacity line, the ledger, admission, waits, recovery) carry the
//! rules, and a thin asynchronous shell (session, request stream, connector) carries them out.

mod admission;
mod builder;
mod call;
mod capacity;
mod connector;
mod credentials;
mod error;
mod handle;
mod id;
mod ledger;
mod meters;
mod options;
mod outbound;
mod pages;
mod recovery;
mod room;
mod session;
mod shared;
mod snapshot;
mod sub_stream;
mod waits;

pub use admission::StreamState;
pub use builder::{Client, ClientBuilder, IngestStream, MultiplexedBuilder, MultiplexedStream, StreamBuilder};
pub use call::{Encode, IntoCall, PreparedBatch, Proto, RecordForm};
pub use credentials::Credentials;
pub use error::{IngestError, Load, PrepareError, Rejected};
pub use handle::{StreamHandle, Unacked, UnackedOutcome};
pub use id::{Ack, AckDurability, IdRange, MessageId};
pub use options::{Compression, OnLoss};
pub use pages::CODES;
pub use snapshot::{StreamSnapshot, SubStreamSnapshot, SubStreamState};
