//! `heaptape daemon start`: records all programs that preload the library. Each option is a key of
//! the configuration file as well; the option overrides the file.

use super::verdicts;
use crate::{Outcome, library, log};
use heaptape_daemon::protocol::Request;
use heaptape_daemon::{self as daemon, Address, Reread, config::*};
use heaptape_formats::quantity::{Size, Time};
use heaptape_recorder::os::{Compression, crash};
use heaptape_recorder::session::options::{Overflow, RING_SIZES, is_ring};
use nix::sys::signal::SigSet;
use serde::{Deserialize, Deserializer};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Minimum time between two pushes.
const MIN_PUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum length of an epoch.
const MIN_EPOCH: Duration = Duration::from_secs(1);

/// Minimum time between two judgements of the programs.
const MIN_VERDICT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two judgements, if there are metrics.
const DEFAULT_VERDICT_INTERVAL: Duration = Duration::from_secs(300);

/// Parses a value of the file, a string or a number, as the command line parses it.
fn value<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Number(u64),
    }
    let text = match Value::deserialize(input)? {
        Value::Text(text) => text,
        Value::Number(number) => number.to_string(),
    };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Parses the list of rules in the file.
fn rules<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Rule>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

/// Options of `heaptape daemon start`, which are also the keys of its configuration file.
#[derive(Clone, clap::Args, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(
    after_help = "A mode is off, profile, trace or flight. With :512KiB one block per 512 KiB is sampled, with :2% as many as \
    cost 2 % of the program's CPU time. With ,overflow=wait:2s at its end, a thread waits for at most that time when its ring is full; \
    with ,overflow=drop it does not. Every option is a key of the file."
)]
pub(super) struct Args {
    /// Configuration file with the same options (TOML)
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Run as the fd store: hold the descriptors of the daemon's recordings for the next daemon, at
    /// this socket
    #[arg(long, value_name = "PATH", hide = true)]
    #[serde(skip)]
    keep_for_next: Option<PathBuf>,
    /// Stop at the end of standard input, for a command that must not leave a daemon running
    #[arg(long, hide = true)]
    #[serde(skip)]
    stop_at_end_of_input: bool,
    /// Socket for programs
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Stream socket for traces and profiles (nc -U, ssh -R) [default: streams, in the folder of
    /// the socket]
    #[arg(hide_short_help = true, long, value_name = "PATH")]
    stream_socket: Option<PathBuf>,
    /// Socket for ctl
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Folder of the epochs
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Address to serve metrics and heap profiles at: a loopback address and port such as
    /// 127.0.0.1:9469, any other one with --metrics-token, or unix:PATH [default: none]
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "value")]
    metrics: Option<Address>,
    /// File with a token that each request must have: Authorization: Bearer TOKEN
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    metrics_token: Option<PathBuf>,
    /// Ship the tables of sealed epochs there: a folder, s3://BUCKET/PREFIX, or https://HOST/PATH
    /// (see heaptape daemon ship) [default: none]
    #[arg(long, value_name = "DIR|URL")]
    ship_to: Option<String>,
    /// File with the bearer token for https://
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    ship_token: Option<PathBuf>,
    /// Push profiles of all programs to a server: https://HOST/PATH (see heaptape daemon push)
    /// [default: none]
    #[arg(long, value_name = "URL")]
    push_to: Option<String>,
    /// Protocol of this server: pyroscope or otlp [default: pyroscope]
    #[arg(hide_short_help = true, long, value_name = "PROTOCOL")]
    #[serde(deserialize_with = "value")]
    push_protocol: Option<PushProtocol>,
    /// File with the bearer token for this server
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    push_token: Option<PathBuf>,
    /// Time between two pushes (at least 1s) [default: 1m]
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    push_interval: Option<Time>,
    /// Maximum size of the profiles that wait; the oldest are dropped [default: 64MiB]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    push_queue: Option<Size>,
    /// Time between two judgements of what programs hold, by verdict, for the metrics; 0 for none
    /// [default: 5m with --metrics, else none]
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    verdict_interval: Option<Time>,
    /// Print what the programs of the daemon at --control hold, by verdict, as JSON: the daemon
    /// starts it for its metrics
    #[arg(long, hide = true)]
    #[serde(skip)]
    print_verdicts: bool,
    /// Record programs of all users [default: true for root]
    #[arg(long, value_name = "BOOL")]
    all_users: Option<bool>,
    /// Mode of programs that no rule matches [default: profile]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "value")]
    mode: Option<Choice>,
    /// Rule: mode of programs with this name (* and ? are wildcards); the first rule that matches
    /// counts. With ,attach=true at its end, those that run without the library are attached
    #[arg(long, value_name = "NAME=MODE")]
    #[serde(deserialize_with = "rules")]
    program: Vec<Rule>,
    /// What a thread does when its ring is full, unless its mode has an overflow: drop counts the
    /// event as lost, wait:2s waits for at most this time first (1ms to 30s) [default: drop]
    #[arg(long, value_name = "OVERFLOW")]
    #[serde(deserialize_with = "value")]
    overflow: Option<Overflow>,
    /// Let HEAPTAPE_MODE in a program's environment override the rules [default: true]
    #[arg(hide_short_help = true, long, value_name = "BOOL")]
    ask_programs: Option<bool>,
    /// Size of the ring of each thread [default: 1MiB, and 2MiB for the first one]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    ring: Option<Size>,
    /// Compression of traces: columns takes half the space of zstd and less time, and `heaptape
    /// export --format mtrc` makes mpatrol's trace of it; plain, lz4, zstd, zstd:LEVEL [default:
    /// columns]
    #[arg(hide_short_help = true, long, value_name = "CODEC")]
    #[serde(deserialize_with = "value")]
    compress: Option<Compression>,
    /// Time between snapshots of a profile [default: 15s]
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    snapshot: Option<Time>,
    /// Length of an epoch [default: 1h]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    epoch: Option<Time>,
    /// Maximum age of epochs; the newest three are always kept [default: 30d]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    keep_age: Option<Time>,
    /// Maximum size of all epochs; the newest three are always kept [default: 10GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    keep_bytes: Option<Size>,
    /// Maximum size of the epochs of one user [default: half of keep-bytes with all users, else
    /// all]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    user_keep_bytes: Option<Size>,
    /// Bytes of the file system that stay free: below that, epochs are removed as if keep-bytes
    /// were smaller, and further events are not kept [default: 0]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    keep_free: Option<Size>,
    /// Time that a flight recorder keeps [default: 10m]
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    flight_time: Option<Time>,
    /// Bytes of events that a flight recorder keeps, if that is less [default: 256MiB]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    flight_bytes: Option<Size>,
    /// Save the flight recorder when live bytes exceed this
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    flight_live: Option<Size>,
    /// Save the flight recorder when live bytes grow by more than this in a minute
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    flight_growth: Option<Size>,
    /// Save the flight recorder when the control group of the process (version 2) reaches a limit
    /// of memory (memory.events: high, max, oom), or its tasks waited for memory in this percentage
    /// of ten seconds (memory.pressure); 0 for neither. At most once a minute [default: 20]
    #[arg(hide_short_help = true, long, value_name = "PERCENT")]
    flight_pressure: Option<u64>,
    /// Folder of the control groups of version 2 [default: /sys/fs/cgroup, or unified in it]
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    cgroups: Option<PathBuf>,
    /// Save the flight recorder when the process ends: never, bad (signal or exit code) or any
    /// [default: bad]
    #[arg(hide_short_help = true, long, value_name = "HOW")]
    #[serde(deserialize_with = "value")]
    flight_death: Option<Death>,
    /// Maximum resident memory of the daemon [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    memory: Option<Size>,
    /// Maximum CPU time of the daemon, in percent of one CPU [default: 100]
    #[arg(long, value_name = "PERCENT")]
    cpu: Option<u64>,
    /// Maximum number of processes of one user [default: 2048]
    #[arg(hide_short_help = true, long, value_name = "N")]
    clients: Option<u64>,
    /// Maximum number of connections of one user per second; further ones are closed unread
    /// [default: 5000]
    #[arg(hide_short_help = true, long, value_name = "N")]
    connections: Option<u64>,
    /// Maximum number of program starts of one user per second, with bursts of five seconds' worth;
    /// further programs run unrecorded [default: 200]
    #[arg(hide_short_help = true, long, value_name = "N")]
    starts: Option<u64>,
    /// Maximum number of threads of one process [default: 16384]
    #[arg(hide_short_help = true, long, value_name = "N")]
    threads: Option<u64>,
    /// Maximum number of events of one user per second; the rest is counted as lost [default:
    /// 50000000]
    #[arg(hide_short_help = true, long, value_name = "N")]
    events: Option<u64>,
    /// Maximum number of traces and profiles that one user can send in an epoch [default: 1000]
    #[arg(hide_short_help = true, long, value_name = "N")]
    streams: Option<u64>,
    /// Maximum size of one of them [default: 256MiB]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    stream_bytes: Option<Size>,
    /// Maximum size of all that one user can send in an epoch [default: 1GiB]
    #[arg(hide_short_help = true, long, value_name = "SIZE")]
    #[serde(deserialize_with = "value")]
    user_stream_bytes: Option<Size>,
    /// Time without a byte after which a stream is ended [default: 1m]
    #[arg(hide_short_help = true, long, value_name = "TIME")]
    #[serde(deserialize_with = "value")]
    stream_idle: Option<Time>,
}

