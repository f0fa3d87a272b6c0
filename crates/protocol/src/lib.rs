//! The ingest wire: messages, headers, limits, and how a refusal is told.
//!
//! Floor 1. Holds the protobuf service generated from `proto/` ([`wire`]), the names and forms of metadata
//! ([`header`]), the server's [`Limits`], the registry of ingest codes with their gRPC and HTTP statuses
//! ([`IngestCode`], [`grpc_code`], [`http_status`]), and [`Refusal`], which travels as status details. Both
//! `server` and `client` are built on it; it does no I/O and keeps no state.
//!
//! Carries I1 (the durability class rides in the ack whenever it is weaker than a sync) and the part of I14
//! that is a number: what an outsider may make grow has its bound in [`Limits`].

mod code;
pub mod header;
mod limits;
mod refusal;
pub mod wire;

pub use code::{CODES, IngestCode, grpc_code, http_status};
pub use limits::{
    LimitError, Limits, MAX_BINARY_DEPTH, MAX_BODY_RATIO, MAX_JSON_DEPTH, MAX_SCHEMA_BYTES, MAX_SCHEMA_FIELDS,
    MAX_TABLE_NAME_BYTES,
};
pub use refusal::{DOMAIN, Refusal, RefusedOutcome, foreign_retry, retry_word};
pub use wire::zerobus::{zerobus_client, zerobus_server};
