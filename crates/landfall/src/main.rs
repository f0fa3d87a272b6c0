//! The `landfall` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    landfall::main()
}
