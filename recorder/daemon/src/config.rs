//! The configuration of the daemon, with the parsers of its values: modes, sampling, overflow and
//! exits, and with the default paths.

use super::address::Address;
use formats::pattern::Pattern;
use formats::quantity::Size;
use heaptape_recorder::os::Compression;
use heaptape_recorder::session::options::{Mode, Options, Overflow, Window};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The configuration of the daemon.
#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    /// Path of the stream socket for traces and profiles.
    pub stream_socket: PathBuf,
    pub control: PathBuf,
    /// Folder of the epochs.
    pub state: PathBuf,
    pub metrics: Option<Address>,
    /// File with the token that requests for metrics must have.
    pub metrics_token: Option<PathBuf>,
    /// Whether programs of other users are recorded.
    pub serves_all: bool,
    /// What is kept of programs that no rule matches.
    pub mode: Choice,
    /// Rules: a pattern of the program's name, and what is kept. The first one that matches
    /// applies.
    pub programs: Vec<Rule>,
    /// What a thread does when its ring is full, unless its rule or its program specifies that.
    pub overflow: Overflow,
    /// Whether a program may choose its own mode (`HEAPTAPE_MODE` in its environment).
    pub asks_programs: bool,
    /// Size of the ring of each thread, in bytes.
    pub ring: u64,
    /// Compression of traces and of the columns of tapes.
    pub compression: Compression,
    /// Time between a profile's snapshots.
    pub snapshot: Duration,
    pub epoch: Duration,
    /// Maximum age of an epoch.
    pub keep_age: Duration,
    /// Maximum number of bytes of all epochs. The newest three of each user are always kept.
    pub keep_bytes: u64,
    /// Maximum number of bytes of one user's epochs; by default half of `keep_bytes` where other
    /// users are served.
    pub user_keep_bytes: Option<u64>,
    /// Number of bytes of the file system that stay free; 0 for no such limit.
    pub keep_free: u64,
    /// How much of the past a flight recording keeps.
    pub window: Window,
    /// When the events of a flight recording are kept.
    pub triggers: Triggers,
    /// Where control groups of version 2 are; by default where they usually are.
    pub cgroups: Option<PathBuf>,
    /// Where sealed epochs are shipped: a folder, `s3://BUCKET/PREFIX`, or a URL.
    pub ship_to: Option<String>,
    /// File with the token for a URL.
    pub ship_token: Option<PathBuf>,
    /// The server to which profiles are pushed.
    pub push: PushConfig,
    /// Time between two judgements of what programs hold, for the metrics; none without it.
    pub verdicts: Option<Duration>,
    /// Limits of the resources that the daemon and its clients may use.
    pub budget: Budget,
    /// The file of the standalone library, for static programs. If it is empty, static programs are
    /// not recorded.
    pub standalone: &'static [u8],
}

/// What is kept of the programs with a name: `NAME=MODE[:SAMPLING][,overflow=OVERFLOW][,attach=BOOL]`.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: Pattern,
    /// What is kept of them.
    pub choice: Choice,
    /// Whether those that run without the library are attached.
    pub attach: bool,
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}{}", self.name, self.choice, if self.attach { ",attach=true" } else { "" })
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, mode) = text.split_once('=').ok_or("must be NAME=MODE, such as 'redis-*=profile:2%'")?;
        let (mut kept, mut attach) = (Vec::new(), false);
        for setting in mode.split(',') {
            match setting.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("attach", "true")) => attach = true,
                Some(("attach", "false")) => attach = false,
                Some(("attach", value)) => return Err(format!("invalid attach '{value}': must be true or false")),
                _ => kept.push(setting),
            }
        }
        let choice: Choice = kept.join(",").parse()?;
        if attach && choice.mode == Mode::Off {
            return Err("invalid rule: a program that is off is not attached (attach=true)".into());
        }
        Ok(Rule { name: Pattern::whole(name), choice, attach })
    }
}

/// Default size of the queue of profiles that wait to be pushed, in bytes.
pub const DEFAULT_PUSH_QUEUE: u64 = 64 << 20;

/// The server to which profiles of programs are pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushConfig {
    /// URL of the server, if there is one.
    pub to: Option<String>,
    pub protocol: PushProtocol,
    pub token: Option<PathBuf>,
    /// Time between two pushes.
    pub interval: Duration,
    /// Maximum number of bytes of profiles that wait.
    pub queue: u64,
}

