//! Reads the configuration again, and applies what may change while the daemon runs.

use super::Service;
use crate::protocol::Reloaded;
use crate::reload::Change;

impl Service {
    /// Reads the configuration again, applies it, and logs what changed. Rules and modes apply to
    /// the programs that start from now on. A configuration that cannot be read changes nothing.
    pub(super) fn reload(&mut self) -> Result<Reloaded, String> {
        let next = self.reread.read().inspect_err(|why| {
            tracing::error!("the configuration cannot be read, and stays as it is: {why}");
        })?;
        let changes = self.config.changes(&next);
        if changes.is_empty() {
            tracing::info!("the configuration was read again: nothing changed");
        }
        for Change { key, text, needs_restart } in &changes {
            let when = if *needs_restart { "; it applies when the daemon is started again" } else { "" };
            tracing::info!("the configuration was read again: {key}: {text}{when}");
        }
        self.config = self.config.reloaded(next);
        self.budgets.set_limits(self.config.budget);
        self.epochs.set_limits(&self.config);
        let of = |needs_restart: bool| {
            let chosen = changes.iter().filter(move |change| change.needs_restart == needs_restart);
            chosen.map(|change| (change.key.to_owned(), change.text.clone())).collect()
        };
        Ok(Reloaded { changed: of(false), needs_restart: of(true) })
    }
}
