//! The messages and the service, generated from `proto/`.
//!
//! Fields are `optional` on the wire, so every one is an `Option`. JSON records are held as [`bytes::Bytes`]
//! although the wire calls them text: whoever receives them checks that they are UTF-8.
//! Promises nothing about contents; a decoded message is outside input (I14).

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code; the .proto holds the comments")]

/// The ingest service: package `databricks.zerobus`.
pub mod zerobus {
    tonic::include_proto!("databricks.zerobus");
}

/// Status details: package `google.rpc`.
pub mod rpc {
    tonic::include_proto!("google.rpc");
}

pub use zerobus::*;
