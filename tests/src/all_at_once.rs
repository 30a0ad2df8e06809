//! Many programs that start at the same moment, each with children, on a machine that is busy.

use crate::{Program, target};
use std::process::{Child, Command, Stdio};

const CHILDREN: usize = 3;

/// A process that takes all the CPU time that it gets.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let yes = Command::new("yes").stdout(Stdio::null()).spawn();
        Busy(yes.unwrap_or_else(|error| panic!("yes: {error}")))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Records so many programs that start at once beside busy processes: each of them, and each of
/// their children, is recorded. The recorder's queue is no reason to go on without it.
pub fn all_are_recorded(programs: usize, busy: usize) {
    let busy: Vec<Busy> = (0..busy).map(|_| Busy::start()).collect();
    let program = Program::new(target::c("all_at_once")).args([programs.to_string(), CHILDREN.to_string()]);
    let recording = program.recorded().success();
    drop(busy);
    let about = recording.about();
    assert_eq!(about.not_traced.len(), 0, "{:#?}", about.not_traced);
    assert_eq!(about.processes.len(), 1 + programs * (1 + CHILDREN));
    recording.complete();
}
