//! Where files are shipped to: a folder, S3-compatible object storage, or an HTTP server. A file
//! appears completely under its name or not at all, and one that is there is never replaced.

use crate::http::{Server, agent};
use anyhow::{Context, anyhow, bail};
use rusty_s3::actions::S3Action;
use rusty_s3::{Bucket, Credentials, UrlStyle};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

/// How long a signature is valid.
const SIGNATURE_TIME: Duration = Duration::from_secs(300);
/// Pauses before a request is sent again.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// Maximum length of an answer in an error message.
const MAX_ANSWER: u64 = 300;

/// A destination of files.
pub(crate) enum Target {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket, and the prefix of all names in it.
    Bucket(Box<Bucket>, Option<Credentials>, String, Agent),
    /// The URL below which files are put, and the token.
    Server(String, Option<String>, Agent),
}

/// Returns the bucket of a URL such as `s3://tables/fleet`, by the variables of the AWS tools.
fn bucket(rest: &str, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Target> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let region = first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| "us-east-1".into());
    let endpoint = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
    // Servers other than AWS seldom have a host name for each bucket.
    let style = if endpoint.is_some() { UrlStyle::Path } else { UrlStyle::VirtualHost };
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let endpoint = endpoint.parse().map_err(|error| anyhow!("AWS_ENDPOINT_URL: {error}"))?;
    let bucket = Bucket::new(endpoint, style, name.to_owned(), region)?;
    let (id, secret) = (first(&["AWS_ACCESS_KEY_ID"]), first(&["AWS_SECRET_ACCESS_KEY"]));
    let credentials = match (id, secret, first(&["AWS_SESSION_TOKEN"])) {
        (Some(id), Some(secret), Some(token)) => Some(Credentials::new_with_token(id, secret, token)),
        (Some(id), Some(secret), None) => Some(Credentials::new(id, secret)),
        (None, None, _) => None,
        _ => bail!("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set together"),
    };
    let prefix = prefix.trim_matches('/');
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok(Target::Bucket(Box::new(bucket), credentials, prefix, agent()))
}

/// The answer to a file that was sent.
enum Answer {
    Stored,
    /// There is a file of that name.
    Exists,
    /// The server does not support the condition that there is no file of that name.
    NoCondition,
    Failed(anyhow::Error),
}

/// Classifies the answer of a server; `Err` means that the request may be sent again.
fn answer(sent: Result<Response<Body>, ureq::Error>) -> Result<Answer, anyhow::Error> {
    let response = sent.map_err(|error| anyhow!("{error}"))?;
    let status = response.status();
    if status.is_success() {
        return Ok(Answer::Stored);
    }
    if status == StatusCode::PRECONDITION_FAILED {
        return Ok(Answer::Exists);
    }
    if status == StatusCode::NOT_IMPLEMENTED {
        return Ok(Answer::NoCondition);
    }
    let mut body = response.into_body();
    let text = body.with_config().limit(MAX_ANSWER).lossy_utf8(true).read_to_string().unwrap_or_default();
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let error = anyhow!("the server answered {status}: {}", text.trim());
    // A conflict is another writer of the same name.
    let is_passing = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT);
    if is_passing { Err(error) } else { Ok(Answer::Failed(error)) }
}

/// Sends a request until there is an answer that would not change.
fn send(once: &dyn Fn() -> Result<Response<Body>, ureq::Error>) -> anyhow::Result<Answer> {
    let mut pauses = PAUSES.iter();
    loop {
        match answer(once()) {
            Ok(Answer::Failed(error)) => return Err(error),
            Ok(answer) => return Ok(answer),
            Err(error) => match pauses.next() {
                Some(pause) => sleep(*pause),
                None => return Err(error),
            },
        }
    }
}

