//! Landfall sql.
