//! Landfall client.
