//! Where exports go: standard output, a file, or a folder of files.

use super::{Error, Exporter};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes that are gathered before the system is asked to write them.
const BUFFER: usize = 256 * 1024;

/// A place for an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
    /// A folder, made when it is not there.
    Folder(PathBuf),
}

impl Target {
    /// What was asked for; else standard output for one file, and for several a folder named for
    /// the input and the format.
    ///
    /// # Errors
    /// When several files cannot go where was asked.
    pub fn of(
        exporter: &dyn Exporter,
        paths: &[PathBuf],
        asked: Option<&Path>,
        several: bool,
    ) -> Result<Target, Error> {
        Target::named(exporter.name(), exporter.extension(), paths, asked, several)
    }

    pub(crate) fn named(
        format: &str,
        extension: &str,
        paths: &[PathBuf],
        asked: Option<&Path>,
        several: bool,
    ) -> Result<Target, Error> {
        match asked {
            Some(path) if path == Path::new("-") && several => {
                Err(Error::Impossible(format!("{format} makes several files here: -o must name a folder")))
            }
            Some(path) if several && path.exists() && !path.is_dir() => {
                let why = format!("{format} makes several files here, and {} is no folder", path.display());
                Err(Error::Impossible(why))
            }
            Some(path) if path == Path::new("-") => Ok(Target::Stdout),
            Some(path) if several => Ok(Target::Folder(path.to_path_buf())),
            Some(path) if path.is_dir() => Ok(Target::File(path.join(format!("{}.{extension}", stem(paths))))),
            Some(path) => Ok(Target::File(path.to_path_buf())),
            None if several => Ok(Target::Folder(PathBuf::from(format!("{}.{format}", stem(paths))))),
            None => Ok(Target::Stdout),
        }
    }
}

/// The name of what is exported, for files made of it.
fn stem(paths: &[PathBuf]) -> String {
    let name = paths.first().and_then(|path| {
        let whole = path.canonicalize().ok();
        whole.as_deref().unwrap_or(path).file_name().map(|name| name.to_string_lossy().into_owned())
    });
    name.filter(|name| name != "-").unwrap_or_else(|| "heaptape".to_string())
}

/// Takes files, and what is worth telling about them.
#[derive(Debug)]
pub struct Out {
    target: Target,
    next: Option<String>,
    /// Files written.
    pub files: Vec<PathBuf>,
    /// What the format cannot hold, and other things worth knowing.
    pub notes: Vec<String>,
}

impl Out {
    /// Begins.
    pub const fn new(target: Target) -> Out {
        Out { target, next: None, files: Vec::new(), notes: Vec::new() }
    }

    /// Tells something.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The name that the next [`Out::stream`] gets in a folder.
    pub fn next_name(&mut self, name: String) {
        self.next = Some(name);
    }

    /// The folder of a format whose files are written by another program.
    ///
    /// # Errors
    /// When there is none.
    pub fn folder(&self) -> Result<&Path, Error> {
        match &self.target {
            Target::Folder(folder) => Ok(folder),
            Target::File(path) => Ok(path),
            Target::Stdout => Err(Error::Impossible("-o must name a folder".into())),
        }
    }

    /// The one file of a format that makes one.
    ///
    /// # Errors
    /// When it cannot be made.
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

    /// A file of a format that makes several. A name that was taken gets a number.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn file(&mut self, name: &str) -> Result<Stream, Error> {
        let folder = match &self.target {
            Target::Folder(folder) => folder.clone(),
            Target::File(_) | Target::Stdout => return self.stream(),
        };
        std::fs::create_dir_all(&folder).map_err(|error| Error::Write(folder.display().to_string(), error))?;
        // One component, whatever a module called itself.
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

/// A file being written.
pub struct Stream {
    name: String,
    to: Box<dyn Write>,
}

impl Stream {
    /// The file's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.to.write_all(bytes).map_err(|error| Error::Write(self.name.clone(), error))
    }

    /// Writes what is still held back.
    ///
    /// # Errors
    /// When it cannot be written.
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
