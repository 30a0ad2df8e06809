//! Callgrind profiles: sums by function and line, and by call, for `callgrind_annotate` and
//! KCachegrind.
//!
//! An amount counts once for each function on its stack. Calls are counted from the outermost frame
//! of a function on the stack, so that recursion does not multiply them.

use super::collapsed::tree;
use super::tree::{Identity, Tree};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::text::clean;
use crate::unpack;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The exporter of Callgrind profiles.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "callgrind"
    }

    fn extension(&self) -> &'static str {
        "callgrind.out"
    }

    fn summary(&self) -> &'static str {
        "Callgrind's profile, for callgrind_annotate and KCachegrind"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let measures = measure::all(source, out);
        let tree = tree(source, &measures, Identity::Line);
        let functions = Functions::of(&tree);
        let totals: Vec<u64> = (0..measures.len()).map(|column| tree.inclusive(column)[0]).collect();
        let mut file = out.stream()?;
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(text, "# callgrind format\nversion: 1\ncreator: heaptape");
        let pid = source.processes.first().map_or(0, |process| process.about.pid);
        let _ = writeln!(text, "pid: {pid}\ncmd: {}\npart: 1\n\npositions: line", measure::title(source));
        let names: Vec<String> = measures.iter().map(|what| event(*what)).collect();
        for (what, name) in measures.iter().zip(&names) {
            let _ = writeln!(text, "event: {name} : {}", what.help());
        }
        let _ = writeln!(text, "events: {}\nsummary: {}\n", names.join(" "), joined(&totals));
        functions.write(&mut text, &mut |part| file.put(part.as_bytes()))?;
        let _ = writeln!(text, "totals: {}", joined(&totals));
        file.put(text.as_bytes())?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let measures = measure::known(source, Measure::ALL);
        measure::totals(source, &measures)
    }

    fn held(&self, source: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        let measures: Vec<Measure> = Measure::ALL.to_vec();
        let _ = source;
        for path in files {
            let opened = unpack::open(path)?;
            let text = String::from_utf8_lossy(&opened.bytes);
            let mut names: Vec<&str> = Vec::new();
            let mut is_call = false;
            for line in text.lines() {
                if let Some(events) = line.strip_prefix("events: ") {
                    names = events.split(' ').collect();
                }
                // The costs of the line itself; those after a call are costs of the callee.
                if line.starts_with(|c: char| c.is_ascii_digit()) && !std::mem::take(&mut is_call) {
                    for (name, value) in names.iter().zip(line.split(' ').skip(1)) {
                        if let Some(what) = measures.iter().find(|what| event(**what) == *name) {
                            totals.add(what.name(), value.parse().unwrap_or(0));
                        }
                    }
                }
                is_call |= line.starts_with("calls=");
            }
        }
        Ok(totals)
    }
}

/// Returns the event name of a measure: `AllocBytes`.
fn event(what: Measure) -> String {
    let capitalized = what.name().split('-').map(|word| {
        let mut chars = word.chars();
        chars.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(chars).collect::<String>()
    });
    capitalized.collect()
}

fn joined(sums: &[u64]) -> String {
    sums.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

fn add(sums: &mut Vec<u64>, more: impl Iterator<Item = u64>) {
    for (at, amount) in more.enumerate() {
        match sums.get_mut(at) {
            Some(sum) => *sum = sum.saturating_add(amount),
            None => sums.push(amount),
        }
    }
}

/// Sums of a function itself, and of its callees.
#[derive(Default)]
struct Function {
    /// Sums of the function itself, by line.
    own: BTreeMap<u32, Vec<u64>>,
    /// Sums of callees, by line and called function.
    calls: BTreeMap<(u32, u32), Vec<u64>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FunctionName<'a> {
    module: &'a str,
    file: &'a str,
    title: &'a str,
}

struct Functions<'a> {
    tree: &'a Tree,
    names: Vec<FunctionName<'a>>,
    list: Vec<Function>,
}

impl<'a> Functions<'a> {
    fn of(tree: &'a Tree) -> Functions<'a> {
        let mut names = Vec::new();
        let mut known: FxHashMap<FunctionName, u32> = FxHashMap::default();
        let of_frame: Vec<u32> = tree
            .frames
            .iter()
            .map(|frame| {
                let file = frame.file.as_deref().unwrap_or_default();
                let title = frame.function.as_deref().unwrap_or_default();
                let key = FunctionName { module: &frame.module, file, title };
                *known.entry(key).or_insert_with(|| {
                    names.push(key);
                    names.len() as u32 - 1
                })
            })
            .collect();
        let mut list: Vec<Function> = names.iter().map(|_| Function::default()).collect();
        let columns = tree.columns.len();
        let inclusive: Vec<Vec<u64>> = (0..columns).map(|column| tree.inclusive(column)).collect();
        // How often each function is on the path.
        let on_path = RefCell::new(vec![0u32; names.len()]);
        let function = |node: u32| of_frame[tree.nodes[node as usize].frame as usize];
        let line = |node: u32| tree.frames[tree.nodes[node as usize].frame as usize].line.unwrap_or(0);
        tree.walk(
            |node| {
                let mut on_path = on_path.borrow_mut();
                let (own, parent) = (function(node), tree.nodes[node as usize].parent);
                if tree.columns.iter().any(|column| column[node as usize] > 0) {
                    let sums = list[own as usize].own.entry(line(node)).or_default();
                    add(sums, tree.columns.iter().map(|column| column[node as usize]));
                }
                if parent != 0 && function(parent) != own && on_path[function(parent) as usize] == 1 {
                    let sums = list[function(parent) as usize].calls.entry((line(parent), own)).or_default();
                    add(sums, inclusive.iter().map(|sums| sums[node as usize]));
                }
                on_path[own as usize] += 1;
                true
            },
            |node| on_path.borrow_mut()[function(node) as usize] -= 1,
        );
        Functions { tree, names, list }
    }

    fn write(&self, text: &mut String, put: &mut dyn FnMut(&str) -> Result<(), Error>) -> Result<(), Error> {
        const GATHERED: usize = 1 << 20;
        // Each name is written once; later, its number replaces it.
        let mut known: [FxHashMap<&str, usize>; 3] = Default::default();
        let mut name = |kind: usize, name: &'a str| {
            let next = known[kind].len() + 1;
            match known[kind].get(name) {
                Some(number) => format!("({number})"),
                None => {
                    known[kind].insert(name, next);
                    format!("({next}) {}", if name.is_empty() { "???".into() } else { clean(name) })
                }
            }
        };
        let _ = self.tree;
        for (function, &FunctionName { module, file, title }) in self.list.iter().zip(&self.names) {
            if function.own.is_empty() && function.calls.is_empty() {
                continue;
            }
            let _ = writeln!(text, "ob={}\nfl={}\nfn={}", name(0, module), name(1, file), name(2, title));
            for (line, sums) in &function.own {
                let _ = writeln!(text, "{line} {}", joined(sums));
            }
            for (&(line, called), sums) in &function.calls {
                let FunctionName { module, file, title } = self.names[called as usize];
                let _ = writeln!(text, "cob={}\ncfi={}\ncfn={}", name(0, module), name(1, file), name(2, title));
                // The number of calls is unknown. One call is written, because memory was allocated
                // there.
                let _ = writeln!(text, "calls=1 0\n{line} {}", joined(sums));
            }
            text.push('\n');
            if text.len() >= GATHERED {
                put(text)?;
                text.clear();
            }
        }
        put(text)?;
        text.clear();
        Ok(())
    }
}
