//! Landfall landfall.
fn main() {}