impl Target {
    /// Parses a destination: `s3://BUCKET/PREFIX`, `https://HOST/PATH`, `http://HOST/PATH`, or a
    /// folder. `variable` returns environment variables.
    ///
    /// # Errors
    /// Returns an error if the destination or the settings that it needs are invalid.
    pub(crate) fn parse(
        to: &str,
        token_file: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Target> {
        if let Some(rest) = to.strip_prefix("s3://") {
            return bucket(rest, variable).context("object storage");
        }
        if to.starts_with("https://") || to.starts_with("http://") {
            let Server { url, token, agent } = Server::parse(to, token_file)?;
            return Ok(Target::Server(url, token, agent));
        }
        if let Some((scheme, _)) = to.split_once("://") {
            bail!("unknown scheme '{scheme}': must be a folder, s3://, https:// or http://");
        }
        Ok(Target::Folder(to.into()))
    }

    /// Stores a file under a name, with `/` between the folders of the name. Returns whether it was
    /// stored; if not, a file of that name is there.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or stored.
    pub(crate) fn put(&self, name: &str, file: &Path) -> anyhow::Result<bool> {
        match self {
            Target::Folder(folder) => store(&folder.join(name), file),
            Target::Bucket(bucket, credentials, prefix, agent) => {
                let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
                let object = format!("{prefix}{name}");
                let put = |is_new: bool| {
                    let mut action = bucket.put_object(credentials.as_ref(), &object);
                    if is_new {
                        action.headers_mut().insert("if-none-match", "*");
                    }
                    let request = agent.put(action.sign(SIGNATURE_TIME).as_str());
                    let request = if is_new { request.header("if-none-match", "*") } else { request };
                    request.send(&bytes)
                };
                let exists = || {
                    let action = bucket.head_object(credentials.as_ref(), &object);
                    agent.head(action.sign(SIGNATURE_TIME).as_str()).call()
                };
                match send(&|| put(true))? {
                    Answer::NoCondition if exists().is_ok_and(|head| head.status().is_success()) => Ok(false),
                    Answer::NoCondition => match send(&|| put(false))? {
                        Answer::Stored => Ok(true),
                        _ => bail!("the server stores no files"),
                    },
                    answer => Ok(matches!(answer, Answer::Stored)),
                }
            }
            Target::Server(url, token, agent) => {
                let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
                let put = || {
                    let request = agent.put(format!("{url}/{name}")).header("if-none-match", "*");
                    let request = match token {
                        Some(token) => request.header("authorization", format!("Bearer {token}")),
                        None => request,
                    };
                    request.send(&bytes)
                };
                match send(&put)? {
                    Answer::NoCondition => bail!("the server does not support If-None-Match"),
                    answer => Ok(matches!(answer, Answer::Stored)),
                }
            }
        }
    }
}

/// Copies a file to a path that does not exist. Another name has the copy until it is complete.
fn store(to: &Path, file: &Path) -> anyhow::Result<bool> {
    let name = |error| anyhow::Error::from(error).context(to.display().to_string());
    let folder = to.parent().context("a name without a folder")?;
    std::fs::create_dir_all(folder).map_err(name)?;
    if to.exists() {
        return Ok(false);
    }
    let bytes = std::fs::read(file).map_err(name)?;
    let mut copy = tempfile::Builder::new().prefix(".heaptape-").tempfile_in(folder).map_err(name)?;
    copy.write_all(&bytes).and_then(|()| copy.as_file().sync_all()).map_err(name)?;
    match copy.persist_noclobber(to) {
        Ok(_) => {}
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(name(error.error)),
    }
    // Tables are read by others than their writer.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o640)).map_err(name)?;
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(name)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed() {
        let none = |_: &str| None;
        let parse = |to: &str| Target::parse(to, None, &none);
        assert!(matches!(parse("/srv/tables"), Ok(Target::Folder(_))));
        assert!(matches!(parse("s3://tables/fleet/"), Ok(Target::Bucket(_, None, prefix, _)) if prefix == "fleet/"));
        assert!(
            matches!(parse("https://web1/tables/"), Ok(Target::Server(url, None, _)) if url == "https://web1/tables")
        );
        for invalid in ["ftp://x", "https://", "https://user:secret@web1/", "https://web1/?key=secret"] {
            let error = parse(invalid).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!error.is_empty() && !error.contains("secret@"), "{invalid}: {error}");
        }
        let half = |name: &str| (name == "AWS_ACCESS_KEY_ID").then(|| "id".to_owned());
        assert!(Target::parse("s3://tables", None, &half).is_err());
    }

    #[test]
    fn tokens_are_not_sent_in_the_clear() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, " secret-of-the-fleet \n").unwrap();
        let parse = |to: &str| Target::parse(to, Some(&file), &|_| None);
        assert!(parse("http://web1/tables").is_err());
        assert!(parse("http://localhost:80/tables").is_ok());
        assert!(
            matches!(parse("https://web1/tables"), Ok(Target::Server(_, Some(token), _)) if token == "secret-of-the-fleet")
        );
    }

    #[test]
    fn files_are_stored_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let target = Target::Folder(folder.path().join("to"));
        std::fs::write(&file, "one").unwrap();
        assert!(target.put("a/b.parquet", &file).unwrap());
        std::fs::write(&file, "two").unwrap();
        assert!(!target.put("a/b.parquet", &file).unwrap());
        let stored: Vec<_> = std::fs::read_dir(folder.path().join("to/a")).unwrap().flatten().collect();
        assert_eq!(stored.len(), 1);
        assert_eq!(std::fs::read_to_string(stored[0].path()).unwrap(), "one");
    }
}
