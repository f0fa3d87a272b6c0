//! Landfall channel.
