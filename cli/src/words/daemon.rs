//! `heaptape daemon`: serves all programs that have the library preloaded. Options and the configuration file are one table: what a file
//! says, an option of the same name overrides.

use crate::Outcome;
use heaptape_recorder::daemon::{self, config::*};
use heaptape_recorder::options::Overflow;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A value that a file writes as a person does.
fn word<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(input: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Text(String),
        Number(u64),
    }
    let text = match Word::deserialize(input)? {
        Word::Text(text) => text,
        Word::Number(number) => number.to_string(),
    };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// `NAME=MODE`.
#[derive(Clone, Debug)]
struct Rule(Pattern, Choice);

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, mode) = text.split_once('=').ok_or("NAME=MODE belongs here, such as 'redis-*=profile:2%'")?;
        Ok(Rule(Pattern::new(name), mode.parse()?))
    }
}

/// Rules as a list of such texts.
fn rules<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Rule>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

/// Its options, and the keys of its file.
#[derive(clap::Args, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(
    after_help = "A mode is off, profile, trace or flight; behind it :512KiB records one block in so many bytes, and :2% as many as \
    cost 2 % of the program's processor time; ,overflow=wait:2s at the end lets a thread wait for at most so long when its ring is full, \
    ,overflow=drop does not. Every option is a key of the file."
)]
pub struct Args {
    /// File with the same options (TOML)
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Hold what is recorded for the next daemon, at this socket: how a daemon starts its keeper
    #[arg(long, value_name = "PATH", hide = true)]
    #[serde(skip)]
    keep_for_next: Option<PathBuf>,
    /// Where programs find the daemon
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Stream socket for traces and profiles (nc -U, ssh -R) [default: streams, beside the socket]
    #[arg(long, value_name = "PATH")]
    stream_socket: Option<PathBuf>,
    /// Where ctl finds it
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Where epochs are kept
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Loopback address and port of the metrics, such as 127.0.0.1:9469; none without it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Serve programs of all users; the default of the superuser
    #[arg(long, value_name = "BOOL")]
    all_users: Option<bool>,
    /// What is kept of programs that no rule names [default: profile]
    #[arg(long, value_name = "MODE")]
    #[serde(deserialize_with = "word")]
    mode: Option<Choice>,
    /// A rule: what is kept of programs of this name (* and ? fit anything); the first that fits counts
    #[arg(long, value_name = "NAME=MODE")]
    #[serde(deserialize_with = "rules")]
    program: Vec<Rule>,
    /// What a thread does when its ring is full, where no mode says: drop counts the event as lost, wait:2s waits for at
    /// most so long first (1ms to 30s) [default: drop]
    #[arg(long, value_name = "OVERFLOW")]
    #[serde(deserialize_with = "word")]
    overflow: Option<Overflow>,
    /// Whether HEAPTAPE_MODE in a program's environment counts [default: true]
    #[arg(long, value_name = "BOOL")]
    ask_programs: Option<bool>,
    /// Memory between each thread and the daemon [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    ring: Option<Bytes>,
    /// Time between a profile's snapshots [default: 15s]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "word")]
    snapshot: Option<Span>,
    /// Length of an epoch [default: 1h]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "word")]
    epoch: Option<Span>,
    /// Epochs that are older go, but the newest three stay [default: 30d]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "word")]
    keep_age: Option<Span>,
    /// So many bytes of epochs stay, and the newest three [default: 10GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    keep_bytes: Option<Bytes>,
    /// So many of them are one user's [default: half of keep-bytes with all users, else all]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    user_keep_bytes: Option<Bytes>,
    /// The last while that a flight keeps [default: 10m]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "word")]
    flight_time: Option<Span>,
    /// Or the last bytes of events, if that is less [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    flight_bytes: Option<Bytes>,
    /// Keep a flight when more bytes live than this
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    flight_live: Option<Bytes>,
    /// Keep a flight when live bytes grow by more than this in a minute
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    flight_growth: Option<Bytes>,
    /// Keep a flight when the process dies: never, bad (signal or exit code) or any [default: bad]
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "word")]
    flight_death: Option<Death>,
    /// Most resident memory of the daemon [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    memory: Option<Bytes>,
    /// Most of one processor that the daemon takes, in per cent [default: 100]
    #[arg(long, value_name = "PERCENT")]
    cpu: Option<u64>,
    /// Most processes of one user [default: 2048]
    #[arg(long, value_name = "N")]
    clients: Option<u64>,
    /// Most connections of one user in a second; further ones are closed unheard [default: 5000]
    #[arg(long, value_name = "N")]
    connections: Option<u64>,
    /// Most programs of one user that are taken in in a second; five seconds' worth may come at once, further
    /// ones run unrecorded [default: 200]
    #[arg(long, value_name = "N")]
    starts: Option<u64>,
    /// Most threads of one process [default: 16384]
    #[arg(long, value_name = "N")]
    threads: Option<u64>,
    /// Most events a second of one user; the rest is counted as lost [default: 50000000]
    #[arg(long, value_name = "N")]
    events: Option<u64>,
    /// Most traces and profiles that one user sends in an epoch [default: 1000]
    #[arg(long, value_name = "N")]
    streams: Option<u64>,
    /// Most bytes of one of them [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    stream_bytes: Option<Bytes>,
    /// Most bytes of all that one user sends in an epoch [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "word")]
    user_stream_bytes: Option<Bytes>,
    /// Time without a byte that ends one [default: 1m]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "word")]
    stream_idle: Option<Span>,
}

