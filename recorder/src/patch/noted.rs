//! What one daemon notes of a process's hooks for the next one: the names of the functions, in the
//! order of the patches in the area. What the library has done with each is in the area.

use super::{Plan, PlannedPatch};
use formats::recording::Allocator;
use serde::{Deserialize, Serialize};

/// The hooks of a process, without their code.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    allocators: Vec<Allocator>,
    functions: Vec<Function>,
}

/// A function that is to be hooked.
#[derive(Debug, Serialize, Deserialize)]
struct Function {
    /// Index of its allocator.
    allocator: usize,
    name: String,
}

impl Plan {
    /// Returns a note of the plan for the next daemon; `None` if there is nothing to note.
    pub fn note(&self) -> Option<Vec<u8>> {
        let function = |patch: &PlannedPatch| Function { allocator: patch.allocator, name: patch.name.clone() };
        let functions = self.patches.iter().map(function).collect();
        let noted = Noted { allocators: self.allocators.clone(), functions };
        (!noted.allocators.is_empty()).then(|| serde_json::to_vec(&noted).ok()).flatten()
    }

    /// Returns the plan of such a note, for a process that has its patches already. Without a valid
    /// note nothing is known.
    pub fn of_note(note: &[u8]) -> Plan {
        let Ok(Noted { allocators, functions }) = serde_json::from_slice(note) else { return Plan::default() };
        let patch = |function: Function| PlannedPatch {
            allocator: function.allocator,
            name: function.name,
            address: 0,
            target: 0,
            expected: Vec::new(),
            moved: Vec::new(),
        };
        Plan { allocators, patches: functions.into_iter().map(patch).collect(), ..Plan::default() }
    }
}
