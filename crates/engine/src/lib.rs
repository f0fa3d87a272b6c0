//! Landfall engine.
