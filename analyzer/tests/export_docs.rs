//! The table of exports in the documents is the list of exporters. `BLESS=1` writes it anew.

use heaptape_analyzer::export::{EXPORTERS, Shape};
use std::path::Path;

const BEGIN: &str = "<!-- exporters: made from the list in analyzer/src/export.rs by BLESS=1 cargo test -p heaptape-analyzer export_docs -->\n";
const END: &str = "<!-- end of exporters -->";

#[test]
fn the_table_is_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/exports.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut table = "| `--format` | | makes |\n|---|---|---|\n".to_string();
    for exporter in EXPORTERS {
        let makes = match exporter.needs().shape {
            Shape::One => format!("one file, `.{}`", exporter.extension()),
            Shape::OnePerProcess => format!("a file a process, `.{}`", exporter.extension()),
            Shape::Folder => "a folder".to_string(),
        };
        let events = if exporter.needs().events { "; needs events" } else { "" };
        table += &format!("| `{}` | {} | {makes}{events} |\n", exporter.name(), exporter.summary());
    }
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the table");
    let (found, after) = rest.split_once(END).expect("the mark after it");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(found == table, "docs/exports.md is not of this list; BLESS=1 writes\n{table}");
    }
    for exporter in EXPORTERS {
        assert!(after.contains(&format!("`{}`", exporter.name())), "{}: what can it not represent?", exporter.name());
    }
}

/// The list of commands names them all.
#[test]
fn the_commands_name_the_list() {
    const MARK: &str = "`heaptape export --format FORMAT -o OUT DIR`, FORMAT: ";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let names: Vec<&str> = EXPORTERS.iter().map(|exporter| exporter.name()).collect();
    let (before, rest) = text.split_once(MARK).expect("the row of the table");
    let (found, after) = rest.split_once(';').expect("what follows the names");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{MARK}{};{after}", names.join(" "))).unwrap();
    } else {
        assert_eq!(found, names.join(" "), "docs/commands.md is not of this list");
    }
}
