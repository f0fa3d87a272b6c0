//! The `landfall` command.

use std::process::ExitCode;

/// A record is made by a connection's thread and freed by the one that evicts it from memory, in millions.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    landfall::main()
}
