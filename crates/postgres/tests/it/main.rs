//! The source against real servers, and against what they once sent.

mod check;
mod database;
mod golden;
mod snapshot;
mod startup;
mod transport;
mod types;
