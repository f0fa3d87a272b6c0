//! The channel as the engine sees it.
use landfall_engine::contract::PipelineId;

use crate::{Channel, Start};

/// A channel as a source.
#[derive(Debug)]
pub struct ChannelSource {
    _channel: Channel,
}
impl ChannelSource {
    /// A source that reads from `start` where nothing is known, and holds the log as `pipeline:<consumer>`.
    pub fn new(channel: Channel, _start: Start, _consumer: PipelineId) -> Self {
        ChannelSource { _channel: channel }
    }
}
/// The lane of one partition.
#[derive(Debug)]
pub struct ChannelLane {
    _channel: Channel,
}
/// How rows become records.
#[derive(Clone, Debug, Default)]
pub struct ChannelSinkOptions {
    /// The column that is the payload; `None`: each row as one JSON object.
    pub payload_column: Option<String>,
    /// The column that is the record key and routes.
    pub key_column: Option<String>,
}
/// A channel as a sink.
#[derive(Debug)]
pub struct ChannelSink {
    _channel: Channel,
}
impl ChannelSink {
    /// A sink that publishes one record per row.
    pub fn new(channel: Channel, _options: ChannelSinkOptions) -> Self {
        ChannelSink { _channel: channel }
    }
}
/// A channel for dead letters.
#[derive(Clone, Debug)]
pub struct ChannelDeadLetters {
    _channel: Channel,
}
impl ChannelDeadLetters {
    /// Dead letters go to `channel`.
    pub fn new(channel: Channel) -> Self {
        ChannelDeadLetters { _channel: channel }
    }
}
