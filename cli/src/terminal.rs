//! Standard output and standard error, as nothing that is printed can steer a terminal. What prints colors of its own, reports, cleans
//! its lines one by one (`heaptape_analyzer::text::Screen`) and writes to the streams themselves.
//!
//! `println!` and `eprintln!` of all subcommands are the ones below, so that no message can forget it: paths and names come from
//! other people's programs.

use heaptape_analyzer::text::Harmless;
use std::fmt::Arguments;
use std::io::{self, BufWriter, StderrLock, StdoutLock, Write};

/// Standard output, cleaned. The end must be flushed.
pub fn stdout() -> BufWriter<Harmless<StdoutLock<'static>>> {
    BufWriter::new(Harmless::new(io::stdout().lock()))
}

/// Standard error, cleaned.
pub fn stderr() -> Harmless<StderrLock<'static>> {
    Harmless::new(io::stderr().lock())
}

/// Prints a line on standard output.
///
/// # Panics
/// When standard output cannot be written, as the standard library's `println!` does. A reader that stopped reading is no failure:
/// then the command ends.
pub fn print_line(line: Arguments<'_>) {
    let mut out = Harmless::new(io::stdout().lock());
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.expect("standard output can be written"),
    }
}

/// Prints a line on standard error, if that is possible.
pub fn print_error(line: Arguments<'_>) {
    let mut out = stderr();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The standard library's, cleaned.
macro_rules! println {
    ($($line:tt)*) => { $crate::terminal::print_line(format_args!($($line)*)) };
}

/// The standard library's, cleaned.
macro_rules! eprintln {
    ($($line:tt)*) => { $crate::terminal::print_error(format_args!($($line)*)) };
}
