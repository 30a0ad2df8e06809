//! Cycles between modules. For each parent, the modules below it are compared as wholes: what a
//! module or anything inside it names by `crate::` or `super::` is an arrow to the sibling that
//! holds it. A child may use its parents.

use crate::Finding;
use crate::source::Source;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// Names of modules from the root of the crate.
type ModulePath = Vec<String>;
type Arrows = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// Checks all crates. A module in a cycle is one finding of the crate's folder.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(ModulePath, &Source)>> = BTreeMap::new();
    for source in sources {
        if let Some((folder, path)) = module_path(&source.file) {
            crates.entry(folder).or_default().push((path, source));
        }
    }
    let mut findings = Vec::new();
    for (folder, files) in crates {
        for knot in cycles(&arrows(&files)) {
            let names: Vec<String> = knot.iter().map(|path| path.join("::")).collect();
            for name in &names {
                let text = format!("{name} is in a cycle of {}: {}", names.len(), names.join(", "));
                findings.push(Finding { file: format!("{folder}/src"), lint: "module-cycle", line: 1, text });
            }
        }
    }
    findings
}

/// Returns the crate's folder and the module of a file below its `src`.
fn module_path(file: &str) -> Option<(&str, ModulePath)> {
    let (folder, inside) = file.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    let mut path: ModulePath = inside.split('/').map(str::to_string).collect();
    match path.last()?.as_str() {
        "mod" => drop(path.pop()),
        "lib" | "main" if path.len() == 1 => path.clear(),
        _ => {}
    }
    (path.first().is_none_or(|first| first != "bin") && path.last().is_none_or(|last| last != "tests"))
        .then_some((folder, path))
}

/// Arrows between modules with the same parent.
fn arrows(files: &[(ModulePath, &Source)]) -> Arrows {
    let known: BTreeSet<&ModulePath> = files.iter().map(|(path, _)| path).collect();
    let mut arrows = Arrows::new();
    for (from, source) in files {
        let mut targets = Vec::new();
        references(source, source.tokens.clone(), from, &mut targets);
        for target in targets {
            // The longest part of the path that is a module with a file.
            let Some(length) = (1..=target.len()).rev().find(|&length| known.contains(&target[..length].to_vec()))
            else {
                continue;
            };
            let to = &target[..length];
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if shared < from.len() && shared < to.len() {
                arrows.entry(from[..=shared].to_vec()).or_default().insert(to[..=shared].to_vec());
            }
        }
    }
    arrows
}

/// Collects the absolute paths that start with `crate` or `super`, also in groups of `use` and in
/// macros.
fn references(source: &Source, tokens: TokenStream, from: &ModulePath, targets: &mut Vec<ModulePath>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        match &trees[at] {
            TokenTree::Group(group) => references(source, group.stream(), from, targets),
            TokenTree::Ident(name) if !source.is_test(name.span().byte_range().start) => {
                let mut base = match name.to_string().as_str() {
                    "crate" => Some(Vec::new()),
                    "super" if !from.is_empty() => Some(from[..from.len() - 1].to_vec()),
                    _ => None,
                };
                if let Some(base) = base.take().filter(|_| is_separator(&trees, at + 1)) {
                    at = tree(&trees, at + 3, base, targets);
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_separator(trees: &[TokenTree], at: usize) -> bool {
    let is_colon = |at: usize| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    is_colon(at) && is_colon(at + 1)
}

/// Follows a path from the token after its `::`, and returns the token after it.
fn tree(trees: &[TokenTree], mut at: usize, mut path: ModulePath, targets: &mut Vec<ModulePath>) -> usize {
    loop {
        match trees.get(at) {
            Some(TokenTree::Ident(name)) => {
                match name.to_string().as_str() {
                    "super" => drop(path.pop()),
                    "self" => {}
                    name => path.push(name.to_string()),
                }
                at += 1;
            }
            Some(TokenTree::Group(group)) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut next = 0;
                while next < inside.len() {
                    next = tree(&inside, next, path.clone(), targets).max(next + 1);
                }
                return at + 1;
            }
            _ => {
                targets.push(path);
                return at + 1;
            }
        }
        if !is_separator(trees, at) {
            targets.push(path);
            return at;
        }
        at += 2;
    }
}

/// Returns the sets of modules that reach one another, sorted.
fn cycles(arrows: &Arrows) -> Vec<Vec<ModulePath>> {
    let reach = |from: &ModulePath| {
        let (mut seen, mut queue) = (BTreeSet::new(), vec![from]);
        while let Some(next) = queue.pop() {
            for to in arrows.get(next).into_iter().flatten() {
                if seen.insert(to) {
                    queue.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = arrows.keys().map(|from| (from, reach(from))).collect();
    let mut knots: BTreeSet<Vec<ModulePath>> = BTreeSet::new();
    for (from, to) in &reached {
        let knot: Vec<ModulePath> = to
            .iter()
            .filter(|to| reached.get(**to).is_some_and(|back| back.contains(from)))
            .map(|&to| to.clone())
            .collect();
        if knot.len() > 1 {
            knots.insert(knot);
        }
    }
    knots.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(file, text)| Source::parse(file, text.to_string()).unwrap()).collect();
        check(&sources).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn cycles_between_siblings_are_found() {
        let found = of(&[
            ("x/src/lib.rs", "mod a; mod b; mod c;"),
            ("x/src/a.rs", "use crate::{b::B, c};"),
            ("x/src/b/inner.rs", "fn f() { crate::a::g() }"),
            ("x/src/b.rs", "mod inner;"),
            ("x/src/c.rs", "struct C;"),
        ]);
        assert_eq!(found, ["a is in a cycle of 2: a, b", "b is in a cycle of 2: a, b"]);
    }

    #[test]
    fn children_may_use_their_parents_and_tests_anything() {
        let found = of(&[
            ("x/src/a.rs", "mod inner; use inner::f;"),
            ("x/src/a/inner.rs", "use super::A; use crate::b::B;"),
            ("x/src/b.rs", "#[cfg(test)] mod tests { use crate::a::A; }"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
