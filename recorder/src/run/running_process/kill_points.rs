//! Where a test can kill the process that traces, or the command: at each of its steps.

/// Counts a step of the tracing process. For tests, in debug builds only: at step N of
/// `HEAPTAPE_TEST_KILL=N` the process that has started this one is killed. With `N,tracer` it is
/// this one.
pub(super) fn step() {
    #[cfg(debug_assertions)]
    {
        use std::sync::OnceLock;
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static COUNT: AtomicU32 = AtomicU32::new(1);
        static KILL_AT: OnceLock<Option<(u32, bool)>> = OnceLock::new();
        let wanted = *KILL_AT.get_or_init(|| {
            let text = std::env::var("HEAPTAPE_TEST_KILL").ok()?;
            let (number, who) = text.split_once(',').unwrap_or((&text, ""));
            Some((number.parse().ok()?, who == "tracer"))
        });
        if let Some((number, kills_tracer)) = wanted
            && COUNT.fetch_add(1, Relaxed) == number
        {
            let killed = if kills_tracer { nix::unistd::getpid() } else { nix::unistd::getppid() };
            let _ = nix::sys::signal::kill(killed, nix::sys::signal::Signal::SIGKILL);
        }
    }
}