impl Default for PushConfig {
    fn default() -> Self {
        PushConfig {
            to: None,
            protocol: PushProtocol::Pyroscope,
            token: None,
            interval: Duration::from_secs(60),
            queue: DEFAULT_PUSH_QUEUE,
        }
    }
}

/// Protocol of a server that takes profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushProtocol {
    /// Pyroscope takes profiles at `/ingest`.
    Pyroscope,
    /// A server of OTLP takes them at `/v1development/profiles`.
    Otlp,
}

impl PushProtocol {
    /// Returns the name in options and in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            PushProtocol::Pyroscope => "pyroscope",
            PushProtocol::Otlp => "otlp",
        }
    }
}

impl FromStr for PushProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [PushProtocol::Pyroscope, PushProtocol::Otlp];
        let found = all.into_iter().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| format!("invalid protocol '{text}': must be pyroscope or otlp"))
    }
}

/// The limits of the epochs that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Maximum age of an epoch.
    pub age: Duration,
    /// Maximum number of bytes of all epochs.
    pub bytes: u64,
    /// Maximum number of bytes of one user's epochs.
    pub user_bytes: u64,
    /// Number of bytes of the file system that stay free; 0 for no such limit.
    pub free: u64,
}

/// Default of [`Triggers::pressure`], in percent.
pub(crate) const DEFAULT_PRESSURE: u64 = 20;

/// Conditions on which the events of a flight recording are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triggers {
    /// The process has more live bytes than this.
    pub live_bytes: Option<u64>,
    /// The live bytes grew by more than this within a minute.
    pub growth: Option<u64>,
    /// The control group of the process is under memory pressure: tasks waited for memory in this
    /// percentage of ten seconds, or a limit was reached. 0 for never.
    pub pressure: u64,
    /// The process exits: in no case, abnormally (a signal, an exit code other than 0), or in any
    /// case.
    pub death: Death,
}

/// Exits on which the events of a flight recording are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Death {
    /// The exit of a process does not matter.
    Never,
    /// An exit by a signal, or with a code other than 0.
    #[default]
    Bad,
    /// Any exit of the process.
    Any,
}

/// Limits of resources. Reaching one is logged and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Resident memory of the daemon, in bytes.
    pub memory: u64,
    /// CPU time that the daemon may use, in percent of one CPU.
    pub cpu: u64,
    /// Number of processes of one user.
    pub clients: u64,
    /// Number of connections per second of one user.
    pub connections: u64,
    /// Number of processes of one user that are accepted per second, and of files that the user
    /// sends.
    pub starts: u64,
    /// Number of threads of one process.
    pub threads: u64,
    /// Number of events per second of one user.
    pub events: u64,
    /// Number of traces and profiles that one user sends in an epoch.
    pub streams: u64,
    /// Size of one trace or profile that is sent, in bytes.
    pub stream_bytes: u64,
    /// Size of all traces and profiles that one user sends in an epoch, in bytes.
    pub user_stream_bytes: u64,
    /// Time without a byte after which the reception of a trace or profile ends.
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

/// What is kept of a program, which of its blocks are sampled, and what its threads do when their
/// rings are full: `MODE[:SAMPLING][,overflow=OVERFLOW]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Choice {
    /// Which data is kept.
    pub mode: Mode,
    /// Which blocks are recorded.
    pub sampling: Sampling,
    /// What a thread does when its ring is full; `None` applies the configuration of the daemon.
    pub overflow: Option<Overflow>,
}

/// Which blocks are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// Every block is recorded.
    #[default]
    All,
    /// On average one block per this number of bytes.
    Every(u64),
    /// As many as this share of the program's CPU time permits, in percent.
    Budget(f64),
}

/// Initial interval of sampling by budget, in bytes.
pub(crate) const START_INTERVAL: u64 = 64 << 10;
/// Minimum interval of sampling by budget, in bytes.
pub const MIN_INTERVAL: u64 = 1 << 10;

impl Choice {
    /// Returns the initial mean number of bytes between samples; 0 records every event.
    pub fn interval(self) -> u64 {
        match self.sampling {
            Sampling::All => 0,
            Sampling::Every(bytes) => bytes,
            Sampling::Budget(_) => START_INTERVAL,
        }
    }

