//! What the end-to-end tests share: the real binary under test, its peers, and the ledger that judges it.
//!
//! Used from `tests/` folders only. It starts processes and ends exactly those that it started, frees its ports by
//! taking free ones, and keeps its files under temporary directories. Waits have deadlines and wait on the thing
//! itself: a line, an exit, an answer.

mod balance;
mod http;
mod ledger;
mod peer;
mod postgres;
mod process;
mod proxy;

pub use balance::{PipelineBalance, balance_of, wait_until_landed};
pub use http::{HttpAnswer, HttpClient};
pub use ledger::{Ledger, NumberSet, Verdict};
pub use peer::{Python, Ran, repository};
pub use postgres::{Postgres, PostgresInstall};
pub use process::{Ended, Landfall, Running, unused_port};
pub use proxy::CuttingProxy;
