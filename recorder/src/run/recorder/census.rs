//! Every program that a recorded process or its descendants executed, by the kernel's own account
//! ([`crate::os::process_events`]): each must have attached, or been named. What did neither ran
//! unseen, however short it was and however it was started.
//!
//! Where the kernel does not tell (e.g. in a container), [`super::newborn`] and [`super::children`]
//! find most.

use super::Recorder;
use super::descendants::Unseen;
use crate::os::process_events::{Event, ProcessEvents, What};
use crate::target::proc;
use std::collections::HashMap;

/// Maximum number of processes that are followed, and of those that are remembered.
const MAX_MEMBERS: usize = 1 << 16;
/// How many are followed before we look which of the ended ones are really gone.
const FEW_MEMBERS: usize = 1 << 12;

/// A process of the recorded tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Member {
    /// The process that made it.
    parent: u32,
    /// The nearest process that was recorded: itself, or one above.
    root: u32,
    /// It executed a program that has not attached.
    is_unseen: bool,
    /// That program was started by one that was seen, and nobody has named it. What an unseen
    /// program starts is not seen either, and goes without saying.
    is_open: bool,
    /// Number of times that it was named before it executed what was meant.
    named_before: u32,
    has_ended: bool,
}

/// A program that has ended, and that nobody has seen.
#[derive(Debug, PartialEq, Eq)]
struct UnseenProgram {
    pid: u32,
    parent: u32,
    root: u32,
}

#[derive(Debug, Default)]
pub(super) struct Census {
    /// None where the kernel does not tell, or has told too much at once.
    events: Option<ProcessEvents>,
    members: HashMap<u32, Member>,
    unseen: Vec<UnseenProgram>,
    /// Members that executed a program since the last look.
    executed: Vec<u32>,
    /// How many programs these processes started in children whose numbers they did not know.
    announced: HashMap<u32, u32>,
    /// Number of members at which the ended ones are looked at.
    prune_at: usize,
    has_births: bool,
}

impl Census {
    /// Counts from here on, where the kernel tells.
    pub(super) fn start() -> Census {
        Census { events: ProcessEvents::listen(), prune_at: FEW_MEMBERS, ..Census::default() }
    }

    /// Returns whether the kernel has told everything.
    pub(super) fn is_whole(&self) -> bool {
        self.events.is_some()
    }

    /// Takes what the kernel tells. A program has executed before it says hello, and forks only
    /// after our answer, so the order is right if this is called before each hello is handled.
    pub(super) fn read(&mut self) {
        let Some(events) = self.events.take() else { return };
        if events.read(|event| self.take(event)).is_ok() && self.members.len() < MAX_MEMBERS {
            self.events = Some(events);
        } else {
            tracing::debug!("the kernel's process events are not complete");
            *self = Census::default();
        }
        if self.members.len() > self.prune_at {
            self.prune(|pid| proc::start_ticks(pid).is_some());
        }
    }

    fn take(&mut self, Event { pid, what }: Event) {
        match what {
            What::Forked { parent } => {
                let above = self.members.get(&parent).copied();
                // The kernel gave the number again.
                self.close(pid);
                self.members.remove(&pid);
                if let Some(Member { root, is_unseen, .. }) = above {
                    self.members.insert(pid, Member { parent, root, is_unseen, ..Member::default() });
                    self.has_births = true;
                }
            }
            What::Executed => {
                self.close(pid);
                let Some(member) = self.members.get_mut(&pid) else { return };
                let is_first = !member.is_unseen;
                member.is_open = is_first && member.named_before == 0;
                member.named_before = if is_first { member.named_before.saturating_sub(1) } else { 0 };
                (member.is_unseen, member.has_ended) = (true, false);
                self.executed.push(pid);
            }
            What::Ended { status } => {
                // The loader ends with 127 where it misses a library, and a signal may come before the
                // program's first instruction. What such a program did nobody knows, most often nothing.
                const LOADER_FAILED: u32 = 127 << 8;
                if status == LOADER_FAILED || status & 0x7f != 0 {
                    self.members.entry(pid).and_modify(|member| member.is_open = false);
                }
                self.close(pid);
                self.members.entry(pid).and_modify(|member| member.has_ended = true);
            }
        }
    }

