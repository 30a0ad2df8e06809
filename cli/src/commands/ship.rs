//! `heaptape daemon ship`: ships the tables of sealed epochs to one place for many hosts.
//! `heaptape-parquet` does the work.

use crate::Outcome;
use anyhow::{Context, anyhow, bail};
use heaptape_analyzer::export::parquet;
use heaptape_analyzer::text::{bytes, clean, counted};
use heaptape_daemon::config::Config;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options of `heaptape daemon ship`.
#[derive(clap::Args)]
#[command(
    after_help = "Each sealed epoch is shipped once, under names that no other epoch and no other host has; a second run continues where \
    the first one stopped. The exit status is 1 when some epochs are not shipped, or cannot be read.\n\n\
    s3:// takes AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL from the environment."
)]
pub(super) struct Args {
    /// Folder, s3://BUCKET/PREFIX, or https://HOST/PATH, where each file is sent with PUT
    #[arg(long, value_name = "DIR|URL")]
    to: String,
    /// State folder of the daemon
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Name of this host in the tables [default: that in the recordings]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// File with the bearer token for https://
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { to, state, host, token_file, json } = args;
    let helper = parquet::helper().ok_or_else(|| {
        anyhow!("{} is not installed; `cargo build --release -p {}` makes it", parquet::HELPER, parquet::HELPER)
    })?;
    let mut command = Command::new(&helper);
    command.args(["ship", "--to", &to]).arg("--state").arg(state.unwrap_or_else(|| Config::default().state));
    if let Some(host) = host {
        command.args(["--host", &host]);
    }
    if let Some(file) = token_file {
        command.arg("--token-file").arg(file);
    }
    // Its messages are shown as heaptape's own.
    let output = command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| helper.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Ok(shipped) = serde_json::from_str::<Value>(&text) else {
        bail!("{} failed: {}", parquet::HELPER, output.status);
    };
    let count = |key: &str| shipped[key].as_u64().unwrap_or(0);
    if json {
        print!("{text}");
    } else {
        let files = format!("{}, {}", counted(count("files"), "file"), bytes(count("bytes")));
        println!("{} shipped ({files}), {} waiting", counted(count("epochs"), "epoch"), count("waiting"));
        if count("removed_unshipped") > 0 {
            println!("removed before shipping: {}", counted(count("removed_unshipped"), "epoch"));
        }
    }
    if let Some(error) = shipped["error"].as_str().filter(|_| !json) {
        eprintln!("heaptape: the destination: {}", clean(error));
    }
    Ok(if output.status.success() { Outcome::Done } else { Outcome::Partial })
}
