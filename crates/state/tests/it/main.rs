//! The state store and LOCK as their users meet them.

mod lock;
mod store;