    /// Returns the options with which a process is recorded.
    pub fn options(self, config: &Config, label: &str) -> Options {
        Options {
            overflow: self.overflow.unwrap_or(config.overflow),
            sample_bytes: self.interval(),
            ring_bytes: config.ring,
            label: label.to_owned(),
            mode: self.mode,
            compression: config.compression,
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

impl TryFrom<String> for Choice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Choice> for String {
    fn from(choice: Choice) -> String {
        choice.to_string()
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
        let mode = mode.ok_or_else(|| {
            format!("invalid mode '{text}': must be off, profile, trace or flight, then :512KiB or :2%")
        })?;
        let sampling = match sampling.strip_suffix('%') {
            _ if sampling.is_empty() => Sampling::All,
            _ if mode == Mode::Off => {
                return Err("invalid mode 'off:SAMPLING': a program that is off is not sampled".into());
            }
            Some(number) => {
                let percent = number.parse().ok().filter(|percent| (0.01..=100.0).contains(percent));
                Sampling::Budget(
                    percent.ok_or_else(|| format!("invalid share '{sampling}': must be from 0.01% to 100%"))?,
                )
            }
            None => match sampling
                .parse()
                .map_err(|error| format!("invalid sampling '{sampling}': {error}, or a share such as 2%"))?
            {
                Size(0) => Sampling::All,
                Size(bytes) => Sampling::Every(bytes),
            },
        };
        Ok(Choice { mode, sampling, overflow: overflow.transpose()? })
    }
}

impl FromStr for Death {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Death::Never),
            "bad" => Ok(Death::Bad),
            "any" => Ok(Death::Any),
            _ => Err(format!("invalid exit '{text}': must be never, bad or any")),
        }
    }
}

impl Default for Config {
    /// For root, the paths of the system, and the programs of all users; for others, their own
    /// paths and programs.
    fn default() -> Self {
        let is_root = nix::unistd::geteuid().is_root();
        let run = run_folder(is_root, |name| std::env::var_os(name));
        Config {
            socket: run.join("socket"),
            stream_socket: run.join("streams"),
            control: control(&run),
            state: state_folder(is_root, |name| std::env::var_os(name)),
            metrics: None,
            metrics_token: None,
            serves_all: is_root,
            mode: Choice { mode: Mode::Profile, ..Choice::default() },
            overflow: Overflow::Drop,
            programs: Vec::new(),
            asks_programs: true,
            ring: wire::limits::RING_BYTES,
            compression: Compression::COLUMNS,
            snapshot: Duration::from_secs(15),
            epoch: Duration::from_secs(3600),
            keep_age: Duration::from_secs(30 * 86_400),
            keep_bytes: 10 << 30,
            user_keep_bytes: None,
            keep_free: 0,
            window: Window::default(),
            triggers: Triggers { pressure: DEFAULT_PRESSURE, ..Triggers::default() },
            cgroups: None,
            ship_to: None,
            ship_token: None,
            push: PushConfig::default(),
            verdicts: None,
            budget: Budget::default(),
            standalone: &[],
        }
    }
}

/// The folder of a daemon of one's own, with its sockets and its state.
const OWN_FOLDER: &str = "HEAPTAPE_DIR";

/// Checks the variable that names the folder of a daemon of one's own. A relative path would silently
/// mean the system's daemon.
///
/// # Errors
/// A message about a relative path.
pub fn check_own_folder() -> Result<(), String> {
    match std::env::var_os(OWN_FOLDER).map(PathBuf::from) {
        Some(folder) if !folder.is_absolute() => {
            Err(format!("invalid {OWN_FOLDER} '{}': must be an absolute path", folder.display()))
        }
        _ => Ok(()),
    }
}

fn absolute(variable: &impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

fn run_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if let Some(own) = absolute(&variable, OWN_FOLDER) {
        return own;
    }
    if is_root {
        return SYSTEM_FOLDER.into();
    }
    match absolute(&variable, "XDG_RUNTIME_DIR") {
        Some(folder) => folder.join("heaptape"),
        None => PathBuf::from(format!("/tmp/heaptape-{}-run", nix::unistd::geteuid())),
    }
}

/// The folder of the system's sockets for programs, which containers mount.
const SYSTEM_FOLDER: &str = "/run/heaptape";
/// The folder of the system's control socket, which nobody mounts.
const SYSTEM_CONTROL: &str = "/run/heaptape-control";

/// Returns the path of the control socket of a daemon whose sockets are in this folder.
fn control(run: &Path) -> PathBuf {
    let folder = if run == Path::new(SYSTEM_FOLDER) { Path::new(SYSTEM_CONTROL) } else { run };
    folder.join("control")
}

/// Returns the control socket that commands ask by default. A daemon that runs since before an
/// upgrade may have it beside the programs' socket.
pub fn control_to_ask() -> PathBuf {
    let now = Config::default().control;
    let before = Path::new(SYSTEM_FOLDER).join("control");
    if now.starts_with(SYSTEM_CONTROL) && !now.exists() && before.exists() { before } else { now }
}

