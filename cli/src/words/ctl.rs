//! `heaptape ctl`: asks the daemon, or tells it what to do. Each word returns when the thing is done.

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

/// Its words.
#[derive(clap::Args)]
pub struct Args {
    /// The daemon's control socket
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    /// JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    word: Word,
}

#[derive(clap::Subcommand)]
enum Word {
    /// How the daemon stands: processes, events, memory, disk, budgets that were hit
    Status,
    /// The processes that are served, and what is being sent
    List,
    /// One process and its call sites by live bytes
    Show {
        /// Its number
        which: String,
        /// Call sites shown
        #[arg(long, value_name = "N", default_value_t = 20)]
        sites: u64,
    },
    /// Change what is kept of processes that run: off, profile, trace, flight, with :512KiB or :2% behind it. At the end
    /// ,overflow=wait:2s lets threads wait for at most so long when their rings are full, ,overflow=drop does not;
    /// without either they do as the daemon's configuration says
    Mode {
        /// A process's number, a pattern of names, or all
        which: String,
        /// What is kept from now on
        mode: Choice,
    },
    /// Write how processes stand; keep the events of flights
    Snapshot {
        /// A process's number, a pattern of names, or all
        #[arg(default_value = "all")]
        which: String,
    },
    /// End the epoch and begin the next one
    Epoch,
    /// Begin new traces within the epoch
    Rotate {
        /// A process's number, a pattern of names, or all
        #[arg(default_value = "all")]
        which: String,
    },
    /// Bring everything to disk
    Flush,
    /// The metrics, as Prometheus reads them
    Metrics,
    /// End the daemon
    Stop,
}

/// Asks the daemon; what it refuses is an error.
pub fn ask(control: Option<PathBuf>, question: &Value) -> anyhow::Result<Value> {
    let path = control.unwrap_or_else(|| Config::default().control);
    let answer = control::question(&path, question).map_err(|error| no_answer(&path, "--control", &error))?;
    match answer["error"].as_str() {
        Some(why) => anyhow::bail!("the daemon at {}: {}", path.display(), harmless(why)),
        None => Ok(answer),
    }
}

/// The error of a connection to a socket of the daemon: its path, why, and what to do. `option` names another socket.
pub fn no_answer(path: &Path, option: &str, error: &std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("start one with `heaptape daemon`, or name the socket of one that runs with {option} PATH")
        }
        ErrorKind::PermissionDenied => {
            format!("run this as root or as the daemon's user, or name the socket of another daemon with {option} PATH")
        }
        _ => format!("another daemon's socket is named with {option} PATH"),
    };
    anyhow::anyhow!("no daemon answers at {}: {error}; {advice}", path.display())
}

/// Seconds over which a daemon tells growth, once it has served a process for as long.
const GROWTH_SECONDS: u64 = 60;

/// Whether a process has been served for long enough to tell its growth. Older daemons do not say.
pub fn has_growth(one: &Value) -> bool {
    one["growth_seconds"].as_u64().is_none_or(|seconds| seconds >= GROWTH_SECONDS)
}

/// A difference of bytes with its sign.
pub fn signed_bytes(value: i64) -> String {
    format!("{}{}", if value < 0 { '-' } else { '+' }, bytes(value.unsigned_abs()))
}

/// Growth of a process's live bytes in the last minute; a dash before there is a minute.
pub fn growth(one: &Value) -> String {
    if has_growth(one) { signed_bytes(one["growth"].as_i64().unwrap_or(0)) } else { "–".into() }
}

/// Live bytes of a process, marked as the least that it holds where the daemon does not know what it allocated earlier.
pub fn live_bytes(one: &Value) -> String {
    let known = bytes(number(one, "live_bytes"));
    if one["live_since_unix_ns"].is_null() { known } else { format!("≥ {known}") }
}

