//! What an operator chooses, as typed values: words for modes, sizes, times and shares, patterns of
//! names, and where things lie by default.

use super::retention::Keep;
use crate::options::{Mode, Options, Overflow, Window};
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Everything that can be chosen.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where programs find the daemon.
    pub socket: PathBuf,
    /// Where traces and profiles can be sent over a stream socket.
    pub stream_socket: PathBuf,
    /// Where `ctl` finds it.
    pub control: PathBuf,
    /// Where epochs are kept.
    pub state: PathBuf,
    /// Address of the metrics; loopback only.
    pub metrics: Option<SocketAddr>,
    /// Whether programs of other users are served.
    pub serves_all: bool,
    /// What is kept of programs that no rule names.
    pub mode: Choice,
    /// Rules, the first that fits counts: pattern of the program's name, what is kept.
    pub programs: Vec<(Pattern, Choice)>,
    /// What a thread does when its ring is full, where neither its rule nor its program says.
    pub overflow: Overflow,
    /// Whether a program may choose for itself (`HEAPTAPE_MODE` in its environment).
    pub asks_programs: bool,
    /// Bytes of a thread's ring.
    pub ring: u64,
    /// Time between a profile's snapshots.
    pub snapshot: Duration,
    /// Length of an epoch.
    pub epoch: Duration,
    /// Epochs older than this go.
    pub keep_age: Duration,
    /// So many bytes of epochs are kept, the newest three in any case.
    pub keep_bytes: u64,
    /// So many of them are one user's; by default half where there are others.
    pub user_keep_bytes: Option<u64>,
    /// What a flight keeps.
    pub window: Window,
    /// When a flight is kept.
    pub triggers: Triggers,
    /// What the daemon and its clients may use.
    pub budget: Budget,
}

/// When the events of a flight are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// More live bytes than this.
    pub live_bytes: Option<u64>,
    /// Live bytes that grew by more than this in a minute.
    pub growth: Option<u64>,
    /// The process dies: never, badly (a signal, an exit code that is not 0), or in any way.
    pub death: Death,
}

/// Deaths that keep a flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Death {
    /// None.
    Never,
    /// By a signal, or with an exit code that is not 0.
    #[default]
    Bad,
    /// Any.
    Any,
}

/// Bounds; each is told when it is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Resident bytes of the daemon.
    pub memory: u64,
    /// Share of one processor that the daemon may use, in per cent.
    pub cpu: u64,
    /// Processes of one user.
    pub clients: u64,
    /// Connections that one user makes in a second.
    pub connections: u64,
    /// Processes of one user that are taken in in a second, and files that he sends.
    pub starts: u64,
    /// Threads of one process.
    pub threads: u64,
    /// Events a second of one user.
    pub events: u64,
    /// Traces and profiles that one user sends in an epoch.
    pub streams: u64,
    /// Bytes of one of them.
    pub stream_bytes: u64,
    /// Bytes of all that one user sends in an epoch.
    pub user_stream_bytes: u64,
    /// Time without a byte that ends one.
    pub stream_idle: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            memory: 2 << 30,
            cpu: 100,
            clients: 2048,
            connections: 5000,
            starts: 200,
            threads: 16_384,
            events: 50_000_000,
            streams: 1000,
            stream_bytes: 256 << 20,
            user_stream_bytes: 1 << 30,
            stream_idle: Duration::from_secs(60),
        }
    }
}

/// What is kept of a program, of how many of its blocks, and what its threads do when their rings
/// are full: `MODE[:SAMPLING][,overflow=OVERFLOW]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// What is kept.
    pub mode: Mode,
    /// Of which blocks.
    pub sampling: Sampling,
    /// What a thread does when its ring is full; `None`: as the daemon's configuration says.
    pub overflow: Option<Overflow>,
}

/// The longest wait for room in a ring that can be chosen.
const MOST_WAIT: Duration = Duration::from_secs(30);

/// Which blocks are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// All.
    #[default]
    All,
    /// One in so many bytes.
    Every(u64),
    /// As many as this share of the program's processor time allows, in per cent.
    Budget(f64),
}

/// Where sampling by budget starts, and between which intervals it moves.
pub const START_INTERVAL: u64 = 64 << 10;
/// The least interval.
pub const LEAST_INTERVAL: u64 = 1 << 10;
/// The greatest.
pub const GREATEST_INTERVAL: u64 = 64 << 20;

impl Choice {
    /// The mean bytes between samples to start with.
    pub fn interval(self) -> u64 {
        match self.sampling {
            Sampling::All => 0,
            Sampling::Every(bytes) => bytes,
            Sampling::Budget(_) => START_INTERVAL,
        }
    }

