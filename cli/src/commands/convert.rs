//! `heaptape convert`: converts files from one format to another.

use super::export::{ExportArgs, exporters, print_result};
use crate::Outcome;
use heaptape_analyzer::convert::{self, ConvertOptions};
use heaptape_formats::gmon::Form;
use std::path::PathBuf;

/// Options of `heaptape convert`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Format to write
    #[arg(long, alias = "to", value_name = "FORMAT", value_parser = exporters())]
    format: String,
    #[command(flatten)]
    how: ExportArgs,
    /// gmon: variant of the format
    #[arg(hide_short_help = true, long, value_name = "FORM", value_parser = ["magic", "bsd", "4.4bsd"])]
    form: Option<String>,
    /// dcpi: bytes between successive counts, for input files that do not name it and for the
    /// output
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    stride: Option<u32>,
    /// Files of one format, which are summed; compressed or not; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let form = args.form.as_deref().map(|form| match form {
        "bsd" => Form::Bsd,
        "4.4bsd" => Form::Bsd44,
        _ => Form::Magic,
    });
    let options = ConvertOptions { export: args.how.options(), form, stride: args.stride, verify: args.how.verify };
    let written = convert::run(&args.format, &args.files, &options, args.how.output.as_deref())?;
    Ok(print_result(&written))
}
