//! What other people's code can name in `heaptape-formats` and `heaptape-api`, against the list of
//! each crate (`public-api.txt`). What is new is only printed; what is gone or has another type
//! breaks somebody's build, so it is either a mistake or is blessed: `BLESS=1`.
//!
//! rustdoc writes its JSON with unstable options only, so we let the pinned stable rustdoc (and
//! nothing else, or every dependency would be built again) believe that it is a nightly one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATES: [(&str, &str); 2] =
    [("heaptape-formats", "public-api.txt"), ("heaptape-api", "../preload/api/public-api.txt")];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs rustdoc for both crates, and returns the folder with their JSON.
fn documented() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["doc", "--quiet", "--no-deps", "--target-dir"]).arg(target).current_dir(folder());
    cargo.args(CRATES.iter().flat_map(|(name, _)| ["--package", name]));
    cargo.env("RUSTDOC", folder().join("tests/rustdoc-json"));
    cargo.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    let done = cargo.output().expect("cargo runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    target.join("doc")
}

#[test]
fn public_items_of_formats_and_api_stay() {
    let documents = documented();
    for (name, list) in CRATES {
        let file = documents.join(format!("{}.json", name.replace('-', "_")));
        let builder = public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true);
        let api = builder.omit_auto_trait_impls(true).omit_auto_derived_impls(true).build().expect("its JSON is known");
        let prefix = format!("{}::", name.replace('-', "_"));
        let items: Vec<String> = api.items().map(|item| item.to_string().replace(&prefix, "")).collect();
        let list = folder().join(list);
        if std::env::var_os("BLESS").is_some() {
            fs::write(&list, items.join("\n") + "\n").expect("the list can be written");
        }
        let known = fs::read_to_string(&list).expect("BLESS=1 makes it");
        let (items, known): (BTreeSet<&str>, BTreeSet<&str>) =
            (items.iter().map(|item| &**item).collect(), known.lines().collect());
        items.difference(&known).for_each(|item| println!("new in {name}: {item}"));
        let gone: Vec<&&str> = known.difference(&items).collect();
        assert!(gone.is_empty(), "no longer in {name}, or with another type (BLESS=1 accepts it): {gone:#?}");
    }
}
