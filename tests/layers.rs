//! The tables of ARCHITECTURE.md are true: each module uses only those of its own layer and below.
//! And no two modules of a folder use each other, directly or around a corner.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Layers of a crate from the top, with the modules in each: the first column of the table below
/// the line **`FOLDER`**.
fn table(page: &str, folder: &str) -> BTreeMap<String, usize> {
    let head = format!("**`{folder}`**");
    let rows = page.lines().skip_while(|line| *line != head).skip(1).skip_while(|line| !line.starts_with("|---"));
    let cells = rows.skip(1).map_while(|row| row.strip_prefix('|')?.split('|').next());
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    cells.enumerate().flat_map(|(layer, cell)| names(cell).into_iter().map(move |name| (name, layer))).collect()
}

/// The code of a file: no comments, no unit tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Adds the paths of a use tree to `found`, below `head`: `a::{b, c::D}` is `a::b` and `a::c::D`.
/// Returns how much of the text the tree is.
fn expand(text: &str, head: &str, found: &mut Vec<String>) -> usize {
    let (mut at, mut path) = (0, head.to_owned());
    loop {
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += text[at..].find(|c: char| c != ',' && !c.is_whitespace()).unwrap_or(0);
                if text[at..].is_empty() || text[at..].starts_with('}') {
                    return (at + 1).min(text.len());
                }
                at += expand(&text[at..], &path, found);
                // `as name`, `*`
                at += text[at..].find([',', '}']).unwrap_or(text.len() - at);
            }
        }
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        path += if path.is_empty() { "" } else { "::" };
        path += &rest[..word];
        at += word;
        if word == 0 || !text[at..].starts_with("::") {
            found.push(path);
            return at;
        }
        at += 2;
    }
}

/// Paths in the crate that the code of a module names after `crate::`, `self::` and `super::`.
fn used(code: &str, module: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        expand(&code[at + "crate::".len()..], "", &mut found);
    }
    for (at, _) in code.match_indices("self::") {
        expand(&code[at + "self::".len()..], module, &mut found);
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("::")) {
        let (mut rest, mut parent) = (&code[at..], module);
        while let Some(above) = rest.strip_prefix("super::") {
            rest = above;
            parent = parent.rsplit_once("::").map_or("", |(parent, _)| parent);
        }
        expand(rest, parent, &mut found);
    }
    found
}

fn files(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        match path.extension() {
            None if path.is_dir() => files(&path, visit),
            Some(extension) if extension == "rs" && !path.ends_with("tests.rs") => visit(&path),
            _ => {}
        }
    }
}

/// Code of each module of a crate: of `a/b.rs` and `a/b/mod.rs` as `a::b`.
fn modules(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    files(folder, &mut |path| {
        let inner = path.strip_prefix(folder).expect("a file of the crate").with_extension("");
        let names = inner.iter().map(|name| name.to_string_lossy().into_owned());
        let names: Vec<String> = names.filter(|name| name != "mod").collect();
        if names != ["lib"] && names != ["main"] {
            found.insert(names.join("::"), code(path));
        }
    });
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder")
}

#[test]
fn modules_use_only_their_own_layer_and_those_below() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut faults = Vec::new();
    for folder in ["preload/src", "recorder/src", "analyzer/src"] {
        let layers = table(&page, folder);
        assert!(layers.len() > 5, "ARCHITECTURE.md has no table of {folder}");
        let top = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
        let mut uses = 0;
        for (module, code) in modules(&root().join(folder)) {
            let Some(own) = layers.get(&top(&module)) else {
                faults.push(format!("{folder}: `{module}` is in no layer"));
                continue;
            };
            for name in used(&code, &module).iter().map(|path| top(path)) {
                uses += 1;
                if layers.get(&name).is_some_and(|layer| layer < own) {
                    faults.push(format!("{folder}: `{module}` uses `{name}`, which is above it"));
                }
            }
        }
        assert!(uses > 100, "{folder}: only {uses} uses of modules were found");
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Which modules of one folder use which others of the same folder, at every depth of a crate.
fn uses_of_siblings(modules: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, code) in modules {
        for path in used(code, module) {
            let from = module.split("::").collect::<Vec<_>>();
            let to = path.split("::").collect::<Vec<_>>();
            let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            let name = |of: &[&str]| of.get(..=shared).map(|names| names.join("::"));
            if let (Some(from), Some(to)) = (name(&from), name(&to))
                && modules.contains_key(&to)
            {
                found.entry(from).or_default().insert(to);
            }
        }
    }
    found
}

/// The way from a module to itself, if there is one.
fn cycle(from: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let (mut ways, mut seen) = (vec![vec![from.to_owned()]], BTreeSet::new());
    while let Some(way) = ways.pop() {
        for next in way.last().and_then(|last| uses.get(last)).into_iter().flatten() {
            if next == from {
                return Some(format!("{} > {from}", way.join(" > ")));
            }
            if seen.insert(next.clone()) {
                ways.push(way.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

#[test]
fn no_module_uses_a_sibling_that_uses_it() {
    let mut faults = Vec::new();
    for folder in ["preload/src", "recorder/src", "recorder/daemon/src", "formats/src", "analyzer/src", "cli/src"] {
        let uses = uses_of_siblings(&modules(&root().join(folder)));
        assert!(uses.len() > 10, "{folder}: only {} modules use others", uses.len());
        faults.extend(uses.keys().filter_map(|module| cycle(module, &uses)).map(|way| format!("{folder}: {way}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
