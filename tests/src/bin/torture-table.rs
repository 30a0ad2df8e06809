//! Prints docs/torture.md from the notes of the tests that passed; with `update`, what did not run
//! since the notes were dropped keeps the figures of docs/torture.md; with `forget`, drops the
//! notes.
#![forbid(unsafe_code)]

use heaptape_tests::{test_env, torture};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("forget") => torture::forget(),
        Some("update") => {
            let before = std::fs::read_to_string(test_env::root().join("docs/torture.md")).unwrap_or_default();
            print!("{}", torture::table(Some(&before)));
        }
        _ => print!("{}", torture::table(None)),
    }
}
