//! The server over real sockets and real channels in a directory of its own.

mod client;
mod drain;
mod grpc;
mod hostile;
mod http;
mod listener;
mod tables;
mod world;
