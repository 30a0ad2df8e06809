//! Makes the pictures of docs/gallery.md: records its program twice, exports the pages, and
//! photographs them. Names are as good as the `python3` that is found: one with symbols shows
//! functions, one without shows offsets.
#![forbid(unsafe_code)]

use heaptape_tests::browser::{Browser, Screen};
use heaptape_tests::test_env;
use std::path::Path;
use std::process::Command;

/// Maximum size of a picture in bytes.
const MAX_BYTES: usize = 150_000;

/// A picture: its name, the page (of one recording, or the comparison), what the address chooses,
/// what is done before, and which element is shown (none: the window).
struct Picture {
    name: &'static str,
    compared: bool,
    screen: Screen,
    choice: &'static str,
    first: &'static str,
    element: Option<&'static str>,
}

const DAY: Screen = Screen { width: 1400, height: 960, dark: false };
const NIGHT: Screen = Screen { dark: true, ..DAY };
/// Not higher than fits on a page.
const SHORT: &str = "document.querySelector('.flame-plot').style.maxHeight = '30rem'";

const PICTURES: &[Picture] = &[
    Picture { name: "overview", compared: false, screen: DAY, choice: "#program=true", first: "", element: None },
    Picture {
        name: "range",
        compared: false,
        screen: DAY,
        choice: "#show=growth&range=20-130&program=true",
        first: "scrollTo({ top: 250, behavior: 'instant' })",
        element: None,
    },
    Picture {
        name: "inverted",
        compared: false,
        screen: NIGHT,
        choice: "#show=bytes&inverted=true&program=true&search=dict",
        first: SHORT,
        element: Some("#flame"),
    },
    Picture {
        name: "sites",
        compared: false,
        screen: Screen { width: 1200, ..DAY },
        choice: "#show=left",
        first: "document.querySelector('#sites button.row').click(); document.querySelectorAll('#sites tbody tr').forEach((row, at) => { if (at > 12) row.remove(); }); document.querySelectorAll('.stack').forEach((stack, at) => { if (at > 1) stack.remove(); })",
        element: Some("#sites"),
    },
    Picture {
        name: "leaks",
        compared: false,
        screen: DAY,
        choice: "",
        first: "document.querySelectorAll('.leak').forEach((card, at) => { if (at > 5) card.remove(); })",
        element: Some("#leaks"),
    },
    Picture { name: "shapes", compared: false, screen: NIGHT, choice: "", first: "", element: Some("#shapes") },
    Picture {
        name: "compared",
        compared: true,
        screen: Screen { height: 1250, ..DAY },
        choice: "#show=left&program=true",
        first: SHORT,
        element: None,
    },
    Picture {
        name: "narrow",
        compared: false,
        screen: Screen { width: 360, height: 1100, dark: true },
        choice: "#program=true",
        first: SHORT,
        element: None,
    },
];

/// In the folder of the recordings, so that no picture shows where anybody keeps the project.
fn heaptape(arguments: &[&str], rounds: &str, folder: &Path) {
    let status = Command::new(test_env::command())
        .args(arguments)
        .current_dir(folder)
        .env("PYTHONMALLOC", "malloc")
        .env("ROUNDS", rounds)
        .status()
        .expect("heaptape can be started");
    assert!(status.success(), "heaptape {}: {status}", arguments.join(" "));
}

fn photograph(picture: &Picture, page: &Path, to: &Path) {
    let mut browser = Browser::open(page, picture.choice, picture.screen);
    browser.wait("document.documentElement !== null && 'ready' in document.documentElement.dataset");
    browser.drawn();
    if !picture.first.is_empty() {
        browser.value(&format!("(() => {{ {}; }})()", picture.first));
    }
    assert!(browser.complaints.is_empty(), "{}: {:?}", picture.name, browser.complaints);
    let best = [90, 80, 70, 55, 40].into_iter().map(|quality| browser.screenshot(picture.element, quality));
    let bytes = best.into_iter().find(|bytes| bytes.len() <= MAX_BYTES).expect("a picture that is small enough");
    let file = to.join(format!("{}.webp", picture.name));
    std::fs::write(&file, &bytes).expect("the picture is written");
    println!("{}: {} bytes", file.display(), bytes.len());
}

fn main() {
    assert!(Browser::is_there(), "no chromium: scripts/install-tools chromium");
    let directory = test_env::folder();
    let gallery = test_env::root().join("docs/gallery");
    std::fs::copy(gallery.join("index.py"), directory.path().join("index.py")).expect("the program");
    for (name, rounds) in [("before", "40"), ("after", "80")] {
        heaptape(&["record", "-q", "-o", name, "--", "python3", "index.py"], rounds, directory.path());
    }
    heaptape(&["export", "--to", "html", "-o", "page.html", "before"], "", directory.path());
    heaptape(&["export", "--to", "html", "-o", "compared.html", "before", "after"], "", directory.path());
    for picture in PICTURES {
        let page = directory.path().join(if picture.compared { "compared.html" } else { "page.html" });
        photograph(picture, &page, &gallery);
    }
}
