//! The page of `export --to html` in a real browser: it opens from a file without a complaint,
//! draws, searches, zooms, and a range drawn on its timeline changes what is below; names of the
//! recording stay text. Where no Chromium is installed nothing is tested, unless
//! `HEAPTAPE_BROWSER=1` demands it (`scripts/dev browser`).

use heaptape_tests::browser::{Browser, Screen};
use heaptape_tests::{Program, Recording, target, test_env};
use std::path::{Path, PathBuf};
use std::process::Command;

const DESK: Screen = Screen { width: 1400, height: 1000, dark: false };

fn exported(recording: &Recording) -> PathBuf {
    let file = recording.directory.path().join("page.html");
    let outcome = recording.heaptape(&["export", "--to", "html", "-o", file.to_str().expect("a path")]);
    assert_eq!(outcome.code(), 0, "{outcome}");
    file
}

fn opened(file: &Path, rest: &str, screen: Screen) -> Browser {
    let mut browser = Browser::open(file, rest, screen);
    browser.wait("document.documentElement !== null && 'ready' in document.documentElement.dataset");
    browser.drawn();
    browser
}

/// Returns the functions of the table, in order.
fn functions(browser: &mut Browser) -> Vec<String> {
    let names = browser.value("[...document.querySelectorAll('#sites .first')].map((name) => name.textContent)");
    serde_json::from_value(names).expect("names")
}

/// Expression for a checksum of the picture of the flame graph.
const DRAWN: &str = "(() => { const drawn = document.querySelector('#flame canvas').toDataURL(); let sum = 0; for (let at = 0; at < drawn.length; at++) sum = (sum * 31 + drawn.charCodeAt(at)) | 0; return `${drawn.length} ${sum}`; })()";