impl Args {
    /// What both say, options before the file.
    fn merged(self) -> anyhow::Result<Config> {
        let file = match &self.config {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
                toml::from_str::<Args>(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?
            }
            None => Args::default(),
        };
        let usual = Config::default();
        let socket = self.socket.as_ref().or(file.socket.as_ref());
        let beside = |name: &str| socket.and_then(|socket| socket.parent().map(|run| run.join(name)));
        let (streams, run) = (beside("streams"), beside("control"));
        let programs = self.program.into_iter().chain(file.program).map(|Rule(name, choice)| (name, choice)).collect();
        macro_rules! said {
            ($name:ident) => {
                self.$name.or(file.$name)
            };
        }
        let ring = said!(ring).map_or(usual.ring, |ring: Bytes| ring.0);
        anyhow::ensure!(
            ring.is_power_of_two() && (4096..=1 << 30).contains(&ring),
            "ring: a power of two from 4KiB to 1GiB is due"
        );
        let mut window = usual.window;
        window.time = said!(flight_time).map_or(window.time, |time: Span| time.0);
        window.bytes = said!(flight_bytes).map_or(window.bytes, |bytes: Bytes| bytes.0);
        let budget = Budget::default();
        Ok(Config {
            socket: said!(socket).unwrap_or(usual.socket),
            stream_socket: said!(stream_socket).or(streams).unwrap_or(usual.stream_socket),
            control: said!(control).or(run).unwrap_or(usual.control),
            state: said!(state).unwrap_or(usual.state),
            metrics: said!(metrics),
            serves_all: said!(all_users).unwrap_or(usual.serves_all),
            mode: said!(mode).unwrap_or(usual.mode),
            overflow: said!(overflow).unwrap_or(usual.overflow),
            programs,
            asks_programs: said!(ask_programs).unwrap_or(usual.asks_programs),
            ring,
            snapshot: said!(snapshot).map_or(usual.snapshot, |time| time.0),
            epoch: said!(epoch).map_or(usual.epoch, |time| time.0),
            keep_age: said!(keep_age).map_or(usual.keep_age, |time| time.0),
            keep_bytes: said!(keep_bytes).map_or(usual.keep_bytes, |bytes| bytes.0),
            user_keep_bytes: said!(user_keep_bytes).map(|bytes| bytes.0),
            window,
            triggers: Triggers {
                live_bytes: said!(flight_live).map(|bytes| bytes.0),
                growth: said!(flight_growth).map(|bytes| bytes.0),
                death: said!(flight_death).unwrap_or_default(),
            },
            budget: Budget {
                memory: said!(memory).map_or(budget.memory, |bytes| bytes.0),
                cpu: said!(cpu).unwrap_or(budget.cpu),
                clients: said!(clients).unwrap_or(budget.clients),
                connections: said!(connections).unwrap_or(budget.connections).max(1),
                starts: said!(starts).unwrap_or(budget.starts).max(1),
                threads: said!(threads).unwrap_or(budget.threads),
                events: said!(events).unwrap_or(budget.events).max(1),
                streams: said!(streams).unwrap_or(budget.streams),
                stream_bytes: said!(stream_bytes).map_or(budget.stream_bytes, |bytes| bytes.0),
                user_stream_bytes: said!(user_stream_bytes).map_or(budget.user_stream_bytes, |bytes| bytes.0),
                stream_idle: said!(stream_idle).map_or(budget.stream_idle, |time| time.0),
            },
        })
    }
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.keep_for_next {
        daemon::keeper::keep(path)?;
        return Ok(Outcome::Done);
    }
    let config = args.merged()?;
    let level = std::env::var("HEAPTAPE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(tracing::Level::INFO);
    // journald gives the time; names of programs in messages are escaped where they are made.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .try_init();
    daemon::run(config, heaptape_analyzer::symbols::save)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_and_the_options_are_one_table() {
        let place = std::env::temp_dir().join(format!("heaptape-config-{}", std::process::id()));
        let text = "mode = \"trace\"\nepoch = \"2h\"\nkeep-bytes = \"1GiB\"\nclients = 7\nsocket = \"/x/s\"\nprogram = [\"redis-*=profile:2%\", \"nginx=trace, overflow = wait:2s\"]\noverflow = \"wait:5s\"\n";
        std::fs::write(&place, text).unwrap_or_else(|error| panic!("{error}"));
        let overflow = "wait:1500ms".parse().ok();
        let given = Args { config: Some(place.clone()), clients: Some(9), overflow, ..Args::default() };
        let config = given.merged().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (config.mode.to_string().as_str(), config.epoch.as_secs(), config.budget.clients),
            ("trace", 7200, 9)
        );
        assert_eq!((config.keep_bytes, config.control.to_str()), (1 << 30, Some("/x/control")));
        assert_eq!(config.choose(b"redis-server", None).to_string(), "profile:2%");
        assert_eq!(config.choose(b"nginx", None).to_string(), "trace,overflow=wait:2s");
        assert_eq!(config.overflow.to_string(), "wait:1500ms");
        for wrong in [
            "mod = 1",
            "mode = \"on\"",
            "epoch = \"1y\"",
            "program = [\"x=y\"]",
            "program = [\"x\"]",
            "ring = 5000",
            "overflow = \"wait\"",
        ] {
            std::fs::write(&place, wrong).unwrap_or_else(|error| panic!("{error}"));
            let given = Args { config: Some(place.clone()), ..Args::default() };
            assert!(given.merged().is_err(), "{wrong}");
        }
        let _ = std::fs::remove_file(place);
    }
}
