//! Lines of data on stdout. A reader that has seen enough (`| head`) closes the pipe: that ends the command, quietly.

use std::io::Write;

/// One line, written whole.
pub(crate) fn line(text: impl std::fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Whether an error is a reader that went away.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
