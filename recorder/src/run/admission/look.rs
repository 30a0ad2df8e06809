//! A look at a process and its files, which are not ours: any of it may never return.

use super::Policy;
use crate::inject::patch::{Plan, Planner};
use crate::os::aside::{self, Owner};
use crate::session::listener::Client;
use crate::session::traced_process::Ids;
use crate::target::jit_names::PerfMap;
use crate::target::maps;
use crate::target::module_files::ModuleFiles;
use crate::target::name_saver::Saver;
use crate::target::proc::{self, Process};
use crate::target::untraced;
use std::sync::Arc;
use std::time::Duration;
use wire::hello::ORIGIN_FORK;

#[derive(Clone, Debug)]
pub struct Question {
    pub ids: Ids,
    /// When the process asked.
    pub start_tick: u64,
    variables: &'static [&'static str],
    /// Plans the hooks in this time; `None` if they are known.
    planner: Option<(Planner, Duration)>,
    saver: Option<Arc<Saver>>,
    max_map_bytes: u64,
}

/// What a process is, for the decision.
#[derive(Clone, Debug, Default)]
pub struct Who {
    pub process: Process,
    /// The program that it executes: device and inode.
    pub program: Option<(u64, u64)>,
    /// The variables that the policy asks for, in its order.
    pub variables: Vec<Option<String>>,
}

/// What was found in the files of a process.
#[derive(Debug)]
pub struct Files {
    pub code: PerfMap,
    pub files: ModuleFiles,
    /// The hooks; `None` for a forked child, which has those of its parent.
    pub plan: Option<Plan>,
}

/// The answer.
#[derive(Debug)]
pub struct Known {
    pub who: Who,
    pub files: Files,
    pub question: Question,
}

impl Question {
    /// Asks about a process whose hooks are known.
    pub(crate) fn without_hooks<P: Policy>(policy: &mut P, client: &Client) -> Question {
        Question::of_another(policy, Ids { pid: client.pid, hello_pid: client.hello.pid, uid: client.uid })
    }

    /// Asks about a program that waits.
    pub fn of<P: Policy>(policy: &mut P, client: &Client) -> Question {
        let budget = policy.search_budget();
        let is_forked = client.hello.origin == ORIGIN_FORK;
        let planner = (!is_forked).then(|| (policy.admissions().planner.clone(), budget));
        Question { planner, ..Question::without_hooks(policy, client) }
    }

    /// Asks about a process that another recorder had.
    pub(crate) fn of_another<P: Policy>(policy: &mut P, ids: Ids) -> Question {
        let admissions = policy.admissions();
        let (start_tick, saver) = (admissions.clock.now(), admissions.saver.clone());
        let (variables, max_map_bytes) = (P::VARIABLES, P::MAX_MAP_BYTES);
        Question { ids, start_tick, variables, planner: None, saver, max_map_bytes }
    }

    pub fn owner(&self) -> Owner {
        Owner { pid: self.ids.pid, uid: self.ids.uid }
    }

    /// Looks at the process.
    pub fn who(&self) -> Who {
        let pid = self.ids.pid;
        let variables = if self.variables.is_empty() { Vec::new() } else { proc::variable(pid, self.variables) };
        Who { process: Process::read(pid), program: untraced::program(pid), variables }
    }

    /// Looks at the files. The process waits for its reply, so it has not ended.
    pub fn files(&self) -> Files {
        let Ids { pid, hello_pid, uid } = self.ids;
        let maps = maps::read(pid);
        let plan = self.planner.as_ref().map(|(planner, budget)| planner.plan(pid, &maps, *budget));
        let start_ticks = proc::start_ticks(pid).unwrap_or(0);
        let code = PerfMap::of(pid, hello_pid, uid, start_ticks, self.max_map_bytes);
        Files { code, files: ModuleFiles::of(self.owner(), self.saver.clone(), &maps), plan }
    }

    pub fn answer(self) -> Known {
        Known { who: self.who(), files: self.files(), question: self }
    }

    /// Looks at all of it in a short time. Otherwise what needs no file is known.
    pub(crate) fn answer_in_time(self) -> Known {
        let question = self.clone();
        aside::call(self.owner(), move || question.answer()).unwrap_or_else(|_| {
            let Ids { pid, hello_pid, .. } = self.ids;
            let process = Process { comm: proc::name(pid), ..Process::default() };
            let code = PerfMap::none(hello_pid);
            let files = ModuleFiles::none(self.owner(), self.saver.clone());
            Known { who: Who { process, ..Who::default() }, files: Files { code, files, plan: None }, question: self }
        })
    }
}
