//! The channel as the engine sees it: source, sink, dead letters (seams 5, 8 and 12).

mod columns;
mod dead_letters;
mod encoding;
mod epochs;
mod lane;
mod sink;
mod source;

pub use dead_letters::ChannelDeadLetters;
pub use lane::ChannelLane;
pub use sink::{ChangesOf, ChannelSink, ChannelSinkOptions, ChannelWriter};
pub use source::ChannelSource;

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod tests;
