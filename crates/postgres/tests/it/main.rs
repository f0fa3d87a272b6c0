//! The source against real servers.

mod check;
mod database;
mod snapshot;
mod startup;
mod transport;
