//! Processes that run unrecorded because the daemon answered too late: a program waits 50 ms, or
//! for `HEAPTAPE_ATTACH_MS`, and then starts without us. They are counted, and the last ones are
//! kept by name as long as they run, since such a service stays unrecorded for its whole life. So do
//! processes that were recorded by a daemon that left nothing to this one.

use super::protocol::Late;
use heaptape_recorder::os::clock;
use heaptape_recorder::target::proc;
use std::collections::VecDeque;

/// Maximum number of processes that are kept by name.
const MAX_KEPT: usize = 64;
/// Maximum number of them of one user.
const MAX_OF_USER: usize = 16;

/// A process with its start, by which another one of the same number is distinguished.
#[derive(Clone, Debug)]
struct Start {
    late: Late,
    ticks: u64,
}

impl Start {
    fn runs(&self) -> bool {
        proc::start_ticks(self.late.pid) == Some(self.ticks)
    }
}

/// The last late starts, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LateStarts(VecDeque<Start>);

impl LateStarts {
    /// Adds a process with the reason. Returns its name, which is empty if it has ended.
    pub(crate) fn add(&mut self, pid: u32, uid: u32, reason: &str) -> String {
        let name = String::from_utf8_lossy(&proc::name(pid)).into_owned();
        let Some(ticks) = proc::start_ticks(pid) else { return name };
        self.0.retain(|start| start.late.pid != pid);
        let of_user = self.0.iter().filter(|start| start.late.uid == uid).count();
        if of_user >= MAX_OF_USER || self.0.len() >= MAX_KEPT {
            // What has ended makes room first, then the oldest of the same user.
            self.0.retain(Start::runs);
            let is_full = self.0.iter().filter(|start| start.late.uid == uid).count() >= MAX_OF_USER;
            let oldest = self.0.iter().position(|start| start.late.uid == uid || !is_full);
            if is_full || self.0.len() >= MAX_KEPT {
                oldest.map(|oldest| self.0.remove(oldest));
            }
        }
        let late = Late { pid, uid, name: name.clone(), unix_ns: clock::unix_ns(), reason: reason.to_owned() };
        self.0.push_back(Start { late, ticks });
        name
    }

    /// Forgets a process that is recorded now: it executed another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.retain(|start| start.late.pid != pid);
    }

    /// Returns those that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Late> {
        self.0.iter().filter(|start| start.runs()).map(|start| &start.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_starts_are_kept_while_they_run_with_a_share_for_each_user() {
        let mut late = LateStarts::default();
        let mut children: Vec<_> = (0..MAX_OF_USER as u32 + 2)
            .map(|_| std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts"))
            .collect();
        late.add(children[0].id(), 8, "late");
        for child in &children[1..] {
            assert!(!late.add(child.id(), 7, "late").is_empty());
        }
        let uids = |late: &LateStarts| late.running().map(|one| one.uid).collect::<Vec<_>>();
        assert_eq!(uids(&late).len(), MAX_OF_USER + 1, "the oldest of the user made room");
        assert_eq!(uids(&late)[0], 8, "and not that of another one");
        late.forget(children[0].id());
        assert!(!uids(&late).contains(&8));
        for child in &mut children {
            child.kill().expect("it sleeps");
            child.wait().expect("its end");
        }
        assert_eq!(late.running().count(), 0);
    }
}
