//! Landfall protocol.
