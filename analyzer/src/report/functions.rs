//! The functions that call stacks pass through: what each allocates with its callees, which
//! functions call it, and on which lines. `sites --inclusive`, `callers`, `callees` and `source`
//! are made from these.

use super::Scope;
use crate::load::Process;
use crate::pattern::FunctionPattern;
use crate::program_frames::{Role, blamed};
use crate::sums::Sums;
use crate::symbols::{Frame, Symbolizer};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::rc::Rc;

/// Maximum number of frames of a stack that are read.
const MAX_FRAMES: usize = 512;

/// What a number of stacks allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of allocations and reallocations.
    pub allocs: u64,
    pub live_bytes: u64,
    pub live_blocks: u64,
}

impl Amounts {
    pub fn add(&mut self, other: Amounts) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.allocs = self.allocs.saturating_add(other.allocs);
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.live_blocks = self.live_blocks.saturating_add(other.live_blocks);
    }
}

/// A function as reports name it.
#[derive(Clone, Debug)]
pub struct Function {
    /// The name, or `module+0xoffset`.
    pub title: String,
    /// A frame in it: the first one that was met.
    pub frame: Frame,
}

impl Function {
    /// Returns the name with the source file or the module.
    pub fn label(&self) -> String {
        let Frame { file, function, module, .. } = &self.frame;
        match file {
            Some(file) => format!("{} {}", self.title, file.rsplit('/').next().unwrap_or(file)),
            None if function.is_some() && !module.is_empty() => {
                format!("{} ({})", self.title, self.frame.shown_module())
            }
            None => self.title.clone(),
        }
    }
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub function: usize,
    /// Line in the source file of the function; 0 if it is unknown.
    pub line: u32,
    pub role: Role,
}

pub struct Stack {
    /// The frames, innermost first.
    pub steps: Vec<Step>,
    /// Index of the blamed frame in `steps`; `None` for an empty stack.
    pub blamed: Option<usize>,
    /// What was allocated with this stack.
    pub amounts: Amounts,
}

#[derive(Default)]
pub struct Functions {
    /// The functions, in order of appearance.
    pub all: Vec<Function>,
    by_title: FxHashMap<String, usize>,
}

impl Functions {
    fn index(&mut self, frame: &Frame) -> usize {
        let title = frame.title();
        if let Some(&index) = self.by_title.get(&title) {
            return index;
        }
        self.all.push(Function { title: title.clone(), frame: frame.clone() });
        self.by_title.insert(title, self.all.len() - 1);
        self.all.len() - 1
    }

    /// Returns the functions that a name means: the one that has exactly this name, else all that
    /// match it as a pattern.
    pub fn matching(&self, name: &str) -> Vec<usize> {
        if let Some(&index) = self.by_title.get(name) {
            return vec![index];
        }
        let pattern = FunctionPattern::new(name);
        (0..self.all.len()).filter(|&index| pattern.matches(&self.all[index].title)).collect()
    }
}

/// Calls `visit` with each stack that allocated. Returns the functions of all stacks.
pub fn for_each_stack(
    process: &Process,
    sums: &Sums,
    symbols: &mut Symbolizer,
    visit: &mut dyn FnMut(&Stack),
) -> Functions {
    let stacks = process.stacks();
    let mut functions = Functions::default();
    let mut known: FxHashMap<u32, Rc<[Step]>> = FxHashMap::default();
    for row in sums.sites.iter().filter(|row| row.allocs > 0) {
        let (mut steps, mut inner) = (Vec::new(), None);
        for (number, site) in stacks.stack(row.site).take(MAX_FRAMES) {
            for frame in symbols.tail_frames(stacks, &site, inner.as_ref()).iter() {
                steps.push(Step { function: functions.index(frame), line: 0, role: frame.role });
            }
            inner = Some(site);
            let found = known.entry(number).or_insert_with(|| {
                let frames = symbols.frames(stacks, &site);
                let step = |frame: &Frame| Step {
                    function: functions.index(frame),
                    line: frame.line.unwrap_or(0),
                    role: frame.role,
                };
                frames.iter().map(step).collect()
            });
            steps.extend_from_slice(found);
        }
        let blamed = blamed(steps.iter().map(|step| step.role), 1).first().copied();
        let amounts = Amounts {
            bytes: row.bytes,
            allocs: row.allocs,
            live_bytes: row.bytes.saturating_sub(row.freed_bytes),
            live_blocks: row.allocs.saturating_sub(row.frees),
        };
        visit(&Stack { steps, blamed, amounts });
    }
    functions
}

#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionSums {
    /// With what the functions that it calls allocate.
    pub total: Amounts,
    /// Where it is blamed.
    pub own: Amounts,
    /// Whether it belongs to the program or its interpreter, and is not an allocator wrapper.
    pub is_program: bool,
}

/// The functions of a process with their sums.
pub struct SummedFunctions {
    /// The functions, in order of appearance.
    pub functions: Functions,
    /// The sums of each function, by the same index.
    pub sums: Vec<FunctionSums>,
    /// The sum of all stacks.
    pub all: Amounts,
}

pub fn function_sums(process: &Process, sums: &Sums, symbols: &mut Symbolizer) -> SummedFunctions {
    let (mut rows, mut all): (Vec<FunctionSums>, Amounts) = Default::default();
    // For each function, the number of the last stack in which it was met: a recursion counts once.
    let (mut met, mut number): (Vec<u32>, u32) = (Vec::new(), 0);
    let functions = for_each_stack(process, sums, symbols, &mut |stack| {
        number += 1;
        all.add(stack.amounts);
        for (position, step) in stack.steps.iter().enumerate() {
            if step.function >= rows.len() {
                rows.resize(step.function + 1, FunctionSums::default());
                met.resize(step.function + 1, 0);
            }
            let row = &mut rows[step.function];
            row.is_program |= step.role.rank() < Role::Wrapper.rank();
            if std::mem::replace(&mut met[step.function], number) != number {
                row.total.add(stack.amounts);
            }
            if stack.blamed == Some(position) {
                row.own.add(stack.amounts);
            }
        }
    });
    SummedFunctions { functions, sums: rows, all }
}

/// Returns what the query's blocks allocated.
///
/// # Errors
/// Returns an error when a file counts no frees.
pub fn allocations(
    scope: &Scope,
    process: &Process,
    symbols: &mut Symbolizer,
    progress: &crate::progress::Progress,
) -> Result<Sums, super::Error> {
    if !scope.is_all() {
        return Ok(scope.sums(process, symbols, progress));
    }
    let sums = crate::sums::sums(process, progress);
    super::needs_frees(&sums, process)?;
    Ok(sums)
}
