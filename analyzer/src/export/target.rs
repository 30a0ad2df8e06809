//! Targets of exports: standard output, a file, or a folder of files.

use super::{Error, Exporter};
use crate::export::Impossible;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Size in bytes of the write buffer.
const BUFFER: usize = 256 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The standard output of heaptape.
    Stdout,
    File(PathBuf),
    /// A folder, which is created if it does not exist.
    Folder(PathBuf),
}

impl Target {
    /// Returns the target: the requested one, or else standard output for one file, and for several
    /// a folder named after the input and the format.
    ///
    /// # Errors
    /// Returns an error when several files cannot be written to the requested target.
    pub fn of(
        exporter: &dyn Exporter,
        paths: &[PathBuf],
        requested: Option<&Path>,
        several: bool,
    ) -> Result<Target, Error> {
        Target::named(exporter.name(), exporter.extension(), paths, requested, several)
    }

    pub(crate) fn named(
        format: &str,
        extension: &str,
        paths: &[PathBuf],
        requested: Option<&Path>,
        several: bool,
    ) -> Result<Target, Error> {
        match requested {
            Some(path) if path == Path::new("-") && several => Err(Impossible::NoFolder(format.to_owned()).into()),
            Some(path) if several && path.exists() && !path.is_dir() => {
                Err(Impossible::NotAFolder { format: format.to_owned(), path: path.to_path_buf() }.into())
            }
            None if several => Ok(Target::Folder(PathBuf::from(format!("{}.{format}", stem(paths))))),
            Some(path) if several => Ok(Target::Folder(path.to_path_buf())),
            None if is_unreadable(format) => Err(Impossible::OnTerminal(format.to_owned()).into()),
            None => Ok(Target::Stdout),
            Some(path) if path == Path::new("-") && is_unreadable(format) => {
                Err(Impossible::OnTerminal(format.to_owned()).into())
            }
            Some(path) if path == Path::new("-") => Ok(Target::Stdout),
            Some(path) if path.is_dir() => Ok(Target::File(path.join(format!("{}.{extension}", stem(paths))))),
            Some(path) => Ok(Target::File(path.to_path_buf())),
        }
    }
}

/// Formats that nobody reads in a terminal: binary ones, and pages and pictures for a browser.
const NOT_FOR_PEOPLE: [&str; 10] =
    ["dcpi", "gmon", "heaptrack", "html", "mptl", "mtrc", "parquet", "perfetto", "pprof", "svg"];

/// Returns whether a format would go to a terminal that can't show it.
fn is_unreadable(format: &str) -> bool {
    NOT_FOR_PEOPLE.contains(&format) && io::stdout().is_terminal()
}

/// Returns the name of the input, for the names of files.
fn stem(paths: &[PathBuf]) -> String {
    let name = paths.first().and_then(|path| {
        let whole = path.canonicalize().ok();
        whole.as_deref().unwrap_or(path).file_name().map(|name| name.to_string_lossy().into_owned())
    });
    name.filter(|name| name != "-").unwrap_or_else(|| "heaptape".to_string())
}

/// Receives files and notes from an exporter.
#[derive(Debug)]
pub struct Out {
    target: Target,
    next: Option<String>,
    /// Paths of the files that were written.
    pub files: Vec<PathBuf>,
    /// What the format cannot hold, and other notes.
    pub notes: Vec<String>,
}

impl Out {
    /// Returns an output without files.
    pub const fn new(target: Target) -> Out {
        Out { target, next: None, files: Vec::new(), notes: Vec::new() }
    }

    /// Adds a note, unless it is there already.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Sets the name that the next [`Out::stream`] gets in a folder.
    pub(crate) fn next_name(&mut self, name: String) {
        self.next = Some(name);
    }

    /// Returns the folder, for a format whose files another program writes.
    ///
    /// # Errors
    /// Returns an error when the target is not a folder.
    pub fn folder(&self) -> Result<&Path, Error> {
        match &self.target {
            Target::Folder(folder) => Ok(folder),
            Target::File(path) => Ok(path),
            Target::Stdout => Err(Impossible::NoFolder("this format".into()).into()),
        }
    }

    /// Creates the file of a format that writes one file.
    ///
    /// # Errors
    /// Returns an error when the file cannot be created.
    pub fn stream(&mut self) -> Result<Stream, Error> {
        match self.target.clone() {
            Target::Stdout => Ok(Stream { name: "standard output".into(), to: Box::new(io::stdout()) }),
            Target::File(path) => self.create(path),
            Target::Folder(_) => {
                let name = self.next.take().unwrap_or_else(|| "export".into());
                self.file(&name)
            }
        }
    }

    /// Creates a file of a format that writes several. A name that is in use gets a number.
    ///
    /// # Errors
    /// Returns an error when the file cannot be created.
    pub fn file(&mut self, name: &str) -> Result<Stream, Error> {
        let folder = match &self.target {
            Target::Folder(folder) => folder.clone(),
            Target::File(_) | Target::Stdout => return self.stream(),
        };
        std::fs::create_dir_all(&folder).map_err(|error| Error::Write(folder.display().to_string(), error))?;
        // The name is a single path component, for any module name.
        let plain: String = name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
        let plain = if plain.trim_matches('.').is_empty() { format!("_{plain}") } else { plain };
        let (stem, ending) = plain.split_once('.').map_or((&plain[..], ""), |(stem, ending)| (stem, ending));
        let mut path = folder.join(&plain);
        let mut number = 2;
        while self.files.contains(&path) {
            path = folder.join(format!("{stem}-{number}.{ending}"));
            number += 1;
        }
        self.create(path)
    }

    fn create(&mut self, path: PathBuf) -> Result<Stream, Error> {
        let name = path.display().to_string();
        let file = File::create(&path).map_err(|error| Error::Write(name.clone(), error))?;
        self.files.push(path);
        Ok(Stream { name, to: Box::new(BufWriter::with_capacity(BUFFER, file)) })
    }
}

/// A file that is being written.
pub struct Stream {
    name: String,
    to: Box<dyn Write>,
}

impl Stream {
    /// Returns the name of the file, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends bytes to the file.
    ///
    /// # Errors
    /// Returns an error when they cannot be written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.to.write_all(bytes).map_err(|error| Error::Write(self.name.clone(), error))
    }

    /// Writes the rest of the buffer.
    ///
    /// # Errors
    /// Returns an error when it cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.to.flush().map_err(|error| Error::Write(self.name.clone(), error))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
