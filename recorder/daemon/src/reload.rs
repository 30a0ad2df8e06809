//! Compares the configuration that was read again with the one in use: which settings changed, and
//! which of these apply at once.

use super::config::{Config, Death};
use std::fmt::{self, Debug};
use std::time::Duration;

/// Reads the configuration again: the file, and the options that override it.
pub struct Reread(Box<dyn Fn() -> Result<Config, String> + Send>);

impl Reread {
    /// Creates it from the function that reads.
    pub fn new(read: impl Fn() -> Result<Config, String> + Send + 'static) -> Reread {
        Reread(Box::new(read))
    }

    /// Reads the configuration from its file again.
    ///
    /// # Errors
    /// The message for the user, when it cannot be read.
    pub fn read(&self) -> Result<Config, String> {
        (self.0)()
    }
}

impl Debug for Reread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reread")
    }
}

/// A setting that differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    /// The change as text: the old value and the new one.
    pub text: String,
    /// Whether it takes effect only when the daemon is started again.
    pub needs_restart: bool,
}

/// When a setting takes effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Now,
    AtStart,
}

fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size));
    unit.map_or_else(|| bytes.to_string(), |(size, name)| format!("{}{name}", bytes / size))
}

fn some<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "none".into(), text)
}

fn time(time: Duration) -> String {
    format!("{time:?}")
}

fn text(value: impl Debug) -> String {
    format!("{value:?}")
}

/// Returns all settings by key, with their values as text.
fn settings(config: &Config) -> Vec<(&'static str, String, Effect)> {
    use Effect::{AtStart, Now};
    let Config { budget, triggers, window, .. } = config;
    let rules: Vec<String> = config.programs.iter().map(ToString::to_string).collect();
    let death = match triggers.death {
        Death::Never => "never",
        Death::Bad => "bad",
        Death::Any => "any",
    };
    vec![
        ("socket", text(&config.socket), AtStart),
        ("stream-socket", text(&config.stream_socket), AtStart),
        ("control", text(&config.control), AtStart),
        ("state", text(&config.state), AtStart),
        ("metrics", some(config.metrics.as_ref(), ToString::to_string), AtStart),
        ("metrics-token", some(config.metrics_token.as_ref(), text), AtStart),
        ("cgroups", some(config.cgroups.as_ref(), text), AtStart),
        ("ship-to", some(config.ship_to.as_ref(), text), AtStart),
        ("ship-token", some(config.ship_token.as_ref(), text), AtStart),
        ("push-to", some(config.push.to.as_ref(), text), AtStart),
        ("push-protocol", config.push.protocol.name().into(), AtStart),
        ("push-token", some(config.push.token.as_ref(), text), AtStart),
        ("push-interval", time(config.push.interval), AtStart),
        ("push-queue", size(config.push.queue), AtStart),
        ("verdict-interval", some(config.verdicts, time), AtStart),
        ("all-users", config.serves_all.to_string(), AtStart),
        ("mode", config.mode.to_string(), Now),
        ("program", format!("[{}]", rules.join("; ")), Now),
        ("overflow", config.overflow.to_string(), Now),
        ("ask-programs", config.asks_programs.to_string(), Now),
        ("ring", size(config.ring), Now),
        ("compress", config.compression.to_string(), Now),
        ("snapshot", time(config.snapshot), Now),
        ("epoch", time(config.epoch), Now),
        ("keep-age", time(config.keep_age), Now),
        ("keep-bytes", size(config.keep_bytes), Now),
        ("user-keep-bytes", some(config.user_keep_bytes, size), Now),
        ("keep-free", size(config.keep_free), Now),
        ("flight-time", time(window.time), Now),
        ("flight-bytes", size(window.bytes), Now),
        ("flight-live", some(triggers.live_bytes, size), Now),
        ("flight-growth", some(triggers.growth, size), Now),
        ("flight-pressure", triggers.pressure.to_string(), AtStart),
        ("flight-death", death.into(), Now),
        ("memory", size(budget.memory), Now),
        ("cpu", budget.cpu.to_string(), Now),
        ("clients", budget.clients.to_string(), Now),
        ("connections", budget.connections.to_string(), AtStart),
        ("starts", budget.starts.to_string(), AtStart),
        ("threads", budget.threads.to_string(), Now),
        ("events", budget.events.to_string(), Now),
        ("streams", budget.streams.to_string(), Now),
        ("stream-bytes", size(budget.stream_bytes), Now),
        ("user-stream-bytes", size(budget.user_stream_bytes), Now),
        ("stream-idle", time(budget.stream_idle), AtStart),
    ]
}

impl Config {
    /// Returns the settings in which `next` differs.
    pub fn changes(&self, next: &Config) -> Vec<Change> {
        let both = settings(self).into_iter().zip(settings(next));
        let differ = both.filter(|((_, was, _), (_, is, _))| was != is);
        differ
            .map(|((key, was, effect), (_, is, _))| Change {
                key,
                text: format!("{was} is now {is}"),
                needs_restart: effect == Effect::AtStart,
            })
            .collect()
    }

    /// Returns this configuration with those settings of `next` that take effect at once.
    pub fn reloaded(&self, next: Config) -> Config {
        let mut budget = next.budget;
        (budget.connections, budget.starts) = (self.budget.connections, self.budget.starts);
        budget.stream_idle = self.budget.stream_idle;
        Config {
            socket: self.socket.clone(),
            stream_socket: self.stream_socket.clone(),
            control: self.control.clone(),
            state: self.state.clone(),
            metrics: self.metrics.clone(),
            metrics_token: self.metrics_token.clone(),
            serves_all: self.serves_all,
            ship_to: self.ship_to.clone(),
            ship_token: self.ship_token.clone(),
            push: self.push.clone(),
            verdicts: self.verdicts,
            budget,
            ..next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_named_and_those_that_need_a_restart_do_not_apply() {
        let now = Config::default();
        let mut next = now.clone();
        assert_eq!(now.changes(&next), []);
        next.programs = vec!["redis-*=profile:2%".parse().expect("a rule")];
        (next.keep_bytes, next.budget.starts, next.state) = (1 << 20, 7, "/elsewhere".into());
        let changes = now.changes(&next);
        let found: Vec<_> = changes.iter().map(|change| (change.key, change.needs_restart)).collect();
        assert_eq!(found, [("state", true), ("program", false), ("keep-bytes", false), ("starts", true)]);
        assert_eq!(changes[1].text, "[] is now [redis-*=profile:2%]");
        assert_eq!(changes[2].text, "10GiB is now 1MiB");
        let applied = now.reloaded(next);
        let left: Vec<_> = now.changes(&applied).iter().map(|change| change.key).collect();
        assert_eq!(left, ["program", "keep-bytes"]);
    }
}
