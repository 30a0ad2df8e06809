//! What a recorder notes of a process's hooks for the next one: the names of the functions, in the
//! order of the patches in the area, and what is known of the calls that map memory. What the
//! library has done with each function is in the area.

use super::{Plan, PlannedPatch, reason};
use formats::recording::Allocator;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The hooks of a process, without their code.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Noted {
    allocators: Vec<Allocator>,
    functions: Vec<Function>,
    growth: Vec<Range<u64>>,
    unseen_mappings: String,
}

/// A function that is to be hooked.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Function {
    allocator: usize,
    name: String,
}

impl Plan {
    /// Returns a note of the plan for the next recorder.
    pub fn note(&self) -> Noted {
        let function = |patch: &PlannedPatch| Function { allocator: patch.allocator, name: patch.name.clone() };
        let functions = self.patches.iter().map(function).collect();
        let (mut allocators, growth) = (self.allocators.clone(), self.growth.clone());
        self.note_unhooked(&mut allocators);
        Noted { allocators, functions, growth, unseen_mappings: self.unseen_mappings.to_owned() }
    }

    /// Returns the plan of such a note, for a process that has its patches already.
    pub(crate) fn of_note(noted: Noted) -> Plan {
        let Noted { allocators, functions, growth, unseen_mappings } = noted;
        let patch = |function: Function| PlannedPatch {
            allocator: function.allocator,
            name: function.name,
            address: 0,
            target: 0,
            expected: Vec::new(),
            moved: Vec::new(),
        };
        let (patches, unseen_mappings) = (functions.into_iter().map(patch).collect(), reason(&unseen_mappings));
        Plan { allocators, patches, growth, unseen_mappings, ..Plan::default() }
    }
}
