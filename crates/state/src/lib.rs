//! Landfall state.
