//! `heaptape convert`: files of one format as files of another.

use super::export::{How, exporters, tell};
use crate::Outcome;
use heaptape_analyzer::convert::{self, ConvertOptions};
use heaptape_formats::gmon::Form;
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Format of the result
    #[arg(long, alias = "to", value_name = "FORMAT", value_parser = exporters())]
    format: String,
    #[command(flatten)]
    how: How,
    /// gmon: form of the file
    #[arg(long, value_name = "FORM", value_parser = ["magic", "bsd", "4.4bsd"])]
    form: Option<String>,
    /// dcpi: bytes between successive counts, in files that do not say and in the result
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    stride: Option<u32>,
    /// Files of one format, which are added up; packed or not; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let form = args.form.as_deref().map(|form| match form {
        "bsd" => Form::Bsd,
        "4.4bsd" => Form::Bsd44,
        _ => Form::Magic,
    });
    let options = ConvertOptions { export: args.how.options(), form, stride: args.stride, verify: args.how.verify };
    let written = convert::run(&args.format, &args.files, &options, args.how.output.as_deref())?;
    Ok(tell(&written))
}
