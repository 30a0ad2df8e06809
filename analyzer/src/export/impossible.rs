//! What a format needs and a recording does not hold, or options that do not fit a format.

use heaptape_formats::Format;
use std::path::PathBuf;
use std::process::ExitStatus;

/// The reason why a recording or file cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// The recording has no events.
    #[error("{0} needs events, and there are none")]
    NoEvents(&'static str),
    /// The recording has no process.
    #[error("there is no process in it")]
    NoProcess,
    /// MPTL has no peaks.
    #[error("MPTL does not store the peak")]
    PeakOfProfile,
    /// The file has no peak for each call site.
    #[error("the file does not contain the live bytes of call sites at the peak")]
    NoPeak,
    /// The format holds one number for each stack, and several measures were requested.
    #[error("this format holds one number a stack: --what takes one measure here")]
    SeveralMeasures,
    /// There is nothing to convert.
    #[error("all counts of the measure are 0")]
    NoCounts,
    /// A flame graph of this measure would be empty.
    #[error("there is nothing to draw: no {0}")]
    NothingToDraw(&'static str),
    /// No unit makes the sums of an object fit its file.
    #[error("{0}: there is no unit to count in")]
    NoUnit(String),
    /// No object of the recording is the requested one.
    #[error("nothing was allocated in {}; there are {}", .object.display(), .others.join(", "))]
    UnknownObject {
        object: PathBuf,
        /// Paths of the objects in the recording.
        others: Vec<String>,
    },
    /// The file holds the sums of several events.
    #[error("{0} holds several events: name one")]
    SeveralEvents(String),
    /// There is no sum of all objects, because stacks count in several of them.
    #[error("--through counts a stack once in each object that it passes through: there is no sum to compare with")]
    NoTotals,
    /// The addresses do not fit the requested word size.
    #[error("addresses of more than 32 bits do not fit into a 32-bit file")]
    WideAddresses,
    /// The file has no histogram.
    #[error("there is no histogram, which DCPI requires")]
    NoHistogram,
    #[error("the histograms are empty")]
    EmptyHistograms,
    /// The layout of this version of DCPI's files is unknown.
    #[error("{0}: the body of this version is not documented")]
    UndocumentedVersion(String),
    /// The requested version of MPTL is one that mprof refuses.
    #[error("no mprof reads a profile of version {version}: {first} to {last}")]
    ProfileVersion {
        /// Version that was requested.
        version: u64,
        /// The first version that mprof reads.
        first: u64,
        /// The last version that mprof reads.
        last: u64,
    },
    /// The requested version of MTRC has no names.
    #[error("traces of version {0} hold no names")]
    TraceWithoutNames(u64),
    /// The recording has no sizes of blocks.
    #[error("{0}: MPTL's sums are by the size of blocks, and this file has none")]
    NoSizes(String),
    /// The sizes of blocks are stored for each segment only.
    #[error(
        "{0}: MPTL's sums are by the size of blocks, and those of several segments cannot be joined; export each folder"
    )]
    SeveralSegments(String),
    /// There is no profile to merge.
    #[error("there is no profile to merge")]
    NoProfile,
    /// Profiles count blocks in different classes of sizes.
    #[error("profiles with different size classes cannot be merged")]
    SizeClasses,
    /// A page shows one recording, or compares two.
    #[error("a page is of one recording, or compares two")]
    TooManyRecordings,
    /// The output is several files, so it needs the name of a folder.
    #[error("{0} writes several files here: -o must name a folder")]
    NoFolder(String),
    /// A terminal would interpret the bytes of the format, or fill up with a page.
    #[error("{0} is not for a terminal, and standard output is one: name a file with -o")]
    OnTerminal(String),
    /// The output is several files, and its path is that of a file.
    #[error("{format} writes several files here, and {} is not a folder", .path.display())]
    NotAFolder { format: String, path: PathBuf },
    /// The program that writes the format is not installed.
    #[error(
        "{0} is neither beside heaptape nor in the search path: the packages have it, and cargo build --release -p {0} makes it"
    )]
    NoHelper(&'static str),
    /// The program that writes the format failed.
    #[error("{program}: {status}")]
    HelperFailed {
        program: &'static str,
        /// How the program ended.
        status: ExitStatus,
    },
    /// The written files of the format cannot be read back.
    #[error("{0} is not read back here: leave out --verify")]
    NotReadBack(&'static str),
    /// A written file was read back as another format.
    #[error("{name} was read back as {found}")]
    ReadBackAs {
        name: String,
        /// Name of the format that was found.
        found: &'static str,
    },
    /// A file is not a page that heaptape wrote.
    #[error("{0} is not a page of heaptape")]
    NotAPage(String),
    /// No format has this name.
    #[error("there is no format {0}")]
    UnknownFormat(String),
    /// A file has no known format.
    #[error("{0}: not a file of a known format")]
    UnknownFile(String),
    /// There is no conversion between these formats.
    #[error("{from} cannot be converted to {to}")]
    NoConversion {
        from: Format,
        /// Name of the requested format.
        to: String,
    },
    /// A trace cannot be made from a format that has only sums.
    #[error("{0} has only sums, but a trace consists of events")]
    OnlySums(Format),
    /// A profile of mpatrol cannot be made from a format without the sizes of blocks.
    #[error("{0} has no block sizes, which MPTL requires")]
    NoBlockSizes(Format),
    /// A trace of mpatrol has no call stacks.
    #[error("{}: a trace has no addresses of callers, which {to} requires", .path.display())]
    NoCallers {
        path: PathBuf,
        /// Name of the requested format.
        to: String,
    },
    /// Traces of several runs were to be joined.
    #[error("traces of several runs have no common order; convert them one by one")]
    SeveralTraces,
    /// The files are read at arbitrary offsets, which standard input does not have.
    #[error("{name}: {format} cannot be read from standard input; name the file")]
    NotSeekable { name: String, format: Format },
    /// The files have several formats.
    #[error("{name}: {format}, but other files are {other}; only files of the same format can be summed")]
    OtherFormat {
        name: String,
        format: Format,
        /// Format of the files before it.
        other: Format,
    },
    /// Some files are recordings or traces, and some are profiles.
    #[error("only files of the same format can be summed")]
    MixedFormats,
}
