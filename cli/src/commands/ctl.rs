//! `heaptape ctl`: queries and controls the daemon. Each request returns when it has been carried
//! out.

use super::frames::Frames;
use crate::{Outcome, terminal};
use heaptape_analyzer::report::json;
use heaptape_analyzer::text::{bytes, clean, count, counted};
use heaptape_recorder::daemon::{
    config::{Choice, Config},
    control,
};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Options of `heaptape ctl`.
#[derive(clap::Args)]
pub struct Args {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    request: Request,
}

#[derive(clap::Subcommand)]
enum Request {
    /// Show the state of the daemon: processes, events, memory, disk, budgets that were hit
    Status,
    /// List the recorded processes and incoming streams
    List,
    /// Show one process and its call sites by live bytes
    Show {
        /// Pid of the process
        which: String,
        /// Maximum number of call sites
        #[arg(long, value_name = "N", default_value_t = 20)]
        sites: u64,
    },
    /// Change the mode of running processes: off, profile, trace or flight, with :512KiB or :2% to
    /// sample, and with ,overflow=wait:2s or ,overflow=drop for full rings. Without an overflow,
    /// the daemon's configuration decides
    Mode {
        /// Pid, pattern of names, or all
        which: String,
        /// New mode
        mode: Choice,
    },
    /// Write snapshots of processes, and save the events of flight recorders
    Snapshot {
        /// Pid, pattern of names, or all
        #[arg(default_value = "all")]
        which: String,
    },
    /// Seal the epoch and start the next one
    Epoch,
    /// Start new traces within the epoch
    Rotate {
        /// Pid, pattern of names, or all
        #[arg(default_value = "all")]
        which: String,
    },
    /// Write everything to disk
    Flush,
    /// Print the metrics in the format of Prometheus
    Metrics,
    /// Stop the daemon
    Stop,
}

/// Sends a request to the daemon and returns its answer.
///
/// # Errors
/// No daemon answers, or it refuses the request.
pub fn ask(control: Option<PathBuf>, request: &Value) -> anyhow::Result<Value> {
    let path = control.unwrap_or_else(|| Config::default().control);
    let answer = control::question(&path, request).map_err(|error| no_answer(&path, "--control", &error))?;
    match answer["error"].as_str() {
        Some(why) => anyhow::bail!("the daemon at {}: {}", path.display(), cleaned(why)),
        None => Ok(answer),
    }
}

