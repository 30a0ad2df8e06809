//! `heaptape-parquet`: exports recordings as Parquet tables, for DuckDB, Spark and other programs.
//! `heaptape export --to parquet` runs it.
//!
//! ```text
//! OUT/events/date=2026-11-21/host=web1/recording=heaptape.ls.4711/4711.ls.parquet      allocations/  stacks/  frames/  processes/
//! ```
//! Rows are written in groups, so memory depends on the number of stacks and live blocks, not on
//! that of events.
#![forbid(unsafe_code)]

mod export;
mod ids;
mod table;
#[cfg(test)]
mod tests;

use anyhow::{Context, bail};
use clap::Parser;
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::event::{Bound, Range};
use std::path::PathBuf;
use std::process::ExitCode;

/// Recordings as Parquet tables.
#[derive(Parser)]
#[command(name = "heaptape-parquet", version)]
struct Arguments {
    /// Folder of the tables; other recordings may be in it already
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
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

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("heaptape-parquet: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Exports all recordings. Returns whether they are complete.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
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
            if !process.has_events() {
                eprintln!("heaptape-parquet: {}: left out: it has sums and no events", process.about.folder);
                is_complete = false;
                continue;
            }
            let written = export::write_process(process, &range, &partition, &arguments.output)
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
        bail!("no process with events matches");
    }
    Ok(is_complete)
}
