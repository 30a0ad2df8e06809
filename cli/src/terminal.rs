//! Standard output and standard error without control characters: paths and names come from
//! recorded programs, and must not control the terminal. All subcommands use the `println!` and
//! `eprintln!` below. Reports print colors, so they clean their lines themselves
//! (`heaptape_analyzer::text::Screen`).

use heaptape_analyzer::text::SanitizingWriter;
use std::fmt::Arguments;
use std::io::{self, BufWriter, StderrLock, StdoutLock, Write};

/// Returns standard output, cleaned and buffered. The caller flushes it at the end.
pub(crate) fn stdout() -> BufWriter<SanitizingWriter<StdoutLock<'static>>> {
    BufWriter::new(SanitizingWriter::new(io::stdout().lock()))
}

/// Returns standard error, cleaned and unbuffered.
pub(crate) fn stderr() -> SanitizingWriter<StderrLock<'static>> {
    SanitizingWriter::new(io::stderr().lock())
}

/// Prints a line on standard output.
///
/// # Panics
/// Panics when standard output cannot be written, as the standard library's `println!` does. When
/// the reader has closed the pipe, the command exits with status 0 instead.
pub(crate) fn print_line(line: Arguments<'_>) {
    let mut out = SanitizingWriter::new(io::stdout().lock());
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.expect("standard output can be written"),
    }
}

/// Prints a line on standard error. Ignores errors.
pub(crate) fn print_error(line: Arguments<'_>) {
    let mut out = stderr();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Replaces the standard library's `println!`.
macro_rules! println {
    ($($line:tt)*) => { $crate::terminal::print_line(format_args!($($line)*)) };
}

/// Replaces the standard library's `eprintln!`.
macro_rules! eprintln {
    ($($line:tt)*) => { $crate::terminal::print_error(format_args!($($line)*)) };
}
