//! Landfall's command: takes records in, keeps them in durable ordered channels, lands them in tables.
//!
//! The binary builds running parts from one YAML file (module `assembly`) and offers the tools around them. It
//! promises what its parts promise and adds: nothing is started that the configuration's check or the plan refused
//! (I14), a shutdown is bounded and names what did not finish (I11), and every end of a command is a documented exit
//! code. Nothing imports it but its own `main` and tests.

mod assembly;
mod bench;
mod check;
mod cli;
mod cluster;
mod config;
mod dead_letters;
mod demo;
mod demo_postgres;
mod endpoint;
mod exit;
mod explain;
mod logging;
mod memory;
mod publish;
mod query;
mod refusal;
mod run;
mod signals;
mod stdout;
#[doc(hidden)]
pub mod storefront;
mod tables;
mod tail;
mod top;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use exit::Exit;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help to stdout and mistakes to stderr by itself.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match dispatch(&cli.command) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) if stdout::is_closed(&error) => ExitCode::from(Exit::Ok.code()),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(Exit::Failed.code())
        }
    }
}

fn dispatch(command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::DemoPostgres(args) => demo_postgres::run(args),
        Command::Publish(args) => client_runtime()?.block_on(publish::run(args)),
        Command::Tail(args) => client_runtime()?.block_on(tail::run(args)),
        Command::Top(args) => client_runtime()?.block_on(top::run(args)),
        Command::Tables(args) => tables::run(args),
        Command::Query(args) => run::runtime(2)?.block_on(query::run(args)),
        Command::Verify(args) => verify::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// Commands that only talk to a server need one thread.
fn client_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
