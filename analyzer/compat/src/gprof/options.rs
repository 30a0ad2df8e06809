//! gprof's command-line options. One table defines both the parser and the help text.

use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::export::{Measure, UnknownMeasure};
use heaptape_formats::gmon::Form;

/// A command line that is not one of gprof. The texts are those of GNU gprof and its getopt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No option has this letter.
    #[error("invalid option -- '{0}'")]
    UnknownShort(char),
    /// No long option begins with this text.
    #[error("unrecognized option '--{0}'")]
    UnknownLong(String),
    /// Several long options begin with this text.
    #[error("option '--{0}' is ambiguous")]
    Ambiguous(String),
    /// The option has no argument.
    #[error("option '{0}' doesn't allow an argument")]
    NeedsNoArgument(String),
    /// The argument of the option is missing.
    #[error("option '{0}' requires an argument")]
    NeedsArgument(String),
    /// The argument of the option is not a number.
    #[error("option '{option}' takes a number, not '{text}'")]
    NotANumber {
        /// The option as the message shows it.
        option: String,
        /// The argument as it was written.
        text: String,
    },
    /// No measure has the name.
    #[error(transparent)]
    UnknownMeasure(#[from] UnknownMeasure),
    /// GNU gprof itself does not support profiles of `prof`.
    #[error("sorry, file format `prof' is not yet supported")]
    Prof,
    /// No file format has the name.
    #[error("unknown file format {0}")]
    UnknownFormat(String),
}

/// Whether an option has an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentKind {
    /// The option has no argument.
    None,
    /// A required argument: the rest of the same command-line argument, or else the next one.
    Required,
    /// An optional argument in the same command-line argument (`-pmain`, `--flat-profile=main`).
    Optional,
}

/// An option. `short` is `'\0'` and `long` is empty if there is no such form.
struct Flag {
    short: char,
    long: &'static str,
    kind: ArgumentKind,
    argument: &'static str,
    help: &'static str,
}

macro_rules! flags {
    ($($short:literal $long:literal $kind:ident $argument:literal $help:literal;)*) => {
        const FLAGS: &[Flag] = &[$(Flag {
            short: $short, long: $long, kind: ArgumentKind::$kind, argument: $argument, help: $help,
        }),*];
    };
}

flags! {
    'p' "flat-profile" Optional "SYMSPEC" "print the flat profile, of these symbols only";
    'P' "no-flat-profile" Optional "SYMSPEC" "no flat profile, or none of these symbols";
    'q' "graph" Optional "SYMSPEC" "print the call graph, of these symbols and what they call only";
    'Q' "no-graph" Optional "SYMSPEC" "no call graph, or none of these symbols";
    'A' "annotated-source" Optional "SYMSPEC" "print annotated source, of these symbols only";
    'J' "no-annotated-source" Optional "SYMSPEC" "no annotated source, or none of these symbols";
    'C' "exec-counts" Optional "SYMSPEC" "print execution counts of basic blocks (with -l) or calls of functions";
    'Z' "no-exec-counts" Optional "SYMSPEC" "no execution counts, or none of these symbols";
    'i' "file-info" None "" "print what kinds of records the files hold";
    's' "sum" None "" "write the sum of the files to gmon.sum";
    'l' "line" None "" "profile source lines";
    'b' "brief" None "" "no explanations";
    'T' "traditional" None "" "print as the BSD gprof did";
    'a' "no-static" None "" "merge static functions into the function before";
    'D' "ignore-non-functions" None "" "ignore local symbols that are not marked as functions";
    'c' "static-call-graph" None "" "add the calls that the code has but that were not made";
    'z' "display-unused-functions" None "" "show functions without samples and calls";
    'n' "time" Required "SYMSPEC" "propagate the time of these symbols only";
    'N' "no-time" Required "SYMSPEC" "propagate the time of all but these symbols";
    'f' "" Required "SYMSPEC" "call graph of these functions and what they call";
    'F' "" Required "SYMSPEC" "-f, and only their time counts";
    'e' "" Required "SYMSPEC" "no call graph entries for these functions";
    'E' "" Required "SYMSPEC" "-e, and their time does not count";
    'k' "" Required "FROM/TO" "omit the calls between these symbols";
    'm' "min-count" Required "N" "no execution counts below N";
    't' "table-length" Required "N" "lines in the table of the most executed lines (10)";
    'w' "width" Required "N" "width of the index of functions (80)";
    'x' "all-lines" None "" "annotate every line of a block";
    'y' "separate-files" None "" "write annotated source into one FILE-ann for each source file";
    'I' "directory-path" Required "DIRS" "where to look for source files, separated by colons";
    'L' "print-path" None "" "print paths of source files";
    'O' "file-format" Required "FORMAT" "auto, magic, bsd or 4.4bsd";
    'd' "debug" Optional "LEVEL" "accepted";
    '\0' "demangle" Optional "STYLE" "print names of C++ and Rust as written (the default)";
    '\0' "no-demangle" None "" "print names as the linker has them";
    '\0' "inline-file-names" None "" "print the source file after each name";
    '\0' "process" Required "PID|FOLDER" "of a recording, this process only";
    '\0' "program" Required "NAME" "of a recording, processes of this program only (* and ? are wildcards)";
    '\0' "what" Required "MEASURE" "of a recording or MPTL, count this: alloc-bytes (the default), live-bytes, leak-bytes, peak-bytes, alloc-count, ...";
    'h' "help" None "" "print this";
    'v' "version" None "" "print the version";
}

