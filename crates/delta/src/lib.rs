//! Landfall delta.
