//! Bounds the lines of the log that one user can cause. journald drops what exceeds its own limit,
//! also the messages about others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Length of the window in which lines are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Number of kinds and users above which windows that are over are forgotten.
const MAX_WINDOWS: usize = 1024;

/// The lines of one kind and user in the current window.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    written: u32,
    left_out: u64,
}

/// The lines of all kinds and users.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(HashMap<(&'static str, u32), Window>);

impl LogLimit {
    /// Returns whether a line of this kind about a user may be written now, and if so, what follows
    /// it: how many were left out before. At most `most` are written in a minute.
    pub(crate) fn permits(&mut self, kind: &'static str, uid: u32, most: u32) -> Option<String> {
        self.permits_at(kind, uid, most, Instant::now())
    }

    fn permits_at(&mut self, kind: &'static str, uid: u32, most: u32, now: Instant) -> Option<String> {
        if self.0.len() >= MAX_WINDOWS {
            self.0.retain(|_, window| now.duration_since(window.began) < WINDOW);
        }
        let window = self.0.entry((kind, uid)).or_insert(Window { began: now, written: 0, left_out: 0 });
        if now.duration_since(window.began) >= WINDOW {
            (window.began, window.written) = (now, 0);
        }
        if window.written >= most {
            window.left_out += 1;
            return None;
        }
        window.written += 1;
        match std::mem::take(&mut window.left_out) {
            0 => Some(String::new()),
            left_out => Some(format!(" ({left_out} such lines were left out before)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_user_are_bounded_and_the_rest_is_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let written = (0..100).filter(|_| limit.permits_at("mode", 7, 3, start).is_some()).count();
        assert_eq!(written, 3);
        assert!(limit.permits_at("mode", 8, 3, start).is_some(), "another user has lines of their own");
        assert!(limit.permits_at("late", 7, 3, start).is_some(), "and so has another kind");
        let next = limit.permits_at("mode", 7, 3, start + WINDOW);
        assert_eq!(next.as_deref(), Some(" (97 such lines were left out before)"));
        assert_eq!(limit.permits_at("mode", 7, 3, start + WINDOW).as_deref(), Some(""));
        for uid in 0..10_000 {
            limit.permits_at("mode", uid, 3, start + WINDOW * uid);
        }
        assert!(limit.0.len() <= MAX_WINDOWS, "{}", limit.0.len());
    }
}
