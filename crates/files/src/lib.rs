//! Landfall files.