/// Since when the daemon knows what a process allocates, where that is not its start.
fn live_since(one: &Value) -> Option<String> {
    let minutes = one["live_since_unix_ns"].as_u64()? / 60_000_000_000;
    Some(format!("live since {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60))
}

/// A text that cannot steer a terminal.
pub fn harmless(text: &str) -> String {
    clean(text).into_owned()
}

/// A number of an answer.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

/// A text of an answer.
pub fn text(value: &Value, key: &str) -> String {
    harmless(value[key].as_str().unwrap_or_default())
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let question = match &args.word {
        Word::Status => json!({ "word": "status" }),
        Word::List => json!({ "word": "list" }),
        Word::Show { which, sites } => json!({ "word": "show", "which": which, "sites": sites }),
        Word::Mode { which, mode } => json!({ "word": "mode", "which": which, "mode": mode.to_string() }),
        Word::Snapshot { which } => json!({ "word": "snapshot", "which": which }),
        Word::Epoch => json!({ "word": "epoch" }),
        Word::Rotate { which } => json!({ "word": "rotate", "which": which }),
        Word::Flush => json!({ "word": "flush" }),
        Word::Metrics => json!({ "word": "metrics" }),
        Word::Stop => json!({ "word": "stop" }),
    };
    let answer = ask(args.control, &question)?;
    let mut out = terminal::stdout();
    if let (Word::Metrics, Value::String(text)) = (&args.word, &answer) {
        out.write_all(text.as_bytes())?;
        out.flush()?;
        return Ok(Outcome::Done);
    }
    if args.json {
        json::print(&mut out, &answer)?;
        out.flush()?;
        return Ok(Outcome::Done);
    }
    match args.word {
        Word::Status => status(&answer, &mut out)?,
        Word::List => list(&answer, &mut out)?,
        Word::Show { .. } => show(&answer, &mut out)?,
        Word::Mode { mode, .. } => writeln!(out, "{}: {mode} from now on", processes(&answer))?,
        Word::Snapshot { .. } | Word::Flush => writeln!(out, "{} written", processes(&answer))?,
        Word::Rotate { .. } => writeln!(out, "{} begun anew", counted(number(&answer, "processes"), "trace"))?,
        Word::Epoch => writeln!(out, "{} sealed", counted(number(&answer, "epochs"), "epoch"))?,
        Word::Stop => writeln!(out, "stopped")?,
        Word::Metrics => {}
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
    let modes: Vec<String> = modes.map(|(name, count)| format!("{count} {}", harmless(name))).collect();
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
        "itself     {} resident, {:.1} s of processor time",
        bytes(own("resident_bytes")),
        answer["own"]["cpu_seconds_total"].as_f64().unwrap_or(0.0)
    )?;
    if own("streams") + own("streams_total") + own("streams_refused_total") > 0 {
        writeln!(
            out,
            "streams    {} coming, {} kept ({} not whole, {}), {} refused",
            own("streams"),
            own("streams_total"),
            own("streams_cut_total"),
            bytes(own("stream_bytes_total")),
            own("streams_refused_total")
        )?;
    }
    for (what, times) in answer["budgets_hit"].as_object().into_iter().flatten() {
        writeln!(out, "budget     {} was hit {times} times", harmless(what))?;
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
        let mut held = one["held"].as_str().map(|held| format!("  held down: {}", harmless(held))).unwrap_or_default();
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
            writeln!(out, "             {}", harmless(&frame))?;
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
    fn live_bytes_that_are_not_all_are_marked() {
        assert_eq!(live_bytes(&json!({ "live_bytes": 7, "live_since_unix_ns": null })), bytes(7));
        let one = json!({ "live_bytes": 7, "live_since_unix_ns": (10 * 60 + 31) * 60_000_000_000_u64 });
        assert_eq!(
            (live_bytes(&one), live_since(&one)),
            (format!("≥ {}", bytes(7)), Some("live since 10:31 UTC".into()))
        );
    }
}
