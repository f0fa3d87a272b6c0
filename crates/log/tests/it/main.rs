//! The log as its users meet it: over the in-memory file system with faults and power cuts, and on disk.

mod append;
mod support;
