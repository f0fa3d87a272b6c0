//! Landfall testkit.
