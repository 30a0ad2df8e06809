//! Looks at starting programs: each on a thread of its own, since it may never return. Meanwhile the
//! service admits others.

use super::control::Wake;
use crossbeam_channel::{Receiver, Sender, unbounded};
use heaptape_recorder::os::aside::{self, Owner};
use heaptape_recorder::os::sys;
use heaptape_recorder::run::admission::{Known, Question};
use heaptape_recorder::session::listener::Client;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of programs that are looked at at once: processors are few.
const AT_ONCE: usize = 4;

/// Number of looks, a second apart, after which it is said that something does not answer: this
/// daemon itself may have been stopped.
const LOOKS: u32 = 2;

/// A program that is looked at.
#[derive(Debug)]
struct Pending {
    client: Arc<Client>,
    since: Instant,
    /// Number of looks at which it had waited no longer.
    looks: u32,
}

impl Pending {
    fn is_stuck(&self) -> bool {
        self.since.elapsed() >= aside::PATIENCE
    }
}

/// The programs that are looked at.
#[derive(Debug)]
pub(crate) struct Inquiries {
    sender: Sender<(Arc<Client>, Known)>,
    answers: Receiver<(Arc<Client>, Known)>,
    wake: Wake,
    pending: Vec<Pending>,
    /// The processes whose files or memory did not answer at the last look.
    stuck: Vec<Owner>,
}

/// The answer about a program.
#[derive(Debug)]
pub(crate) struct Answer {
    pub client: Client,
    pub known: Known,
    /// Whether it was said that it runs unrecorded, since it waited no longer.
    pub is_named: bool,
}

impl Inquiries {
    pub(crate) fn new(wake: Wake) -> Inquiries {
        let (sender, answers) = unbounded();
        Inquiries { sender, answers, wake, pending: Vec::new(), stuck: Vec::new() }
    }

    /// Returns whether another program may be looked at now. Those that do not answer do not count.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.iter().filter(|one| !one.is_stuck()).count() < AT_ONCE
    }

    /// Returns the time until one of them counts as one that does not answer.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let waits = self.pending.iter().filter(|one| !one.is_stuck());
        waits.map(|one| aside::PATIENCE.saturating_sub(one.since.elapsed())).min()
    }

    /// Looks at a program. Returns it if it cannot be looked at: too many of its user do not answer.
    pub(crate) fn begin(&mut self, client: Client, question: Question) -> Option<Client> {
        let Ok(place) = aside::place(question.owner()) else { return Some(client) };
        let client = Arc::new(client);
        self.pending.push(Pending { client: Arc::clone(&client), since: Instant::now(), looks: 0 });
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        place.start(move || {
            // The program waits.
            sys::prefer_thread();
            let _ = sender.send((client, question.answer()));
            let _ = wake.as_ref().write(&[1]);
        });
        None
    }

    /// Returns the next program that was looked at.
    pub(crate) fn next(&mut self) -> Option<Answer> {
        let (client, known) = self.answers.try_recv().ok()?;
        let index = self.pending.iter().position(|one| Arc::ptr_eq(&one.client, &client))?;
        let is_named = self.pending.swap_remove(index).looks >= LOOKS;
        Some(Answer { client: Arc::into_inner(client)?, known, is_named })
    }

    /// Returns the programs that waited no longer, while they do not answer, each once: process and
    /// user.
    pub(crate) fn gave_up(&mut self) -> Vec<(u32, u32)> {
        let mut gave_up = Vec::new();
        for one in &mut self.pending {
            if one.is_stuck() && one.client.has_disconnected() {
                one.looks = one.looks.saturating_add(1);
                if one.looks == LOOKS {
                    gave_up.push((one.client.pid, one.client.uid));
                }
            }
        }
        gave_up
    }

    /// Returns the processes whose files or memory did not answer at this look and the last one.
    pub(crate) fn stuck(&mut self) -> Vec<Owner> {
        let now: Vec<Owner> = aside::stuck().into_iter().map(|(owner, _)| owner).collect();
        let before = std::mem::replace(&mut self.stuck, now.clone());
        now.into_iter().filter(|owner| before.contains(owner)).collect()
    }

    /// Returns the programs, as process and user.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, u32)> {
        self.pending.iter().map(|one| (one.client.pid, one.client.uid))
    }
}
