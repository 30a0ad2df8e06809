//! `heaptape open`: shows a recording as a page in the browser.

use super::common::{Names, ProcessArgs};
use super::{export, newest};
use crate::Outcome;
use anyhow::{Context, anyhow};
use heaptape_analyzer::export::{Options, exporter, run as write};
use heaptape_recorder::target::proc::sanitized_name;
use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Pages that are kept in the cache folder.
const MAX_PAGES: usize = 20;

/// Options of `heaptape open`.
#[derive(clap::Args)]
#[command(after_help = "The page is one file, which needs no network. Without a desktop its path is printed.")]
pub(crate) struct Args {
    /// A recording, or two whose differences are shown [default: the newest recording in this
    /// folder]
    #[arg(value_name = "DIR|FILE", num_args = 0..=2)]
    paths: Vec<PathBuf>,
    /// Write the page to this file [default: a file in ~/.cache/heaptape/pages]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the path of the page, and start no browser
    #[arg(short, long)]
    print: bool,
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    names: Names,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let paths = newest::or_newest(args.paths)?;
    let html = exporter("html").ok_or_else(|| anyhow!("there is no page"))?;
    let page = match args.output {
        Some(file) => std::path::absolute(file)?,
        None => cached(&paths)?,
    };
    let options = Options { processes: args.processes.processes(), origin: args.names.origin(), ..Options::default() };
    let written = write(html, &paths, &options, Some(&page), false)?;
    let outcome = export::print_notes(&written);
    if args.print || !browse(&page) {
        println!("{}", page.display());
    } else {
        eprintln!("heaptape: {} is shown in the browser", page.display());
    }
    Ok(outcome)
}

/// Returns the place of a page in the cache. It is the same for the same recordings.
fn cached(paths: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    remove_oldest(&folder);
    let mut hasher = DefaultHasher::new();
    let mut name = String::new();
    for path in paths {
        let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
        whole.hash(&mut hasher);
        name += &sanitized_name(whole.file_name().unwrap_or_default().as_bytes());
        name.push('-');
    }
    Ok(folder.join(format!("{name}{:08x}.html", hasher.finish() as u32)))
}

/// Returns the folder for pages, which nobody else can write to or read: they have names of
/// functions and files.
fn folder() -> anyhow::Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let owner = nix::unistd::geteuid().as_raw();
    let temporary = std::env::temp_dir().join(format!("heaptape-{owner}"));
    let folders = cache.map(|cache| cache.join("heaptape")).into_iter().chain([temporary]);
    let mut last = anyhow!("no folder can hold the page");
    for folder in folders.map(|folder| folder.join("pages")) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        let about = made.and_then(|()| std::fs::symlink_metadata(&folder));
        match about {
            Ok(about) if about.is_dir() && about.uid() == owner && about.mode() & 0o022 == 0 => return Ok(folder),
            Ok(_) => last = anyhow!("{}: other users can write to this folder", folder.display()),
            Err(error) => last = anyhow!("{}: {error}", folder.display()),
        }
    }
    Err(last).context("choose a file with -o")
}

/// Removes the oldest pages, so that there is place for one more.
fn remove_oldest(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let pages = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "html"));
    let mut pages: Vec<_> =
        pages.filter_map(|page| Some((page.metadata().ok()?.modified().ok()?, page.path()))).collect();
    pages.sort();
    let excess = (pages.len() + 1).saturating_sub(MAX_PAGES);
    for (_, page) in pages.iter().take(excess) {
        let _ = std::fs::remove_file(page);
    }
}

/// Opens a page in the browser of the desktop. Returns false if there is none.
fn browse(page: &Path) -> bool {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"];
    if !has_desktop.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        return false;
    }
    let mut command = Command::new("xdg-open");
    command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
