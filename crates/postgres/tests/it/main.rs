//! The change source against real servers.

mod transport;