/// Returns the error message for a failed connection to the daemon's socket at `path`. `option` is
/// the command line option that names another socket.
pub fn no_answer(path: &Path, option: &str, error: &std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("start one with `heaptape daemon`, or name the socket of a running one with {option} PATH")
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
pub fn has_growth(one: &Value) -> bool {
    one["growth_seconds"].as_u64().is_none_or(|seconds| seconds >= GROWTH_SECONDS)
}

/// Formats a difference of bytes with its sign.
pub fn signed_bytes(value: i64) -> String {
    format!("{}{}", if value < 0 { '-' } else { '+' }, bytes(value.unsigned_abs()))
}

/// Formats the growth of a process's live bytes in the last minute: a dash before there is a
/// minute.
pub fn growth(one: &Value) -> String {
    if has_growth(one) { signed_bytes(one["growth"].as_i64().unwrap_or(0)) } else { "–".into() }
}

/// Formats the live bytes of a process. They are a lower bound (≥) if the daemon does not know what
/// the process allocated before.
pub fn live_bytes(one: &Value) -> String {
    let known = bytes(number(one, "live_bytes"));
    if one["live_since_unix_ns"].is_null() { known } else { format!("≥ {known}") }
}

/// Formats the time from which the daemon knows the allocations of a process, if that is not its
/// start.
fn live_since(one: &Value) -> Option<String> {
    let minutes = one["live_since_unix_ns"].as_u64()? / 60_000_000_000;
    Some(format!("live since {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60))
}

/// Returns a text without control characters.
pub fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}

/// Returns a number of an answer, 0 if it is missing.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

/// Returns a text of an answer without control characters, empty if it is missing.
pub fn text(value: &Value, key: &str) -> String {
    cleaned(value[key].as_str().unwrap_or_default())
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let request = match &args.request {
        Request::Status => json!({ "word": "status" }),
        Request::List => json!({ "word": "list" }),
        Request::Show { which, sites } => json!({ "word": "show", "which": which, "sites": sites }),
        Request::Mode { which, mode } => json!({ "word": "mode", "which": which, "mode": mode.to_string() }),
        Request::Snapshot { which } => json!({ "word": "snapshot", "which": which }),
        Request::Epoch => json!({ "word": "epoch" }),
        Request::Rotate { which } => json!({ "word": "rotate", "which": which }),
        Request::Flush => json!({ "word": "flush" }),
        Request::Metrics => json!({ "word": "metrics" }),
        Request::Stop => json!({ "word": "stop" }),
    };
    let answer = ask(args.control, &request)?;
    let mut out = terminal::stdout();
    if let (Request::Metrics, Value::String(text)) = (&args.request, &answer) {
        out.write_all(text.as_bytes())?;
        out.flush()?;
        return Ok(Outcome::Done);
    }
    if args.json {
        json::print(&mut out, &answer)?;
        out.flush()?;
        return Ok(Outcome::Done);
    }
    match args.request {
        Request::Status => status(&answer, &mut out)?,
        Request::List => list(&answer, &mut out)?,
        Request::Show { .. } => show(&answer, &mut out)?,
        Request::Mode { mode, .. } => writeln!(out, "{}: mode is now {mode}", processes(&answer))?,
        Request::Snapshot { .. } | Request::Flush => writeln!(out, "{} written", processes(&answer))?,
        Request::Rotate { .. } => writeln!(out, "{} started anew", counted(number(&answer, "processes"), "trace"))?,
        Request::Epoch => writeln!(out, "{} sealed", counted(number(&answer, "epochs"), "epoch"))?,
        Request::Stop => writeln!(out, "stopped")?,
        Request::Metrics => {}
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn processes(answer: &Value) -> String {
    counted(number(answer, "processes"), "process")
}

fn status(answer: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    let own = |key: &str| answer["own"][key].as_f64().unwrap_or(0.0) as u64;
    writeln!(
        out,
        "heaptape {} as process {}, for {} s",
        text(answer, "version"),
        number(answer, "pid"),
        number(answer, "seconds")
    )?;
    writeln!(out, "programs   {}", text(answer, "socket"))?;
    let epochs = counted(own("epochs"), "epoch");
    writeln!(out, "epochs     {}, {} in {epochs}", text(answer, "state"), bytes(own("disk_bytes")))?;
    let modes = answer["modes"].as_object().into_iter().flatten();
    let modes: Vec<String> = modes.map(|(name, count)| format!("{count} {}", cleaned(name))).collect();
    writeln!(out, "processes  {}: {}", number(answer, "processes"), modes.join(", "))?;
    writeln!(
        out,
        "events     {} recorded, {} lost, {} sampled out",
        count(own("recorded_events_total")),
        count(own("lost_events_total")),
        count(own("sampled_out_events_total"))
    )?;
    writeln!(
        out,
        "itself     {} resident, {:.1} s of CPU time",
        bytes(own("resident_bytes")),
        answer["own"]["cpu_seconds_total"].as_f64().unwrap_or(0.0)
    )?;
    if own("streams") + own("streams_total") + own("streams_refused_total") > 0 {
        writeln!(
            out,
            "streams    {} incoming, {} stored ({} incomplete, {}), {} refused",
            own("streams"),
            own("streams_total"),
            own("streams_cut_total"),
            bytes(own("stream_bytes_total")),
            own("streams_refused_total")
        )?;
    }
    for (what, times) in answer["budgets_hit"].as_object().into_iter().flatten() {
        writeln!(out, "budget     {} was hit {times} times", cleaned(what))?;
    }
    Ok(())
}

fn list(answer: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:>8} {:<16} {:<12} {:<10} {:>10} {:>10} {:>12} {:>9} {:>9}  LABEL",
        "PID", "NAME", "MODE", "OVERFLOW", "LIVE", "BLOCKS", "ALLOCS/S", "GROWTH", "LOST"
    )?;
    for one in answer.as_array().into_iter().flatten() {
        let mut held = one["held"].as_str().map(|held| format!("  held down: {}", cleaned(held))).unwrap_or_default();
        if let Some(received) = one["received"].as_u64() {
            held = format!("  {} received", bytes(received));
        }
        held.extend(live_since(one).map(|since| format!("  {since}")));
        writeln!(
            out,
            "{:>8} {:<16} {:<12} {:<10} {:>10} {:>10} {:>12} {:>9} {:>9}  {}{held}",
            number(one, "pid"),
            text(one, "name"),
            text(one, "mode"),
            text(one, "overflow"),
            live_bytes(one),
            count(number(one, "live_blocks")),
            count(number(one, "allocs_a_second")),
            growth(one),
            count(number(one, "lost")),
            text(one, "label"),
        )?;
    }
    Ok(())
}

fn show(answer: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    list(&Value::Array(vec![answer.clone()]), out)?;
    writeln!(out, "in {}", text(answer, "folder"))?;
    let mut frames = Frames::default();
    for site in answer["call_sites"].as_array().into_iter().flatten() {
        writeln!(
            out,
            "{:>10} in {:>8} blocks, {} allocated",
            bytes(number(site, "live_bytes")),
            count(number(site, "live_blocks")),
            bytes(number(site, "bytes"))
        )?;
        for frame in frames.named(site, 12) {
            writeln!(out, "             {}", cleaned(&frame))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_needs_a_minute() {
        assert_eq!(growth(&json!({ "growth": 2048, "growth_seconds": 59 })), "–");
        assert_eq!(growth(&json!({ "growth": -2048, "growth_seconds": 60 })), format!("-{}", bytes(2048)));
        assert_eq!(growth(&json!({ "growth": 2048 })), format!("+{}", bytes(2048)));
    }

    #[test]
    fn live_bytes_from_a_later_start_are_a_lower_bound() {
        assert_eq!(live_bytes(&json!({ "live_bytes": 7, "live_since_unix_ns": null })), bytes(7));
        let one = json!({ "live_bytes": 7, "live_since_unix_ns": (10 * 60 + 31) * 60_000_000_000_u64 });
        assert_eq!(
            (live_bytes(&one), live_since(&one)),
            (format!("≥ {}", bytes(7)), Some("live since 10:31 UTC".into()))
        );
    }
}
