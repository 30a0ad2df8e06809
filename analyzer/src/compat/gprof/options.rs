//! gprof's options, in its own words. One table is the truth for parsing and for the help text.

use crate::export::Measure;
use crate::processes::Processes;
use heaptape_formats::gmon::Form;

/// Whether an option takes an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// The next word, or what stands behind it.
    Argument,
    /// Only what stands behind it (`-pmain`, `--flat-profile=main`).
    Maybe,
}

struct Word {
    short: char,
    long: &'static str,
    takes: Takes,
    argument: &'static str,
    help: &'static str,
}

macro_rules! words {
    ($($short:literal $long:literal $takes:ident $argument:literal $help:literal;)*) => {
        const WORDS: &[Word] = &[$(Word {
            short: $short, long: $long, takes: Takes::$takes, argument: $argument, help: $help,
        }),*];
    };
}

words! {
    'p' "flat-profile" Maybe "SYMSPEC" "print the flat profile, of these symbols only";
    'P' "no-flat-profile" Maybe "SYMSPEC" "no flat profile, or none of these symbols";
    'q' "graph" Maybe "SYMSPEC" "print the call graph, of these symbols and what they call only";
    'Q' "no-graph" Maybe "SYMSPEC" "no call graph, or none of these symbols";
    'A' "annotated-source" Maybe "SYMSPEC" "print annotated source, of these symbols only";
    'J' "no-annotated-source" Maybe "SYMSPEC" "no annotated source, or none of these symbols";
    'C' "exec-counts" Maybe "SYMSPEC" "print execution counts of basic blocks (with -l) or calls of functions";
    'Z' "no-exec-counts" Maybe "SYMSPEC" "no execution counts, or none of these symbols";
    'i' "file-info" Nothing "" "print what kinds of records the files hold";
    's' "sum" Nothing "" "write the sum of the files to gmon.sum";
    'l' "line" Nothing "" "profile source lines";
    'b' "brief" Nothing "" "no explanations";
    'T' "traditional" Nothing "" "print as the BSD gprof did";
    'a' "no-static" Nothing "" "charge functions that only their file can name to the one before";
    'D' "ignore-non-functions" Nothing "" "ignore local symbols that are not marked as functions";
    'c' "static-call-graph" Nothing "" "add the calls that the code has but that were not made";
    'z' "display-unused-functions" Nothing "" "show functions without samples and calls";
    'n' "time" Argument "SYMSPEC" "pass on the time of these symbols only";
    'N' "no-time" Argument "SYMSPEC" "pass on the time of all but these symbols";
    'f' "" Argument "SYMSPEC" "call graph of these functions and what they call";
    'F' "" Argument "SYMSPEC" "-f, and only their time counts";
    'e' "" Argument "SYMSPEC" "no call graph entries for these functions";
    'E' "" Argument "SYMSPEC" "-e, and their time does not count";
    'k' "" Argument "FROM/TO" "leave the calls between these symbols out";
    'm' "min-count" Argument "N" "no execution counts below N";
    't' "table-length" Argument "N" "lines in the table of the most executed lines (10)";
    'w' "width" Argument "N" "width of the index of functions (80)";
    'x' "all-lines" Nothing "" "annotate every line of a block";
    'y' "separate-files" Nothing "" "annotated source into FILE-ann, execution counts into FILE-ann of their own";
    'I' "directory-path" Argument "DIRS" "where to look for source files, separated by colons";
    'L' "print-path" Nothing "" "print paths of source files";
    'O' "file-format" Argument "FORMAT" "auto, magic, bsd or 4.4bsd";
    'd' "debug" Maybe "LEVEL" "accepted";
    '\0' "demangle" Maybe "STYLE" "print names of C++ and Rust as written (the default)";
    '\0' "no-demangle" Nothing "" "print names as the linker has them";
    '\0' "inline-file-names" Nothing "" "print the file behind each name";
    '\0' "process" Argument "PID|FOLDER" "of a recording, this process only";
    '\0' "program" Argument "NAME" "of a recording, processes of this program only (* and ? fit anything)";
    '\0' "what" Argument "MEASURE" "of a recording or MPTL, count this: alloc-bytes (the default), live-bytes, leak-bytes, peak-bytes, alloc-count, ...";
    'h' "help" Nothing "" "print this";
    'v' "version" Nothing "" "print the version";
}

/// Which of the listings are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Styles {
    /// Flat profile.
    pub flat: bool,
    /// Call graph.
    pub graph: bool,
    /// Annotated source.
    pub source: bool,
    /// Execution counts.
    pub counts: bool,
}

