//! Landfall log.