fn state_folder(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if let Some(own) = absolute(&variable, OWN_FOLDER) {
        return own.join("state");
    }
    if is_root {
        return "/var/lib/heaptape".into();
    }
    let home = || absolute(&variable, "HOME").map(|home| home.join(".local/state"));
    let state = absolute(&variable, "XDG_STATE_HOME").or_else(home);
    state.unwrap_or_else(std::env::temp_dir).join("heaptape")
}

impl Config {
    /// Returns the limits of what is kept on disk.
    pub fn keep(&self) -> Keep {
        let default = if self.serves_all { self.keep_bytes / 2 } else { self.keep_bytes };
        let user_bytes = self.user_keep_bytes.unwrap_or(default);
        Keep { age: self.keep_age, bytes: self.keep_bytes, user_bytes, free: self.keep_free }
    }

    /// Returns what is kept of a program: its own choice, otherwise that of the first rule that
    /// matches its name, otherwise the default.
    pub fn choose(&self, name: &[u8], requested: Option<&str>) -> Choice {
        let requested = requested.filter(|_| self.asks_programs).and_then(|text| text.parse().ok());
        let rule = || self.programs.iter().find(|rule| rule.name.matches(name)).map(|rule| rule.choice);
        requested.or_else(rule).unwrap_or(self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_values_are_parsed() {
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
        for invalid in ["", "on", "off:2%", "trace:0%", "trace:101%", "trace:x", "profile:nan%", "trace:1y"] {
            assert!(invalid.parse::<Choice>().is_err(), "{invalid}");
        }
        for invalid in ["wait", "wait:0s", "wait:31s", "wait:x", "drop:2s", ""] {
            let invalid = format!("trace,overflow={invalid}");
            assert!(invalid.parse::<Choice>().is_err(), "{invalid}");
        }
        assert_eq!("trace:1.5MB".parse::<Choice>().map(Choice::interval), Ok(1_500_000));
    }

    #[test]
    fn rules_attach_only_on_request() {
        let rule = |text: &str| text.parse::<Rule>();
        for text in ["redis-*=trace", "redis-*=profile:2%,overflow=wait:2s,attach=true", "x=flight,attach=true"] {
            assert_eq!(rule(text).map(|rule| rule.to_string()).as_deref(), Ok(text));
        }
        let spaced = rule("x=trace, attach = true, overflow=drop").map(|rule| (rule.attach, rule.to_string()));
        assert_eq!(spaced, Ok((true, "x=trace,overflow=drop,attach=true".into())));
        assert_eq!(rule("x=trace,attach=false").map(|rule| rule.attach), Ok(false));
        for invalid in ["x=trace,attach=yes", "x=off,attach=true", "x=attach=true", "x=trace,attach"] {
            assert!(rule(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn own_choice_precedes_rules_and_default() {
        let choice = Choice { mode: Mode::Trace, ..Choice::default() };
        let rule = Rule { name: Pattern::whole("nginx"), choice, attach: false };
        let config = Config { programs: vec![rule], ..Config::default() };
        assert_eq!(config.choose(b"nginx", None).mode, Mode::Trace);
        assert_eq!(config.choose(b"nginx", Some("off")).mode, Mode::Off);
        assert_eq!(config.choose(b"redis", Some("nonsense")).mode, Mode::Profile);
        let config = Config { asks_programs: false, ..config };
        assert_eq!(config.choose(b"nginx", Some("off")).mode, Mode::Trace);
    }

    #[test]
    fn default_paths_of_a_user_and_of_the_system() {
        let own = |name: &str| (name == "HOME").then(|| OsString::from("/home/x"));
        assert_eq!(state_folder(false, own), PathBuf::from("/home/x/.local/state/heaptape"));
        assert_eq!(state_folder(true, own), PathBuf::from("/var/lib/heaptape"));
        let run = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/user/7"));
        assert_eq!(run_folder(false, run), PathBuf::from("/run/user/7/heaptape"));
        let controls = ["/run/heaptape", "/srv/h"].map(|run| control(Path::new(run)));
        assert_eq!(controls, ["/run/heaptape-control/control", "/srv/h/control"].map(PathBuf::from));
        let dir = |name: &str| (name == OWN_FOLDER).then(|| OsString::from("/srv/h"));
        assert_eq!(
            [run_folder(true, dir), state_folder(false, dir)],
            [PathBuf::from("/srv/h"), PathBuf::from("/srv/h/state")]
        );
    }
}
