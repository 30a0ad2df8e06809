//! Prints docs/torture.md from the notes of the tests that passed; with `forget`, drops the notes.
#![forbid(unsafe_code)]

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("forget") => heaptape_tests::torture::forget(),
        _ => print!("{}", heaptape_tests::torture::table()),
    }
}
