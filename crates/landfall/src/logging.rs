//! Log lines on stderr, by `LANDFALL_LOG` (default of `run`: `info` of this program, `warn` of its libraries).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sets the process's log up. Called once, by commands that run parts.
pub(crate) fn start(json: bool, default: &str) {
    let filter = EnvFilter::try_from_env("LANDFALL_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call (a test that runs two commands in one process) keeps the first log.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
    };
}