    /// How a process with this choice is recorded.
    pub fn options(self, config: &Config, label: &str) -> Options {
        Options {
            overflow: self.overflow.unwrap_or(config.overflow),
            sample_bytes: self.interval(),
            ring_bytes: config.ring,
            label: label.to_owned(),
            mode: self.mode,
            snapshot: config.snapshot,
            window: config.window,
            folds: true,
            ..Options::default()
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.mode.name())?;
        match self.sampling {
            Sampling::All => {}
            Sampling::Every(bytes) => write!(out, ":{bytes}")?,
            Sampling::Budget(percent) => write!(out, ":{percent}%")?,
        }
        self.overflow.map_or(Ok(()), |overflow| write!(out, ",overflow={overflow}"))
    }
}

impl fmt::Display for Overflow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overflow::Wait => out.write_str("wait"),
            Overflow::WaitAtMost(time) if time.subsec_millis() == 0 => write!(out, "wait:{}s", time.as_secs()),
            Overflow::WaitAtMost(time) => write!(out, "wait:{}ms", time.as_millis()),
            Overflow::Drop => out.write_str("drop"),
        }
    }
}

/// A daemon's programs wait for a bounded time or not at all.
impl FromStr for Overflow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid overflow '{text}': must be drop, or wait:TIME with a time from 1ms to 30s");
        if text == "drop" {
            return Ok(Overflow::Drop);
        }
        let time = text.strip_prefix("wait:").ok_or_else(wrong)?.parse::<Span>().map_err(|_| wrong())?.0;
        (time > Duration::ZERO && time <= MOST_WAIT).then_some(Overflow::WaitAtMost(time)).ok_or_else(wrong)
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kept, overflow) = text.split_once(',').map_or((text, None), |(kept, rest)| (kept.trim_end(), Some(rest)));
        let overflow = overflow.map(|rest| match rest.split_once('=') {
            Some((key, value)) if key.trim() == "overflow" => value.trim().parse(),
            _ => {
                Err(format!("invalid setting '{}': overflow=drop or overflow=wait:TIME may follow a mode", rest.trim()))
            }
        });
        let (mode, sampling) = kept.split_once(':').unwrap_or((kept, ""));
        let modes = [Mode::Off, Mode::Profile, Mode::Trace, Mode::Flight];
        let mode = modes.into_iter().find(|known| known.name() == mode);
        let mode = mode
            .ok_or_else(|| format!("'{text}' is no mode: off, profile, trace or flight, :512KiB or :2% behind it"))?;
        let sampling = match sampling.strip_suffix('%') {
            _ if sampling.is_empty() => Sampling::All,
            _ if mode == Mode::Off => return Err("a dormant program is not sampled".into()),
            Some(number) => {
                let percent = number.parse().ok().filter(|percent| (0.01..=100.0).contains(percent));
                Sampling::Budget(percent.ok_or_else(|| format!("'{sampling}' is no share from 0.01% to 100%"))?)
            }
            None => match sampling.parse::<Bytes>()?.0 {
                0 => Sampling::All,
                bytes => Sampling::Every(bytes),
            },
        };
        Ok(Choice { mode, sampling, overflow: overflow.transpose()? })
    }
}

/// A pattern of names: `*` stands for any text, `?` for one letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// This pattern.
    pub fn new(text: &str) -> Pattern {
        Pattern(text.to_owned())
    }

    /// Whether a name fits.
    pub fn fits(&self, name: &[u8]) -> bool {
        formats::pattern::matches(self.0.as_bytes(), name)
    }
}

/// Bytes as people write them: `512KiB`, `10G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(format!("'{text}' is no size, such as 512KiB or 10GiB")),
        };
        let number: u64 = number.parse().map_err(|_| format!("'{text}' is no size, such as 512KiB or 10GiB"))?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| format!("'{text}' is too large"))
    }
}

/// A time as people write it: `500ms`, `15s`, `1h`, `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let scale: u64 = match unit {
            "ms" => 1,
            "s" | "" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(format!("'{text}' is no time, such as 500ms, 15s, 1h or 30d")),
        };
        let number: u64 = number.parse().map_err(|_| format!("'{text}' is no time, such as 500ms, 15s, 1h or 30d"))?;
        number
            .checked_mul(scale)
            .map(|ms| Span(Duration::from_millis(ms)))
            .ok_or_else(|| format!("'{text}' is too long"))
    }
}

impl FromStr for Death {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Death::Never),
            "bad" => Ok(Death::Bad),
            "any" => Ok(Death::Any),
            _ => Err(format!("'{text}' is none of never, bad, any")),
        }
    }
}