/// A set of listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Styles {
    /// Whether to print the flat profile.
    pub flat: bool,
    /// Whether to print the call graph.
    pub graph: bool,
    /// Whether to print annotated source.
    pub source: bool,
    /// Whether to print execution counts.
    pub counts: bool,
}

/// The symbol specifications of each option.
#[derive(Clone, Debug, Default)]
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

/// The command line of gprof.
#[derive(Clone, Debug)]
pub struct Options {
    /// Listings that options enable.
    pub enabled: Styles,
    /// Listings that options mention, whether they enable or disable them.
    pub explicit: Styles,
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
    /// The processes of a recording to include.
    pub processes: ProcessFilter,
    /// The measure of a recording to count.
    pub what: Option<Measure>,
    /// The executable; `a.out` by default.
    pub image: String,
    /// The profiles; `gmon.out` by default.
    pub profiles: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            enabled: Styles::default(),
            explicit: Styles::default(),
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
            processes: ProcessFilter::default(),
            what: None,
            image: "a.out".to_owned(),
            profiles: vec!["gmon.out".to_owned()],
        }
    }
}

impl Options {
    /// Parses the arguments of `heaptape gprof`. Files and options may be mixed; `--` ends the
    /// options.
    ///
    /// # Errors
    /// Returns an error if an option is unknown or ambiguous, or if its argument is
    /// missing or invalid.
    pub fn parse(arguments: &[String]) -> Result<Options, OptionError> {
        let mut options = Options::default();
        let mut files = Vec::new();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                files.extend(arguments.by_ref().cloned());
            } else if let Some(long) = argument.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let flag = find_long(name)?;
                options.apply(flag, value.map(str::to_owned), &mut arguments)?;
            } else if let Some(cluster) = argument.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
                options.apply_cluster(cluster, &mut arguments)?;
            } else {
                files.push(argument.clone());
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

    /// Applies short options after one dash. The first option with an argument takes the rest of
    /// the cluster.
    fn apply_cluster(
        &mut self,
        cluster: &str,
        arguments: &mut std::slice::Iter<'_, String>,
    ) -> Result<(), OptionError> {
        for (offset, short) in cluster.char_indices() {
            let flag = FLAGS.iter().find(|flag| flag.short == short && short != '\0');
            let flag = flag.ok_or(OptionError::UnknownShort(short))?;
            let rest = &cluster[offset + short.len_utf8()..];
            if flag.kind == ArgumentKind::None {
                self.apply(flag, None, arguments)?;
                continue;
            }
            return self.apply(flag, (!rest.is_empty()).then(|| rest.to_owned()), arguments);
        }
        Ok(())
    }

    /// Applies one option. A missing required argument is taken from `arguments`.
    fn apply(
        &mut self,
        flag: &Flag,
        value: Option<String>,
        arguments: &mut std::slice::Iter<'_, String>,
    ) -> Result<(), OptionError> {
        let shown = if flag.long.is_empty() { format!("-{}", flag.short) } else { format!("--{}", flag.long) };
        let value = match flag.kind {
            ArgumentKind::None if value.is_some() => return Err(OptionError::NeedsNoArgument(shown)),
            ArgumentKind::Required if value.is_none() => {
                Some(arguments.next().cloned().ok_or_else(|| OptionError::NeedsArgument(shown.clone()))?)
            }
            _ => value,
        };
        let number = || {
            let text = value.as_deref().unwrap_or_default();
            let not_a_number = |_| OptionError::NotANumber { option: shown.clone(), text: text.to_string() };
            text.parse().map_err(not_a_number)
        };
        match (flag.short, flag.long) {
            ('p', _) => (self.enabled.flat, self.explicit.flat) = (true, true),
            ('q', _) => (self.enabled.graph, self.explicit.graph) = (true, true),
            ('A', _) => (self.enabled.source, self.explicit.source) = (true, true),
            ('C', _) => (self.enabled.counts, self.explicit.counts) = (true, true),
            ('P', _) => (self.enabled.flat, self.explicit.flat) = (value.is_some(), true),
            ('Q', _) => (self.enabled.graph, self.explicit.graph) = (value.is_some(), true),
            ('J', _) => (self.enabled.source, self.explicit.source) = (value.is_some(), true),
            ('Z', _) => (self.enabled.counts, self.explicit.counts) = (value.is_some(), true),
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
        let lists: &mut [&mut Vec<String>] = match flag.short {
            'p' => &mut [&mut names.flat],
            'P' => &mut [&mut names.no_flat],
            // The specification names an arc instead of a function.
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

/// Returns a long option by its name, or by a prefix that only one name has.
fn find_long(name: &str) -> Result<&'static Flag, OptionError> {
    if let Some(flag) = FLAGS.iter().find(|flag| flag.long == name && !name.is_empty()) {
        return Ok(flag);
    }
    let mut matching = FLAGS.iter().filter(|flag| !flag.long.is_empty() && flag.long.starts_with(name));
    match (matching.next(), matching.next()) {
        (Some(flag), None) => Ok(flag),
        (None, _) => Err(OptionError::UnknownLong(name.to_string())),
        (Some(_), Some(_)) => Err(OptionError::Ambiguous(name.to_string())),
    }
}

/// Parses the argument of `-O`. `auto` is `None`.
fn form(name: &str) -> Result<Option<Form>, OptionError> {
    match name {
        "auto" => Ok(None),
        "magic" => Ok(Some(Form::Magic)),
        "bsd" => Ok(Some(Form::Bsd)),
        "4.4bsd" => Ok(Some(Form::Bsd44)),
        "prof" => Err(OptionError::Prof),
        other => Err(OptionError::UnknownFormat(other.to_string())),
    }
}

/// Returns the help text.
pub fn help() -> String {
    let mut text = "Usage: heaptape gprof [options] [image-file [profile-file...]]\n       heaptape gprof [options] [image-file] recording\n\n".to_owned();
    for flag in FLAGS {
        let mut left = match flag.short {
            '\0' => "    ".to_owned(),
            short if flag.long.is_empty() => format!("-{short}"),
            short => format!("-{short}, "),
        };
        if !flag.long.is_empty() {
            left += &format!("--{}", flag.long);
        }
        left += &match (flag.kind, flag.long.is_empty()) {
            (ArgumentKind::None, _) => String::new(),
            (ArgumentKind::Required, _) => format!(" {}", flag.argument),
            (ArgumentKind::Optional, _) => format!("[={}]", flag.argument),
        };
        text += &format!("  {left:<36} {}\n", flag.help);
    }
    text
}