    /// Remembers the program of a process that ends or executes another one, if nobody has seen it.
    fn close(&mut self, pid: u32) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        if std::mem::take(&mut member.is_open) && self.unseen.len() < MAX_MEMBERS {
            self.unseen.push(UnseenProgram { pid, parent: member.parent, root: member.root });
        }
    }

    /// Forgets the processes that have ended. Where only the first thread has, the others go on.
    fn prune(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.members.retain(|pid, member| !member.has_ended || is_alive(*pid));
        self.prune_at = FEW_MEMBERS.max(2 * self.members.len());
    }

    /// Notes that the program of a process attaches.
    pub(super) fn attaches(&mut self, pid: u32) {
        self.read();
        if self.is_whole() {
            let member = self.members.entry(pid).or_default();
            (member.is_unseen, member.is_open, member.root) = (false, false, pid);
            self.forget(pid);
        }
    }

    /// Notes that a process was named that runs unrecorded, or will execute a program that does.
    pub(super) fn is_named(&mut self, pid: u32) {
        self.read();
        let Some(member) = self.members.get_mut(&pid) else { return };
        let is_open = std::mem::take(&mut member.is_open);
        let has_ended = member.has_ended;
        if !is_open && !self.forget(pid) && !has_ended {
            self.members.entry(pid).and_modify(|member| member.named_before += 1);
        }
    }

    /// Takes that back.
    pub(super) fn is_not_named(&mut self, pid: u32) {
        self.members.entry(pid).and_modify(|member| member.named_before = member.named_before.saturating_sub(1));
    }

    /// Notes that a process starts an unrecorded program in a child whose number it does not know.
    pub(super) fn announce(&mut self, parent: u32) {
        if self.is_whole() {
            *self.announced.entry(parent).or_default() += 1;
        }
    }

    /// Notes the number of such a child.
    pub(super) fn is_announced(&mut self, parent: u32, child: u32) {
        self.announced.entry(parent).and_modify(|count| *count = count.saturating_sub(1));
        self.is_named(child);
    }

    fn forget(&mut self, pid: u32) -> bool {
        let last = self.unseen.iter().rposition(|unseen| unseen.pid == pid);
        last.map(|index| self.unseen.remove(index)).is_some()
    }

    /// Returns the members that have executed a program since the last call, and whether any process
    /// was born in the tree.
    pub(super) fn news(&mut self) -> (Vec<u32>, bool) {
        (std::mem::take(&mut self.executed), std::mem::take(&mut self.has_births))
    }

    /// Returns the running members that execute a program that nobody has seen.
    fn running(&self) -> Vec<(u32, Member)> {
        let open = self.members.iter().filter(|(_, member)| member.is_open && !member.has_ended);
        open.map(|(pid, member)| (*pid, *member)).collect()
    }

    /// Returns how many programs ran unseen, and below which recorded process.
    fn count(mut self) -> Vec<(u32, usize)> {
        self.unseen.retain(|program| match self.announced.get_mut(&program.parent) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        });
        let mut roots: Vec<u32> = self.unseen.iter().map(|program| program.root).collect();
        roots.sort_unstable();
        roots.chunk_by(u32::eq).map(|same| (same[0], same.len())).collect()
    }
}

impl Recorder {
    /// Names the running descendants that nobody has seen, at the end: also those whose parents have
    /// ended.
    pub(super) fn name_unseen_members(&mut self) {
        self.census.read();
        for (pid, Member { root, .. }) in self.census.running() {
            let is_known = self.knows_untraced(pid) || self.loaded.iter().any(|loaded| loaded.pid == pid);
            // What knows the socket is found by that.
            if !is_known && let Some(Unseen { exe, why: Some(why) }) = self.unseen(pid, root) {
                self.name_unseen(pid, root, exe, why);
            }
        }
    }

