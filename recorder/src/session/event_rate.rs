//! The limit of the events that the processes of one user may send. They share a token bucket, and
//! each process has one with its fair share, which nobody else can use up. What sampling skips is
//! not sent, and takes no token.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Mean number of records of an event, at most.
const RECORDS_PER_EVENT: u64 = 2;

/// A token bucket. It holds as many tokens as it gets in a second. After a large pass the number is
/// negative.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    tokens: i64,
    /// When it got tokens the last time; `None` before the first time.
    filled: Option<Instant>,
}

impl Bucket {
    /// Adds the tokens for the time since the last call. Returns whether there are any.
    fn fill(&mut self, a_second: u64, now: Instant) -> bool {
        let capacity = i64::try_from(a_second).unwrap_or(i64::MAX);
        let Some(filled) = self.filled else {
            (self.tokens, self.filled) = (capacity, Some(now));
            return capacity > 0;
        };
        let nanos = now.saturating_duration_since(filled).as_nanos();
        let more = i64::try_from(nanos.saturating_mul(a_second.into()) / 1_000_000_000).unwrap_or(i64::MAX);
        if more > 0 {
            // The rest of the time counts at the next call.
            let used = Duration::from_nanos((more as u64).saturating_mul(1_000_000_000) / a_second.max(1));
            let is_full = self.tokens.saturating_add(more) >= capacity;
            self.tokens = self.tokens.saturating_add(more).min(capacity);
            self.filled = Some(if is_full { now } else { filled + used });
        }
        self.tokens > 0
    }

    fn take(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub_unsigned(tokens);
    }
}

#[derive(Debug)]
pub struct UserLimit {
    /// Number of records per second of all processes.
    records: AtomicU64,
    /// Number of processes that share them.
    processes: AtomicU64,
    bucket: Mutex<Bucket>,
}

impl UserLimit {
    /// Creates the limit of a user, in events per second.
    pub fn new(events: u64) -> UserLimit {
        let limit = UserLimit { records: AtomicU64::new(0), processes: AtomicU64::new(1), bucket: Mutex::default() };
        limit.set_events(events);
        limit
    }

    /// Sets the number of events per second.
    pub fn set_events(&self, events: u64) {
        self.records.store(events.max(1).saturating_mul(RECORDS_PER_EVENT), Relaxed);
    }

    /// Sets the number of processes that share the limit.
    pub fn set_processes(&self, processes: u64) {
        self.processes.store(processes.max(1), Relaxed);
    }

    fn fair_share(&self) -> u64 {
        (self.records.load(Relaxed) / self.processes.load(Relaxed).max(1)).max(1)
    }
}

/// The limit of the records that one process may send.
#[derive(Debug, Default)]
pub struct Limit {
    /// The limit of its user; `None` for no limit.
    user: Option<Arc<UserLimit>>,
    /// The bucket with the fair share of the process.
    own: Mutex<Bucket>,
    /// How often the rings were not read because of the limit.
    hits: AtomicU64,
}

impl Limit {
    /// Creates the limit of a process of this user.
    pub fn of(user: Arc<UserLimit>) -> Limit {
        Limit { user: Some(user), ..Limit::default() }
    }

    /// Returns whether the rings of the process may be read: the user's bucket has tokens, or the
    /// process has used less than its fair share. Counts a hit if not.
    pub fn permits(&self, now: Instant) -> bool {
        let Some(user) = &self.user else { return true };
        let is_own = self.own.lock().unwrap_or_else(PoisonError::into_inner).fill(user.fair_share(), now);
        let is_shared =
            user.bucket.lock().unwrap_or_else(PoisonError::into_inner).fill(user.records.load(Relaxed), now);
        self.hits.fetch_add(u64::from(!is_own && !is_shared), Relaxed);
        is_own || is_shared
    }

    /// Takes the tokens of records that were read.
    pub fn take(&self, records: u64) {
        let Some(user) = &self.user else { return };
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take(records);
        user.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(records);
    }

    /// Returns how often the rings were not read since the last call.
    pub fn take_hits(&self) -> u64 {
        self.hits.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(events: u64, processes: usize) -> Vec<Limit> {
        let user = Arc::new(UserLimit::new(events));
        user.set_processes(processes as u64);
        (0..processes).map(|_| Limit::of(Arc::clone(&user))).collect()
    }

    #[test]
    fn burst_below_the_budget_is_never_held_up() {
        let (all, start) = (limits(1000, 50), Instant::now());
        assert!(all.iter().all(|limit| limit.permits(start)));
        // One process uses the budget of a second at once, then again a second later.
        for second in 0..5 {
            let now = start + Duration::from_secs(second);
            for _ in 0..10 {
                assert!(all[7].permits(now), "second {second}");
                all[7].take(199);
            }
        }
        assert_eq!(all.iter().map(Limit::take_hits).sum::<u64>(), 0);
    }

    #[test]
    fn flood_gets_what_the_others_leave_and_takes_nothing_from_them() {
        let (all, start) = (limits(1000, 4), Instant::now());
        let mut sent = [0; 4];
        for ms in 0..20_000 {
            let now = start + Duration::from_millis(ms);
            // The first process floods, the second one sends half of its fair share, and the third
            // one sends its fair share in one burst a second.
            let wanted = [5000, u64::from(ms % 4 == 0), if ms % 1000 == 999 { 500 } else { 0 }, 0];
            for ((limit, sent), wanted) in all.iter().zip(&mut sent).zip(wanted) {
                if wanted > 0 && limit.permits(now) {
                    limit.take(wanted);
                    *sent += wanted;
                }
            }
        }
        assert!(all[0].take_hits() > 1000 && all[1].take_hits() == 0 && all[2].take_hits() == 0);
        assert_eq!((sent[1], sent[2]), (5000, 10_000));
        let total: u64 = sent.iter().sum();
        assert!((35_000..=50_000).contains(&total), "2,000 records a second, and the first burst: {sent:?}");
    }

    #[test]
    fn record_without_a_daemon_has_no_limit() {
        let limit = Limit::default();
        limit.take(u64::MAX);
        assert!(limit.permits(Instant::now()));
    }
}
