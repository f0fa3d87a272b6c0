//! The channel as the engine sees it: source, sink, dead letters (seams 5, 8 and 12).

mod columns;
mod dead_letters;
mod epochs;
mod lane;
mod sink;
mod source;

pub use dead_letters::ChannelDeadLetters;
pub use lane::ChannelLane;
pub use sink::{ChannelSink, ChannelSinkOptions, ChannelWriter};
pub use source::ChannelSource;

#[cfg(test)]
mod tests;