impl Args {
    /// Returns the configuration: options override the file, which overrides the defaults.
    fn merged(self) -> anyhow::Result<Config> {
        let file = match &self.config {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
                toml::from_str::<Args>(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?
            }
            None => Args::default(),
        };
        let defaults = Config::default();
        let socket = self.socket.as_ref().or(file.socket.as_ref());
        let beside = |name: &str| socket.and_then(|socket| socket.parent().map(|run| run.join(name)));
        let (streams, run) = (beside("streams"), beside("control"));
        let programs = self.program.into_iter().chain(file.program).collect();
        macro_rules! setting {
            ($name:ident) => {
                self.$name.or(file.$name)
            };
        }
        let epoch = setting!(epoch).map_or(defaults.epoch, |time: Time| time.0);
        anyhow::ensure!(epoch >= MIN_EPOCH, "invalid epoch of {epoch:?}: must be at least {MIN_EPOCH:?}");
        let ring = setting!(ring).map_or(defaults.ring, |ring: Size| ring.0);
        anyhow::ensure!(is_ring(ring), "invalid ring size '{ring}': {RING_SIZES}");
        let mut window = defaults.window;
        window.time = setting!(flight_time).map_or(window.time, |time: Time| time.0);
        window.bytes = setting!(flight_bytes).map_or(window.bytes, |bytes: Size| bytes.0);
        let budget = Budget::default();
        // Programs and commands use these paths from other folders.
        let absolute =
            |path: PathBuf| std::path::absolute(&path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()));
        let metrics = setting!(metrics);
        let verdicts = match setting!(verdict_interval) {
            Some(Time(interval)) => (!interval.is_zero()).then(|| interval.max(MIN_VERDICT_INTERVAL)),
            None => metrics.is_some().then_some(DEFAULT_VERDICT_INTERVAL),
        };
        Ok(Config {
            socket: absolute(setting!(socket).unwrap_or(defaults.socket))?,
            stream_socket: absolute(setting!(stream_socket).or(streams).unwrap_or(defaults.stream_socket))?,
            control: absolute(setting!(control).or(run).unwrap_or(defaults.control))?,
            state: absolute(setting!(state).unwrap_or(defaults.state))?,
            metrics,
            metrics_token: setting!(metrics_token),
            ship_to: setting!(ship_to),
            ship_token: setting!(ship_token),
            push: PushConfig {
                to: setting!(push_to),
                protocol: setting!(push_protocol).unwrap_or(defaults.push.protocol),
                token: setting!(push_token),
                interval: setting!(push_interval).map_or(defaults.push.interval, |time| time.0.max(MIN_PUSH_INTERVAL)),
                queue: setting!(push_queue).map_or(defaults.push.queue, |bytes| bytes.0),
            },
            serves_all: setting!(all_users).unwrap_or(defaults.serves_all),
            mode: setting!(mode).unwrap_or(defaults.mode),
            overflow: setting!(overflow).unwrap_or(defaults.overflow),
            programs,
            asks_programs: setting!(ask_programs).unwrap_or(defaults.asks_programs),
            ring,
            compression: setting!(compress).unwrap_or(defaults.compression),
            snapshot: setting!(snapshot).map_or(defaults.snapshot, |time| time.0),
            epoch,
            keep_age: setting!(keep_age).map_or(defaults.keep_age, |time| time.0),
            keep_bytes: setting!(keep_bytes).map_or(defaults.keep_bytes, |bytes| bytes.0),
            user_keep_bytes: setting!(user_keep_bytes).map(|bytes| bytes.0),
            keep_free: setting!(keep_free).map_or(defaults.keep_free, |bytes| bytes.0),
            window,
            triggers: Triggers {
                live_bytes: setting!(flight_live).map(|bytes| bytes.0),
                growth: setting!(flight_growth).map(|bytes| bytes.0),
                pressure: setting!(flight_pressure).unwrap_or(defaults.triggers.pressure).min(100),
                death: setting!(flight_death).unwrap_or_default(),
            },
            cgroups: setting!(cgroups),
            standalone: library::STANDALONE,
            verdicts,
            budget: Budget {
                memory: setting!(memory).map_or(budget.memory, |bytes| bytes.0),
                cpu: setting!(cpu).unwrap_or(budget.cpu),
                clients: setting!(clients).unwrap_or(budget.clients),
                connections: setting!(connections).unwrap_or(budget.connections).max(1),
                starts: setting!(starts).unwrap_or(budget.starts).max(1),
                threads: setting!(threads).unwrap_or(budget.threads),
                events: setting!(events).unwrap_or(budget.events).max(1),
                streams: setting!(streams).unwrap_or(budget.streams),
                stream_bytes: setting!(stream_bytes).map_or(budget.stream_bytes, |bytes| bytes.0),
                user_stream_bytes: setting!(user_stream_bytes).map_or(budget.user_stream_bytes, |bytes| bytes.0),
                stream_idle: setting!(stream_idle).map_or(budget.stream_idle, |time| time.0),
            },
        })
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.keep_for_next {
        daemon::fd_store::run(path)?;
        return Ok(Outcome::Done);
    }
    if args.print_verdicts {
        return verdicts::print(args.control);
    }
    check_own_folder().map_err(anyhow::Error::msg)?;
    let config = args.clone().merged()?;
    log::start(tracing::Level::INFO, false);
    if args.stop_at_end_of_input {
        let control = config.control.clone();
        crash::spawn("end of input", move || {
            // The daemon's own thread handles signals.
            let _ = SigSet::all().thread_block();
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = daemon::ask(&control, &Request::Stop);
        })?;
    }
    let reread = Reread::new(move || args.clone().merged().map_err(|error| error.to_string()));
    daemon::run(config, reread, heaptape_analyzer::symbols::save)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_override_the_file() {
        let path = std::env::temp_dir().join(format!("heaptape-config-{}", std::process::id()));
        let text = "mode = \"trace\"\nepoch = \"2h\"\nkeep-bytes = \"1GiB\"\nclients = 7\nsocket = \"/x/s\"\nprogram = [\"redis-*=profile:2%\", \"nginx=trace, overflow = wait:2s\"]\noverflow = \"wait:5s\"\n";
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{error}"));
        let overflow = "wait:1500ms".parse().ok();
        let given = Args { config: Some(path.clone()), clients: Some(9), overflow, ..Args::default() };
        let config = given.merged().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (config.mode.to_string().as_str(), config.epoch.as_secs(), config.budget.clients),
            ("trace", 7200, 9)
        );
        assert_eq!((config.keep_bytes, config.control.to_str()), (1 << 30, Some("/x/control")));
        assert_eq!(config.choose(b"redis-server", None).to_string(), "profile:2%");
        assert_eq!(config.choose(b"nginx", None).to_string(), "trace,overflow=wait:2s");
        assert_eq!(config.overflow.to_string(), "wait:1500ms");
        let relative = Args { control: Some("run/control".into()), ..Args::default() };
        let config = relative.merged().unwrap_or_else(|error| panic!("{error}"));
        assert!(config.control.is_absolute() && config.control.ends_with("run/control"), "{:?}", config.control);
        for wrong in [
            "mod = 1",
            "mode = \"on\"",
            "epoch = \"1y\"",
            "program = [\"x=y\"]",
            "program = [\"x\"]",
            "ring = 5000",
            "overflow = \"wait\"",
        ] {
            std::fs::write(&path, wrong).unwrap_or_else(|error| panic!("{error}"));
            let given = Args { config: Some(path.clone()), ..Args::default() };
            assert!(given.merged().is_err(), "{wrong}");
        }
        let _ = std::fs::remove_file(path);
    }
}