/// The names given to options that take some.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Names {
    pub flat: Vec<String>,
    pub no_flat: Vec<String>,
    pub graph: Vec<String>,
    pub no_graph: Vec<String>,
    pub time: Vec<String>,
    pub no_time: Vec<String>,
    pub source: Vec<String>,
    pub no_source: Vec<String>,
    pub counts: Vec<String>,
    pub no_counts: Vec<String>,
    pub arcs: Vec<String>,
    pub no_arcs: Vec<String>,
}

/// Everything that the command line says.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Options {
    /// Listings asked for.
    pub asked: Styles,
    /// Listings about which something was said.
    pub said: Styles,
    pub names: Names,
    pub info: bool,
    pub sum: bool,
    pub lines: bool,
    pub brief: bool,
    pub traditional: bool,
    pub no_static: bool,
    pub only_functions: bool,
    pub unused: bool,
    pub static_arcs: bool,
    pub min_count: u64,
    pub table_length: usize,
    pub width: usize,
    pub all_lines: bool,
    pub separate_files: bool,
    pub directories: Vec<String>,
    pub paths: bool,
    pub form: Option<Form>,
    pub demangle: bool,
    pub file_names: bool,
    pub help: bool,
    pub version: bool,
    /// Of a recording, only these processes.
    pub processes: Processes,
    /// Of a recording, what is counted.
    pub what: Option<Measure>,
    /// The executable; `a.out` when not given.
    pub image: String,
    /// The profiles; `gmon.out` when not given.
    pub profiles: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            asked: Styles::default(),
            said: Styles::default(),
            names: Names::default(),
            info: false,
            sum: false,
            lines: false,
            brief: false,
            traditional: false,
            no_static: false,
            only_functions: false,
            unused: false,
            static_arcs: false,
            min_count: 0,
            table_length: 10,
            width: 80,
            all_lines: false,
            separate_files: false,
            directories: Vec::new(),
            paths: false,
            form: None,
            demangle: true,
            file_names: false,
            help: false,
            version: false,
            processes: Processes::default(),
            what: None,
            image: "a.out".to_owned(),
            profiles: vec!["gmon.out".to_owned()],
        }
    }
}

