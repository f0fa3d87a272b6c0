//! Against real servers, and against what they once sent.

mod golden;
mod types;
