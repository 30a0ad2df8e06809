//! `heaptape-parquet` writes recordings as Parquet tables, for DuckDB, Spark and others, ships the
//! tables of a daemon's epochs to one place for many hosts, and pushes profiles to servers.
//! `heaptape export --format parquet`, `heaptape daemon ship` and `push` run it. It is a program of
//! its own because its libraries are too large for the command: Parquet, and TLS.
//!
//! ```text
//! OUT/events/date=2026-11-21/host=web1/recording=heaptape.ls.4711/4711.ls-KEY.parquet
//!     allocations/  sites/  stacks/  frames/  processes/
//! ```
//! Rows are written in groups, so memory grows with the number of stacks and live blocks, not with
//! the number of events.
#![forbid(unsafe_code)]

mod export;
mod http;
mod push;
mod ship;
mod sites;
mod table;
#[cfg(test)]
mod tests;

use anyhow::{Context, bail};
use clap::Parser;
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::stack_ids as ids;
use http::Server;
use push::{Protocol, Push, Served};
use ship::Shipment;
use ship::target::Target;
use std::path::PathBuf;
use std::process::ExitCode;

/// Recordings as Parquet tables.
#[derive(Parser)]
#[command(name = "heaptape-parquet", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    subcommand: Option<Subcommand>,
    /// Folder of the tables; other recordings may be in it already
    #[arg(short, long, value_name = "DIR", required = true)]
    output: Option<PathBuf>,
    /// Start of the time range: a time after the start (1.5s, 300ms, 2m), a share of the run (40%)
    /// or the number of an event
    #[arg(long, value_name = "WHEN")]
    from: Option<Bound>,
    /// End of the time range, in the same form
    #[arg(long, value_name = "WHEN")]
    until: Option<Bound>,
    /// Only this process: its pid, or its folder in the recording
    #[arg(long, value_name = "PID|FOLDER")]
    process: Option<String>,
    /// Only processes of this program (* and ? match anything)
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Recordings, folders of processes, or single files
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
}

/// What is done besides writing the tables of recordings.
#[derive(clap::Subcommand)]
enum Subcommand {
    /// Ship the tables of sealed epochs, and print the result as JSON
    Ship(ShipArguments),
    /// Push profiles of the processes that standard input lists, and print the result as JSON
    Push(PushArguments),
}

/// Options of `heaptape-parquet ship`.
#[derive(clap::Args)]
struct ShipArguments {
    /// State folder of the daemon
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Folder, s3://BUCKET/PREFIX, or https://HOST/PATH
    #[arg(long, value_name = "DIR|URL")]
    to: String,
    /// Name of this host in the tables
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// File with the bearer token for https://
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Options of `heaptape-parquet push`.
#[derive(clap::Args)]
struct PushArguments {
    /// State folder of the daemon
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// https://HOST/PATH
    #[arg(long, value_name = "URL")]
    to: String,
    /// Protocol of the server: pyroscope or otlp
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Protocol,
    /// Name of this host in the profiles
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// File with the bearer token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Maximum number of bytes of profiles that wait to be sent
    #[arg(long, value_name = "BYTES")]
    queue_bytes: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.subcommand {
        Some(Subcommand::Ship(arguments)) => ship(arguments),
        Some(Subcommand::Push(arguments)) => push(arguments),
        None => run(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("heaptape-parquet: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Ships the epochs of a state folder, and prints the result. Returns whether all of them are
/// shipped and complete.
fn ship(arguments: &ShipArguments) -> anyhow::Result<bool> {
    let ShipArguments { state, to, host, token_file } = arguments;
    let variable = |name: &str| std::env::var(name).ok();
    let target = Target::parse(to, token_file.as_deref(), &variable).context("invalid destination")?;
    let shipment = Shipment { state: state.clone(), to: to.clone(), target, host: host.clone() };
    let shipped = ship::run(&shipment)?;
    println!("{}", serde_json::to_string(&shipped)?);
    Ok(shipped.error.is_none() && shipped.unreadable == 0)
}

/// Pushes profiles, and prints the result. Returns whether nothing waits and nothing was dropped.
fn push(arguments: &PushArguments) -> anyhow::Result<bool> {
    let PushArguments { state, to, protocol, host, token_file, queue_bytes } = arguments;
    let server = Server::parse(to, token_file.as_deref()).context("invalid destination")?;
    let served: Vec<Served> = serde_json::from_reader(std::io::stdin().lock()).context("the list of processes")?;
    let (state, host) = (state.clone(), host.clone());
    let push = Push { state, server, protocol: *protocol, host, queue_bytes: *queue_bytes };
    let pushed = push::run(&push, served)?;
    println!("{}", serde_json::to_string(&pushed)?);
    Ok(pushed.error.is_none() && pushed.dropped == 0)
}

/// Exports all recordings. Returns whether they are complete.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let output = arguments.output.as_deref().context("--output is missing")?;
    let range = Range { from: arguments.from.clone(), to: arguments.until.clone() };
    let mut done = 0;
    let mut is_complete = true;
    let processes = ProcessFilter {
        process: arguments.process.clone(),
        program: arguments.program.clone(),
        ..ProcessFilter::default()
    };
    for recording in heaptape_analyzer::open_all(&arguments.paths)? {
        let path = recording.path.as_path();
        let partition = export::Partition::of(&recording, path);
        for process in &recording.processes {
            if !processes.matches(process) {
                continue;
            }
            if !process.has_events() && !range.is_all() {
                eprintln!("heaptape-parquet: {}: left out: it has no events of a time range", process.about.folder);
                is_complete = false;
                continue;
            }
            let written = export::write_process(process, &range, &partition, output)
                .with_context(|| format!("{}: {}", path.display(), process.about.folder))?;
            written.files.iter().for_each(|file| println!("{}", file.display()));
            for missing in recording.missing.iter().chain(&process.missing).chain(&written.missing) {
                eprintln!("heaptape-parquet: {}: {missing}", process.about.folder);
                is_complete = false;
            }
            done += 1;
        }
    }
    if done == 0 {
        bail!("no process matches");
    }
    Ok(is_complete)
}
