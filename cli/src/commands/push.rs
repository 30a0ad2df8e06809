//! `heaptape daemon push`: pushes profiles of the programs that the daemon serves to a server.
//! `heaptape-parquet` does the work.

use super::live;
use crate::Outcome;
use crate::control::Control;
use anyhow::{Context, anyhow, bail};
use heaptape_analyzer::export::parquet;
use heaptape_analyzer::text::{bytes, clean, counted};
use heaptape_daemon::config::{DEFAULT_PUSH_QUEUE, PushProtocol};
use heaptape_daemon::protocol::Request;
use heaptape_formats::quantity::Size;
use heaptape_recorder::session::options::Mode;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options of `heaptape daemon push`.
#[derive(clap::Args)]
#[command(
    after_help = "Each push has what the programs allocated since the last push to this server, and what they hold now. What the server does \
    not take waits in the state folder for the next push. The exit status is 1 when something waits or was dropped.\n\n\
    The first push to a server has what the programs hold; what they allocated counts from then on."
)]
pub(super) struct Args {
    /// Server: https://HOST/PATH; /ingest or /v1development/profiles is appended
    #[arg(long, value_name = "URL")]
    to: String,
    /// Protocol of the server: pyroscope or otlp
    #[arg(long, value_name = "PROTOCOL", default_value = "pyroscope")]
    protocol: PushProtocol,
    /// Only programs with this name, pid or label (* and ? are wildcards) [default: all]
    #[arg(long, value_name = "NAME|PID|LABEL")]
    live: Option<String>,
    /// Name of this host in the profiles [default: that in the recordings]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// File with the bearer token for https://
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Maximum size of the profiles that wait; the oldest are dropped [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { to, protocol, live, host, token_file, queue, control, json } = args;
    let helper = parquet::helper().ok_or_else(|| {
        anyhow!("{} is not installed; `cargo build --release -p {}` makes it", parquet::HELPER, parquet::HELPER)
    })?;
    let control = Control::at(control);
    // A snapshot would keep the events of flight recordings, each time.
    control.ask(&Request::Flush)?;
    let which = live.as_deref().unwrap_or("*");
    let (state, chosen) = live::chosen(which, &control)?;
    if chosen.is_empty() && live.is_some() {
        return Err(live::unknown(which));
    }
    // Flight recordings are kept for incidents; dormant processes have no sums.
    let is_counted = |mode: &str| [Mode::Profile, Mode::Trace].iter().any(|counted| mode.starts_with(counted.name()));
    let chosen = chosen.into_iter().filter(|process| is_counted(&process.mode));
    let served: Vec<Value> = chosen
        .map(|process| json!({"pid": process.pid, "uid": process.uid, "live_bytes": process.live_bytes}))
        .collect();
    let mut command = Command::new(&helper);
    command.args(["push", "--to", &to, "--protocol", protocol.name()]).arg("--state").arg(state);
    command.args(["--queue-bytes", &queue.map_or(DEFAULT_PUSH_QUEUE, |size| size.0).to_string()]);
    if let Some(host) = host {
        command.args(["--host", &host]);
    }
    if let Some(file) = token_file {
        command.arg("--token-file").arg(file);
    }
    // Its messages are shown as heaptape's own.
    command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().with_context(|| helper.display().to_string())?;
    if let Some(mut input) = child.stdin.take() {
        // A child that fails at once reads nothing, and says why.
        let _ = input.write_all(Value::from(served).to_string().as_bytes());
    }
    let output = child.wait_with_output().with_context(|| helper.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Ok(pushed) = serde_json::from_str::<Value>(&text) else {
        bail!("{} failed: {}", parquet::HELPER, output.status);
    };
    let count = |key: &str| pushed[key].as_u64().unwrap_or(0);
    if json {
        print!("{text}");
    } else {
        let size = bytes(count("bytes"));
        let (waiting, dropped) = (count("waiting"), count("dropped"));
        println!("{} pushed ({size}), {waiting} waiting, {dropped} dropped", counted(count("profiles"), "profile"));
    }
    if let Some(error) = pushed["error"].as_str().filter(|_| !json) {
        eprintln!("heaptape: the server: {}", clean(error));
    }
    Ok(if output.status.success() { Outcome::Done } else { Outcome::Partial })
}
