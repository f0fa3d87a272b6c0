//! The log as its users meet it: over the in-memory file system with faults and power cuts, and on disk.

mod append;
mod crash;
mod damage;
mod fence;
mod golden;
mod hostile;
mod limits;
mod model;
mod support;
mod trim;
