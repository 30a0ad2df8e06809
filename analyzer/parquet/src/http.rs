//! HTTP servers to which files and profiles are sent.

use anyhow::{Context, bail};
use std::path::Path;
use std::time::Duration;
use ureq::Agent;

/// Longest time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An HTTP server to which something is sent.
pub(crate) struct Server {
    /// The URL below which everything is sent, without a slash at its end.
    pub url: String,
    /// The bearer token, if there is one.
    pub token: Option<String>,
    /// The client that sends the requests.
    pub agent: Agent,
}

impl Server {
    /// Parses a URL, and reads the token in a file.
    ///
    /// # Errors
    /// Returns an error if the URL is not one, if it contains a secret, if the token cannot be
    /// read, or if it would be sent without TLS to another machine.
    pub(crate) fn parse(url: &str, token_file: Option<&Path>) -> anyhow::Result<Server> {
        let host = url.split('/').nth(2).unwrap_or_default();
        let is_http = url.starts_with("https://") || url.starts_with("http://");
        if !is_http || host.is_empty() || host.contains('@') || url.contains(['?', '#']) {
            bail!("must be https://HOST/PATH; --token-file has the secret, if there is one");
        }
        let token = token_file.map(token).transpose()?;
        if token.is_some() && url.starts_with("http://") && !is_loopback(host) {
            bail!("a token is only sent by https:// or to this machine");
        }
        Ok(Server { url: url.trim_end_matches('/').to_owned(), token, agent: agent() })
    }
}

/// Reads the token of an HTTP server from a file.
fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let token = text.trim().to_owned();
    if token.is_empty() || token.bytes().any(|byte| byte.is_ascii_control()) {
        bail!("{}: must be one line with a token", path.display());
    }
    Ok(token)
}

/// Returns a client that uses the certificates of the system, follows no redirection and returns
/// all answers.
pub(crate) fn agent() -> Agent {
    let tls = ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier).build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(REQUEST_TIMEOUT))
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("heaptape/", env!("CARGO_PKG_VERSION")))
        .build();
    Agent::new_with_config(config)
}

fn is_loopback(host: &str) -> bool {
    let name = host.strip_prefix('[').and_then(|rest| rest.split(']').next());
    let name = name.unwrap_or_else(|| host.split(':').next().unwrap_or_default());
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_this_machine_only() {
        assert!(is_loopback("127.0.0.1:80") && is_loopback("[::1]:80") && is_loopback("localhost"));
        assert!(!is_loopback("10.0.0.1") && !is_loopback("localhost.example"));
    }
}
