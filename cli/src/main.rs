//! The command `heaptape`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    heaptape_cli::main()
}
