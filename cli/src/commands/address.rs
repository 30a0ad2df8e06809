//! `heaptape address`: who allocated and freed an address.

use super::common::{Common, frames, print};
use crate::Outcome;
use heaptape_reports::address::{self, Options};

/// Options of `heaptape address`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address, in hexadecimal: as a debugger, a core dump or a sanitizer prints it
    #[arg(value_name = "ADDRESS", value_parser = parse_address)]
    address: u64,
    /// Frames of each stack to print; all includes wrappers and the interpreter's own
    #[arg(long, value_name = "N|all", default_value = "8", value_parser = frames)]
    frames: usize,
    #[command(flatten)]
    common: Common,
}

/// Parses an address, with or without `0x`.
///
/// # Errors
/// Text that is not a hexadecimal number of at most 64 bits.
fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = if is_number { u64::from_str_radix(digits, 16).ok() } else { None };
    value.ok_or_else(|| format!("'{text}' is not an address such as 0x7f12a4000ea0"))
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { address, frames, common } = args;
    let strict = common.strict();
    let query = common.query(20)?;
    print(strict, |out, style| address::run(&query, Options { address, frames }, out, style))
}

#[cfg(test)]
mod tests {
    use super::parse_address;

    #[test]
    fn addresses_are_hexadecimal() {
        for text in ["0x7f12a4000ea0", "7f12a4000ea0", "0X7F12A4000EA0"] {
            assert_eq!(parse_address(text), Ok(0x7f12_a400_0ea0), "{text}");
        }
        for text in ["", "0x", "main", "+12", "0x1_0", "10000000000000000"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
