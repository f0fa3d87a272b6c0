//! Helpers for the tests of sources, sinks and the engine itself (feature `testing`).

mod lane_bench;

pub use lane_bench::LaneBench;
