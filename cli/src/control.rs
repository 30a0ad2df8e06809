//! The connection of `ctl` and `top` to the daemon, and how they show its processes.

use heaptape_analyzer::text::{bytes, clean};
use heaptape_daemon::config::{self, Choice};
use heaptape_daemon::protocol::{Process, Refusal, Request, Response};
use heaptape_formats::date::Date;
use heaptape_formats::resident::short_name;
use heaptape_recorder::session::options::Mode;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The control socket of a daemon.
pub(crate) struct Control(PathBuf);

impl Control {
    /// Returns the socket at a path, by default that of the user's own daemon.
    pub(crate) fn at(path: Option<PathBuf>) -> Control {
        Control(path.unwrap_or_else(config::control_to_ask))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Sends a request and returns the JSON of the answer.
    ///
    /// # Errors
    /// No daemon answers, or it refuses the request.
    pub(crate) fn json(&self, request: &Request) -> anyhow::Result<Value> {
        let answer = heaptape_daemon::ask(&self.0, request).map_err(|error| no_answer(&self.0, "--control", &error))?;
        match serde_json::from_value(answer.clone()) {
            Ok(Refusal { error }) => {
                // That of a configuration file has several lines.
                let lines: Vec<_> = error.lines().map(|line| clean(line).into_owned()).collect();
                anyhow::bail!("the daemon at {}: {}", self.0.display(), lines.join("\n"))
            }
            Err(_) => Ok(answer),
        }
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// No daemon answers, it refuses the request, or its answer has another form.
    pub(crate) fn ask(&self, request: &Request) -> anyhow::Result<Response> {
        self.read(request, self.json(request)?)
    }

    /// Interprets the JSON of the answer to a request.
    ///
    /// # Errors
    /// The answer has another form than this version knows.
    pub(crate) fn read(&self, request: &Request, answer: Value) -> anyhow::Result<Response> {
        Response::read(request, answer).map_err(|error| self.unexpected(&error.to_string()))
    }

    /// Returns the error for an answer that this version does not understand.
    pub(crate) fn unexpected(&self, why: &str) -> anyhow::Error {
        let why = clean(why);
        anyhow::anyhow!("the daemon at {} has an answer of another version: {why}; restart it", self.0.display())
    }
}

/// Returns the error message for a failed connection to the daemon's socket at `path`. `option` is
/// the command line option that names another socket.
pub(crate) fn no_answer(path: &Path, option: &str, error: &std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("start one with `heaptape daemon start`, or name the socket of a running one with {option} PATH")
        }
        ErrorKind::PermissionDenied => {
            format!("run this as root or as the daemon's user, or name the socket of another daemon with {option} PATH")
        }
        _ => format!("name the socket of another daemon with {option} PATH"),
    };
    anyhow::anyhow!("no daemon answers at {}: {error}; {advice}", path.display())
}

/// Seconds over which the daemon measures growth.
const GROWTH_SECONDS: u64 = 60;

/// Returns whether a process has been recorded for long enough to know its growth. Older daemons do
/// not send the time.
pub(crate) fn has_growth(process: &Process) -> bool {
    process.growth_seconds.is_none_or(|seconds| seconds >= GROWTH_SECONDS)
}

/// Formats a difference of bytes with its sign.
pub(crate) fn signed_bytes(value: i64) -> String {
    format!("{}{}", if value < 0 { '-' } else { '+' }, bytes(value.unsigned_abs()))
}

/// Formats the growth of a process's live bytes in the last minute: a dash before there is a
/// minute.
pub(crate) fn growth(process: &Process) -> String {
    if has_growth(process) { signed_bytes(process.growth) } else { "–".into() }
}

/// Formats the live bytes of a process. They are a lower bound (≥) if the daemon does not know what
/// the process allocated before.
pub(crate) fn live_bytes(process: &Process) -> String {
    // A dormant process has no known blocks.
    if is_off(process) {
        return "–".into();
    }
    let known = bytes(process.live_bytes);
    if process.live_since_unix_ns.is_none() { known } else { format!("≥ {known}") }
}

/// Formats the resident memory of a process.
pub(crate) fn resident(process: &Process) -> String {
    if process.resident_bytes == 0 { "–".into() } else { bytes(process.resident_bytes) }
}

/// Formats the resident memory of a process at its last snapshot by use, the largest first; `None`
/// if it is not known.
pub(crate) fn resident_parts(process: &Process) -> Option<String> {
    let mut parts: Vec<(&String, &u64)> = process.resident_parts.iter().collect();
    parts.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), *name));
    let text = |(name, size): &(&String, &u64)| format!("{} {}", bytes(**size), clean(short_name(name)));
    let shown: Vec<String> = parts.iter().map(text).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn is_off(process: &Process) -> bool {
    process.mode.parse::<Choice>().is_ok_and(|choice| choice.mode == Mode::Off)
}

/// Formats a mode as users write it: `profile:65536` is `profile:64KiB`.
pub(crate) fn mode(mode: &str) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let (kept, overflow) = mode.split_once(',').map_or((mode, None), |(kept, overflow)| (kept, Some(overflow)));
    let sampled = kept.split_once(':').and_then(|(name, interval)| Some((name, interval.parse::<u64>().ok()?)));
    let Some((name, interval)) = sampled else { return mode.to_owned() };
    let unit = UNITS.iter().find(|(bytes, _)| interval >= *bytes && interval.is_multiple_of(*bytes));
    let (bytes, unit) = unit.copied().unwrap_or((1, ""));
    let overflow = overflow.map(|overflow| format!(",{overflow}")).unwrap_or_default();
    format!("{name}:{}{unit}{overflow}", interval / bytes)
}

/// Formats the time from which the daemon knows the allocations of a process, if that is not its
/// start.
pub(crate) fn live_since(process: &Process) -> Option<String> {
    if is_off(process) {
        return None;
    }
    let Date { hour, minute, .. } = Date::from_unix(process.live_since_unix_ns? / 1_000_000_000);
    Some(format!("live since {hour:02}:{minute:02} UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_needs_a_minute() {
        let process = |growth, growth_seconds| Process { growth, growth_seconds, ..Process::default() };
        assert_eq!(growth(&process(2048, Some(59))), "–");
        assert_eq!(growth(&process(-2048, Some(60))), format!("-{}", bytes(2048)));
        assert_eq!(growth(&process(2048, None)), format!("+{}", bytes(2048)));
    }

    #[test]
    fn modes_have_the_units_that_users_write() {
        for (sent, shown) in [
            ("trace", "trace"),
            ("flight:2%", "flight:2%"),
            ("profile:65536", "profile:64KiB"),
            ("profile:1073741824", "profile:1GiB"),
            ("profile:1000", "profile:1000"),
            ("trace:0", "trace:0"),
        ] {
            assert_eq!(mode(sent), shown);
        }
    }

    #[test]
    fn live_bytes_from_a_later_start_are_a_lower_bound() {
        let process = |live_since_unix_ns| Process { live_bytes: 7, live_since_unix_ns, ..Process::default() };
        assert_eq!((live_bytes(&process(None)), live_since(&process(None))), (bytes(7), None));
        let one = process(Some((10 * 60 + 31) * 60_000_000_000));
        assert_eq!(
            (live_bytes(&one), live_since(&one)),
            (format!("≥ {}", bytes(7)), Some("live since 10:31 UTC".into()))
        );
        let dormant = Process { mode: "off".into(), ..one };
        assert_eq!((live_bytes(&dormant), live_since(&dormant)), ("–".into(), None));
    }
}