    /// Counts the programs that ran unseen and have ended. Returns `None` if the kernel has not told
    /// everything.
    pub(super) fn count_unseen(&mut self) -> Option<Vec<(u32, String, usize)>> {
        self.census.read();
        let census = std::mem::take(&mut self.census);
        let name = |pid: u32| {
            let known = self.recording.processes.iter().rfind(|process| process.pid == pid);
            known.and_then(|process| process.exe.rsplit('/').next()).unwrap_or_default().to_owned()
        };
        census.is_whole().then(|| census.count().into_iter().map(|(pid, count)| (pid, name(pid), count)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 10;

    /// A tree with one recorded process.
    fn census() -> Census {
        let root = Member { root: ROOT, ..Member::default() };
        Census { members: HashMap::from([(ROOT, root)]), prune_at: FEW_MEMBERS, ..Census::default() }
    }

    fn forks(census: &mut Census, parent: u32, pid: u32) {
        census.take(Event { pid, what: What::Forked { parent } });
    }

    fn executes(census: &mut Census, pid: u32) {
        census.take(Event { pid, what: What::Executed });
    }

    fn ends(census: &mut Census, pid: u32, status: u32) {
        census.take(Event { pid, what: What::Ended { status } });
    }

    /// As [`Census::attaches`], without a kernel that tells.
    fn attaches(census: &mut Census, pid: u32) {
        let member = census.members.get_mut(&pid).expect("a member");
        (member.is_unseen, member.is_open, member.root) = (false, false, pid);
        census.forget(pid);
    }

    #[test]
    fn programs_that_neither_attach_nor_are_named_are_counted() {
        let mut census = census();
        // Five that nobody sees beside three that attach.
        for pid in 11..19 {
            forks(&mut census, ROOT, pid);
            executes(&mut census, pid);
            if pid % 3 == 0 {
                attaches(&mut census, pid);
            }
            ends(&mut census, pid, 0);
        }
        // A child of an orphan.
        forks(&mut census, ROOT, 20);
        forks(&mut census, 20, 21);
        ends(&mut census, 20, 0);
        executes(&mut census, 21);
        ends(&mut census, 21, 1 << 8);
        // One that is no descendant.
        forks(&mut census, 1, 30);
        executes(&mut census, 30);
        ends(&mut census, 30, 0);
        assert_eq!(census.unseen.last(), Some(&UnseenProgram { pid: 21, parent: 20, root: ROOT }));
        assert_eq!(census.count(), [(ROOT, 6)]);
    }

    #[test]
    fn programs_that_are_named_and_what_they_start_are_not_counted() {
        let mut census = census();
        // The name comes before the program, while it runs, and when it has ended.
        forks(&mut census, ROOT, 11);
        census.is_named(11);
        executes(&mut census, 11);
        forks(&mut census, 11, 12);
        executes(&mut census, 12);
        ends(&mut census, 12, 0);
        ends(&mut census, 11, 0);
        forks(&mut census, ROOT, 13);
        executes(&mut census, 13);
        census.is_named(13);
        ends(&mut census, 13, 0);
        forks(&mut census, ROOT, 14);
        executes(&mut census, 14);
        ends(&mut census, 14, 0);
        census.is_named(14);
        // A start that failed, as its name was taken back.
        census.is_named(ROOT);
        census.is_not_named(ROOT);
        assert_eq!(census.unseen, []);
        executes(&mut census, ROOT);
        ends(&mut census, ROOT, 0);
        assert_eq!(census.unseen, [UnseenProgram { pid: ROOT, parent: 0, root: ROOT }]);
        // A shell whose number its parent did not know.
        forks(&mut census, ROOT, 15);
        executes(&mut census, 15);
        ends(&mut census, 15, 0);
        census.announced.insert(ROOT, 1);
        assert_eq!(census.count(), [(ROOT, 1)]);
    }

    #[test]
    fn programs_that_may_not_have_run_are_not_counted() {
        let mut census = census();
        for (pid, status) in [(11, 127 << 8), (12, 9)] {
            forks(&mut census, ROOT, pid);
            executes(&mut census, pid);
            ends(&mut census, pid, status);
        }
        // A number that is given again, and a first thread that ends before the others.
        forks(&mut census, ROOT, 11);
        executes(&mut census, 11);
        attaches(&mut census, 11);
        ends(&mut census, 11, 0);
        census.prune(|pid| pid == 11);
        assert!(census.members.contains_key(&11) && !census.members.contains_key(&12), "{census:?}");
        assert_eq!(census.unseen, []);
        executes(&mut census, 11);
        assert_eq!(census.running().len(), 1);
        ends(&mut census, 11, 0);
        assert_eq!(census.count(), [(11, 1)]);
    }
}