#[test]
fn range_on_the_timeline_filters_the_page() {
    if !Browser::is_there() {
        return;
    }
    let recording = Program::new(target::c("phases")).recorded().complete();
    let file = exported(&recording);
    let report = recording.report();
    let process = report.only("phases");
    let mut browser = opened(&file, "#show=bytes", DESK);
    let complete = browser.text(DRAWN);
    let names = functions(&mut browser);
    assert!(["early", "late", "keeps"].iter().all(|name| names.iter().any(|own| own == name)), "{names:?}");
    let accounting = browser.text("document.getElementById('ledger').textContent").replace(',', "");
    assert!(accounting.contains(&format!("{} events emitted", process.emitted_events)), "{accounting}");
    assert!(accounting.contains("0 lost") && accounting.contains("Nothing is missing"), "{accounting}");

    browser.drag("#timeline canvas", (0.06, 0.3), (0.35, 0.3));
    let names = functions(&mut browser);
    assert!(names.iter().any(|name| name == "early") && !names.iter().any(|name| name == "late"), "{names:?}");
    let early = browser.text(DRAWN);
    assert_ne!(early, complete, "the flame graph is of the range");
    let range = browser.text("document.getElementById('range').textContent");
    assert!(range.contains('–') && browser.value("document.getElementById('range').hidden") == false, "{range}");
    assert!(browser.text("location.hash").contains("range="), "the address holds the choice");

    browser.press("#range", (0.5, 0.5));
    assert_eq!(browser.text(DRAWN), complete, "the whole run again");
    browser.drag("#timeline canvas", (0.6, 0.3), (0.97, 0.3));
    let names = functions(&mut browser);
    assert!(names.iter().any(|name| name == "late") && !names.iter().any(|name| name == "early"), "{names:?}");
    browser.value("document.querySelector('#timeline canvas').focus()");
    browser.key("Escape");
    assert_eq!(browser.text(DRAWN), complete, "Escape shows the whole run");

    // Every measure and both directions draw something, or state that there is nothing.
    browser.value("document.activeElement.blur()");
    for key in ["1", "2", "3", "4", "5", "6", "7", "i", "p", "i", "0"] {
        browser.key(key);
        let says =
            "!document.querySelector('#flame .none').hidden || document.querySelector('#flame canvas').height > 40";
        assert_eq!(browser.value(says), true, "{key}");
    }
    // Zoom by mouse and by keys.
    browser.key("3");
    let all = browser.text(DRAWN);
    browser.press("#flame canvas", (0.02, 0.9));
    assert_ne!(browser.text(DRAWN), all, "zoomed");
    assert!(browser.text("document.querySelector('.crumbs').textContent").contains("zoom out"));
    browser.value("document.querySelector('#flame canvas').focus()");
    browser.key("Escape");
    for key in ["ArrowDown", "ArrowDown", "Enter"] {
        browser.key(key);
    }
    assert!(browser.text("document.querySelector('.crumbs').textContent").contains("zoom out"));
    assert!(browser.value("document.getElementById('tip').textContent.length") != 0);

    browser.value("document.activeElement.blur()");
    browser.key("/");
    for key in ["l", "a", "t", "e"] {
        browser.key(key);
    }
    assert_eq!(functions(&mut browser), ["late"]);
    assert!(browser.text("document.querySelector('.matched').textContent").contains("late"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn pages_are_drawn_on_every_screen() {
    if !Browser::is_there() {
        return;
    }
    let before = Program::new(target::c("phases")).recorded().complete();
    let after = Program::new(target::c("phases")).arg("more").recorded().complete();
    let file = exported(&before);
    for screen in [Screen { width: 360, height: 740, dark: false }, Screen { width: 2560, height: 1440, dark: true }] {
        let mut browser = opened(&file, "", screen);
        let wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
        assert_eq!(browser.value(wider), false, "nothing is wider than {screen:?}");
        let page = browser.text("getComputedStyle(document.documentElement).backgroundColor");
        browser.press("#theme", (0.5, 0.5));
        browser.press("#theme", (0.5, 0.5));
        let other = browser.text("getComputedStyle(document.documentElement).backgroundColor");
        assert_eq!(page == other, screen.dark, "light, then dark, independent of the system: {page} {other}");
        assert_eq!(browser.complaints, [""; 0]);
    }
    let outcome = after.heaptape(&["leaks", "--json"]);
    let leaks: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    let page = after.directory.path().join("diff.html");
    let arguments =
        ["export", "--to", "html", "-o", page.to_str().expect("a path"), before.folder.to_str().expect("a path")];
    assert_eq!(after.heaptape(&arguments).code(), 0);
    let mut browser = opened(&page, "#show=bytes", DESK);
    let rows = "[...document.querySelectorAll('#sites tbody tr')].map((row) => row.textContent)";
    let rows: Vec<String> = serde_json::from_value(browser.value(rows)).expect("rows");
    let late = rows.iter().find(|row| row.contains("late")).expect("what changed");
    assert!(late.contains('▲') && late.contains("100 %"), "{rows:?}");
    assert!(rows.iter().any(|row| row.contains("keeps") && !row.contains('▲')), "{rows:?}");
    let cards = browser.value("document.querySelectorAll('.leak').length").as_u64().unwrap_or(0);
    assert!(cards as usize >= leaks["leaks"].as_array().map_or(0, Vec::len).min(12), "{cards} {leaks}");
    assert_eq!(browser.complaints, [""; 0]);
}

/// Names of functions, threads and programs that are markup, scripts and commands to terminals.
#[test]
fn hostile_names_stay_text() {
    if !Browser::is_there() {
        return;
    }
    let folder = test_env::folder();
    let hostile = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>";
    let program = folder.path().join("<img src=x onerror=window.hit=3>");
    let renamed = Command::new("objcopy")
        .arg(format!("--redefine-sym=late={hostile}"))
        .arg("--redefine-sym=keeps=${window.hit=4}\u{202e}\u{1b}[31m")
        .args(["--strip-debug"])
        .arg(target::c("phases"))
        .arg(&program)
        .status()
        .expect("objcopy runs");
    assert!(renamed.success());
    let recording = Program::new(&program).arg("</script><svg onload=window.hit=5>").recorded().complete();
    let file = exported(&recording);
    let mut browser = opened(&file, "#show=bytes", DESK);
    let names = functions(&mut browser);
    assert!(names.iter().any(|name| name == hostile), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("${window.hit=4}\u{fffd}")), "{names:?}");
    // Everything that shows names: rows, cards, tips, the dialog.
    browser.value("document.querySelectorAll('#sites button.row').forEach((button) => button.click())");
    browser.value("document.querySelectorAll('.leak-more button').forEach((button) => button.click())");
    browser.press("#flame canvas", (0.3, 0.5));
    browser.drawn();
    assert_eq!(browser.value("typeof window.hit"), "undefined");
    assert_eq!(
        browser.value("document.images.length + document.querySelectorAll('main script, main svg[onload]').length"),
        0
    );
    let headline = browser.text("document.querySelector('h1').textContent");
    assert!(headline.contains("<svg onload=window.hit=5>"), "{headline}");
    // The content security policy also blocks injected elements.
    browser.value(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"data:image/png,x\" onerror=\"window.hit=6\">')",
    );
    browser.value("(() => { const script = document.createElement('script'); script.textContent = 'window.hit=7'; document.body.append(script); })()");
    browser.drawn();
    assert_eq!(browser.value("typeof window.hit"), "undefined");
    let refused = browser.value("fetch('file:///etc/hostname').then(() => 'fetched', () => 'refused')");
    assert_eq!(refused, "refused");
}
