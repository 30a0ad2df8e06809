//! Addresses at which the daemon serves metrics and profiles.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where metrics and profiles are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and port of TCP.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Address::Unix(path)) } else { Err(invalid(text)) };
        }
        text.parse().map(Address::Tcp).map_err(|_| invalid(text))
    }
}

fn invalid(text: &str) -> String {
    format!("invalid address '{text}': must be such as 127.0.0.1:9469 or unix:/run/heaptape/metrics")
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(out, "{address}"),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown() {
        for text in ["unix:", "unix:run/x", "9469", "localhost:9469", ""] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        let address: Address = "unix:/run/x".parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((address.clone(), address.to_string()), (Address::Unix("/run/x".into()), "unix:/run/x".into()));
    }
}
