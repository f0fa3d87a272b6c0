//! Landfall server.