impl Options {
    /// Reads the words behind `heaptape gprof`. Files may stand between options; `--` ends those.
    pub fn parse(words: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut files = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                files.extend(words.by_ref().cloned());
            } else if let Some(long) = word.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let found = find_long(name)?;
                options.apply(found, value.map(str::to_owned), &mut words)?;
            } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                options.letters(letters, &mut words)?;
            } else {
                files.push(word.clone());
            }
        }
        let mut files = files.into_iter();
        if let Some(image) = files.next() {
            options.image = image;
        }
        if files.len() > 0 {
            options.profiles = files.collect();
        }
        Ok(options)
    }

    /// Letters behind one dash: the first that takes an argument takes the rest.
    fn letters(&mut self, letters: &str, words: &mut std::slice::Iter<'_, String>) -> Result<(), String> {
        for (place, letter) in letters.char_indices() {
            let word = WORDS.iter().find(|word| word.short == letter && letter != '\0');
            let word = word.ok_or_else(|| format!("invalid option -- '{letter}'"))?;
            let rest = &letters[place + letter.len_utf8()..];
            if word.takes == Takes::Nothing {
                self.apply(word, None, words)?;
                continue;
            }
            return self.apply(word, (!rest.is_empty()).then(|| rest.to_owned()), words);
        }
        Ok(())
    }

    fn apply(
        &mut self,
        word: &Word,
        value: Option<String>,
        words: &mut std::slice::Iter<'_, String>,
    ) -> Result<(), String> {
        let shown = if word.long.is_empty() { format!("-{}", word.short) } else { format!("--{}", word.long) };
        let value = match word.takes {
            Takes::Nothing if value.is_some() => return Err(format!("option '{shown}' doesn't allow an argument")),
            Takes::Argument if value.is_none() => {
                Some(words.next().cloned().ok_or_else(|| format!("option '{shown}' requires an argument"))?)
            }
            _ => value,
        };
        let number = || {
            let text = value.as_deref().unwrap_or_default();
            text.parse().map_err(|_| format!("option '{shown}' takes a number, not '{text}'"))
        };
        match (word.short, word.long) {
            ('p', _) => (self.asked.flat, self.said.flat) = (true, true),
            ('q', _) => (self.asked.graph, self.said.graph) = (true, true),
            ('A', _) => (self.asked.source, self.said.source) = (true, true),
            ('C', _) => (self.asked.counts, self.said.counts) = (true, true),
            ('P', _) => (self.asked.flat, self.said.flat) = (value.is_some(), true),
            ('Q', _) => (self.asked.graph, self.said.graph) = (value.is_some(), true),
            ('J', _) => (self.asked.source, self.said.source) = (value.is_some(), true),
            ('Z', _) => (self.asked.counts, self.said.counts) = (value.is_some(), true),
            ('i', _) => self.info = true,
            ('s', _) => (self.sum, self.lines) = (true, true),
            ('l', _) => self.lines = true,
            ('b', _) => self.brief = true,
            ('T', _) => self.traditional = true,
            ('a', _) => self.no_static = true,
            ('D', _) => self.only_functions = true,
            ('c', _) => self.static_arcs = true,
            ('z', _) => self.unused = true,
            ('m', _) => self.min_count = number()?,
            ('t', _) => self.table_length = number()? as usize,
            ('w', _) => self.width = number()? as usize,
            ('x', _) => self.all_lines = true,
            ('y', _) => self.separate_files = true,
            ('L', _) => self.paths = true,
            ('h', _) => self.help = true,
            ('v', _) => self.version = true,
            ('I', _) => self.directories.extend(value.iter().flat_map(|dirs| dirs.split(':')).map(str::to_owned)),
            ('O', _) => self.form = form(value.as_deref().unwrap_or_default())?,
            (_, "process") => self.processes.process.clone_from(&value),
            (_, "program") => self.processes.program.clone_from(&value),
            (_, "what") => self.what = Some(value.as_deref().unwrap_or_default().parse()?),
            (_, "demangle") => self.demangle = true,
            (_, "no-demangle") => self.demangle = false,
            (_, "inline-file-names") => self.file_names = true,
            _ => {}
        }
        let Some(value) = value else { return Ok(()) };
        let names = &mut self.names;
        let lists: &mut [&mut Vec<String>] = match word.short {
            'p' => &mut [&mut names.flat],
            'P' => &mut [&mut names.no_flat],
            // A call instead of a function.
            'q' if value.contains('/') => &mut [&mut names.arcs],
            'Q' if value.contains('/') => &mut [&mut names.no_arcs],
            'q' | 'f' => &mut [&mut names.graph],
            'Q' | 'e' => &mut [&mut names.no_graph],
            'F' => &mut [&mut names.graph, &mut names.time],
            'E' => &mut [&mut names.no_graph, &mut names.no_time],
            'n' => &mut [&mut names.time],
            'N' => &mut [&mut names.no_time],
            'A' => &mut [&mut names.source],
            'J' => &mut [&mut names.no_source],
            'C' => &mut [&mut names.counts],
            'Z' => &mut [&mut names.no_counts],
            'k' => &mut [&mut names.no_arcs],
            _ => &mut [],
        };
        lists.iter_mut().for_each(|list| list.push(value.clone()));
        Ok(())
    }
}

/// A long option, or the only one that begins so.
fn find_long(name: &str) -> Result<&'static Word, String> {
    if let Some(word) = WORDS.iter().find(|word| word.long == name && !name.is_empty()) {
        return Ok(word);
    }
    let mut begin = WORDS.iter().filter(|word| !word.long.is_empty() && word.long.starts_with(name));
    match (begin.next(), begin.next()) {
        (Some(word), None) => Ok(word),
        (None, _) => Err(format!("unrecognized option '--{name}'")),
        (Some(_), Some(_)) => Err(format!("option '--{name}' is ambiguous")),
    }
}

fn form(name: &str) -> Result<Option<Form>, String> {
    match name {
        "auto" => Ok(None),
        "magic" => Ok(Some(Form::Magic)),
        "bsd" => Ok(Some(Form::Bsd)),
        "4.4bsd" => Ok(Some(Form::Bsd44)),
        "prof" => Err("sorry, file format `prof' is not yet supported".to_owned()),
        other => Err(format!("unknown file format {other}")),
    }
}

/// The help text.
pub fn help() -> String {
    let mut text = "Usage: heaptape gprof [options] [image-file [profile-file...]]\n       heaptape gprof [options] [image-file] recording\n\n".to_owned();
    for word in WORDS {
        let mut left = match word.short {
            '\0' => "    ".to_owned(),
            short if word.long.is_empty() => format!("-{short}"),
            short => format!("-{short}, "),
        };
        if !word.long.is_empty() {
            left += &format!("--{}", word.long);
        }
        left += &match (word.takes, word.long.is_empty()) {
            (Takes::Nothing, _) => String::new(),
            (Takes::Argument, _) => format!(" {}", word.argument),
            (Takes::Maybe, _) => format!("[={}]", word.argument),
        };
        text += &format!("  {left:<36} {}\n", word.help);
    }
    text
}
