//! The source against real servers, and against what they once sent.

mod capture;
mod catalog_watch;
mod changed_tables;
mod check;
mod database;
mod golden;
mod hostile_role;
mod lake;
mod orders;
mod snapshot;
mod startup;
mod transport;
mod types;
