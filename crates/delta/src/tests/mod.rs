//! Tests of the sink as a whole, over real tables on the local file system.

mod changes;
mod exactly_once;
mod facts;
mod faults;
mod harness;
mod local_store;
mod memory;
mod random;
mod schema;
