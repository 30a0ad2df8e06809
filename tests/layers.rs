//! The tables of ARCHITECTURE.md are true: each module uses only those of its own layer and below.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
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

/// Modules of the crate that code names: `crate::a`, `crate::{a, b::C}`.
fn used(code: &str) -> Vec<&str> {
    let word = |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.push(&rest[..word(rest)]);
            continue;
        };
        let (mut depth, mut is_start) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => is_start = true,
                _ if is_start && !c.is_whitespace() => {
                    found.push(&group[at..at + word(&group[at..])]);
                    is_start = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
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

#[test]
fn modules_use_only_their_own_layer_and_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder");
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut faults = Vec::new();
    for folder in ["preload/src", "recorder/src", "analyzer/src"] {
        let layers = table(&page, folder);
        assert!(layers.len() > 5, "ARCHITECTURE.md has no table of {folder}");
        let mut uses = 0;
        files(&root.join(folder), &mut |path| {
            let inner = path.strip_prefix(root.join(folder)).expect("a file of the crate");
            let module = inner.iter().next().map(|name| name.to_string_lossy().replace(".rs", "")).unwrap_or_default();
            if module == "lib" {
                return;
            }
            let Some(own) = layers.get(&module) else {
                faults.push(format!("{folder}: `{module}` is in no layer"));
                return;
            };
            for name in used(&code(path)) {
                uses += 1;
                if layers.get(name).is_some_and(|layer| layer < own) {
                    faults.push(format!("{}: `{module}` uses `{name}`, which is above it", path.display()));
                }
            }
        });
        assert!(uses > 100, "{folder}: only {uses} uses of modules were found");
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