impl Default for Config {
    /// As the superuser the system's places, and for all users; else the person's own.
    fn default() -> Self {
        let is_root = nix::unistd::geteuid().is_root();
        let run = run_folder(is_root, |name| std::env::var_os(name));
        Config {
            socket: run.join("socket"),
            stream_socket: run.join("streams"),
            control: run.join("control"),
            state: state_folder(is_root, |name| std::env::var_os(name)),
            metrics: None,
            serves_all: is_root,
            mode: Choice { mode: Mode::Profile, ..Choice::default() },
            overflow: Overflow::Drop,
            programs: Vec::new(),
            asks_programs: true,
            ring: wire::limits::RING_BYTES,
            snapshot: Duration::from_secs(15),
            epoch: Duration::from_secs(3600),
            keep_age: Duration::from_secs(30 * 86_400),
            keep_bytes: 10 << 30,
            user_keep_bytes: None,
            window: Window::default(),
            triggers: Triggers::default(),
            budget: Budget::default(),
        }
    }
}

fn run_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if is_root {
        return "/run/heaptape".into();
    }
    let place = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|place| place.is_absolute());
    match place {
        Some(place) => place.join("heaptape"),
        None => PathBuf::from(format!("/tmp/heaptape-{}-run", nix::unistd::geteuid())),
    }
}

fn state_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if is_root {
        return "/var/lib/heaptape".into();
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|place| place.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("heaptape")
}

impl Config {
    /// What is kept on disk.
    pub fn keep(&self) -> Keep {
        let usual = if self.serves_all { self.keep_bytes / 2 } else { self.keep_bytes };
        let user_bytes = self.user_keep_bytes.unwrap_or(usual);
        Keep { age: self.keep_age, bytes: self.keep_bytes, user_bytes }
    }

    /// What is kept of a program: what it asks for itself, else the first rule that fits its name,
    /// else the usual.
    pub fn choose(&self, name: &[u8], asked: Option<&str>) -> Choice {
        let asked = asked.filter(|_| self.asks_programs).and_then(|text| text.parse().ok());
        let rule = || self.programs.iter().find(|(pattern, _)| pattern.fits(name)).map(|(_, choice)| *choice);
        asked.or_else(rule).unwrap_or(self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_values() {
        for text in [
            "off",
            "profile",
            "trace:524288",
            "flight:2%",
            "profile:0.5%",
            "trace,overflow=wait:2s",
            "profile:2%,overflow=wait:1500ms",
            "trace,overflow=drop",
        ] {
            assert_eq!(text.parse::<Choice>().map(|choice| choice.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("trace, overflow = wait:2s".parse::<Choice>(), "trace,overflow=wait:2s".parse());
        for wrong in ["", "on", "off:2%", "trace:0%", "trace:101%", "trace:x", "profile:nan%", "trace:1TB"] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
        for wrong in ["wait", "wait:0s", "wait:31s", "wait:x", "drop:2s", ""] {
            let wrong = format!("trace,overflow={wrong}");
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
        assert_eq!("10GiB".parse(), Ok(Bytes(10 << 30)));
        assert_eq!("30d".parse(), Ok(Span(Duration::from_secs(30 * 86_400))));
        assert!("99999999999999999999".parse::<Bytes>().is_err() && "1y".parse::<Span>().is_err());
        assert!("18446744073709551615h".parse::<Span>().is_err() && "".parse::<Bytes>().is_err());
    }

    #[test]
    fn the_program_the_rules_and_the_usual() {
        let rule = (Pattern::new("nginx"), Choice { mode: Mode::Trace, ..Choice::default() });
        let config = Config { programs: vec![rule], ..Config::default() };
        assert_eq!(config.choose(b"nginx", None).mode, Mode::Trace);
        assert_eq!(config.choose(b"nginx", Some("off")).mode, Mode::Off);
        assert_eq!(config.choose(b"redis", Some("nonsense")).mode, Mode::Profile);
        let config = Config { asks_programs: false, ..config };
        assert_eq!(config.choose(b"nginx", Some("off")).mode, Mode::Trace);
    }

    #[test]
    fn places_of_a_person_and_of_the_system() {
        let own = |name: &str| (name == "HOME").then(|| OsString::from("/home/x"));
        assert_eq!(state_folder(false, own), PathBuf::from("/home/x/.local/state/heaptape"));
        assert_eq!(state_folder(true, own), PathBuf::from("/var/lib/heaptape"));
        let run = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/user/7"));
        assert_eq!(run_folder(false, run), PathBuf::from("/run/user/7/heaptape"));
    }
}
