//! Landfall's command: takes records in, keeps them in durable ordered channels, lands them in tables.
//!
//! The binary builds running parts from one YAML file (module `assembly`) and offers the tools around them. It
//! promises what its parts promise and adds: nothing is started that [`config`] or the plan refused (I14), a
//! shutdown is bounded and names what did not finish (I11), and every end of a command is a documented exit code.
//! Nothing imports it but its own `main` and tests.

mod assembly;
mod cli;
mod config;
mod exit;
mod explain;
#[doc(hidden)]
pub mod storefront;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help to stdout and mistakes to stderr by itself.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let ended = match &cli.command {
        cli::Command::Explain(args) => explain::run(args),
        _ => Ok(exit::Exit::Failed),
    };
    match ended {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit::Exit::Failed.code())
        }
    }
}
