//! The page of `export --to html` in a real browser: it opens from a file without a complaint,
//! draws, searches, zooms, and a range drawn on its timeline changes what is below; names of the
//! recording stay text. Where no Chromium is installed nothing is tested, unless
//! `HEAPTAPE_BROWSER=1` demands it (`scripts/dev browser`).

use heaptape_tests::browser::{Browser, Screen};
use heaptape_tests::{Program, Recording, Target, target, test_env};
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
    let complete_text = format!("Nothing is missing: {} events emitted all recorded", process.emitted_events);
    assert!(accounting.contains(&complete_text), "{accounting}");

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
    let answer = |recording: &Recording| -> serde_json::Value {
        serde_json::from_slice(&recording.heaptape(&["leaks", "--json"]).stdout).expect("JSON")
    };
    let leaks = answer(&after);
    // `late` may be taken for freed at the exit, which is soon after.
    let freed = |answer: &serde_json::Value| answer["freed_at_exit"].as_array().map_or(0, Vec::len);
    let freed = freed(&answer(&before)) + freed(&leaks);
    let page = after.directory.path().join("diff.html");
    let arguments =
        ["export", "--to", "html", "-o", page.to_str().expect("a path"), before.folder.to_str().expect("a path")];
    assert_eq!(after.heaptape(&arguments).code(), 0);
    let mut browser = opened(&page, "#show=bytes", DESK);
    let rows = "[...document.querySelectorAll('#sites tbody tr')].map((row) => row.textContent)";
    let rows: Vec<String> = serde_json::from_value(browser.value(rows)).expect("rows");
    let late = rows.iter().find(|row| row.contains("late")).expect("what changed");
    assert!(late.contains('▲') && late.contains("100.0%"), "{rows:?}");
    assert!(rows.iter().any(|row| row.contains("keeps") && !row.contains('▲')), "{rows:?}");
    // One card for a function of each recording, or one for each stack: `keeps` frees nothing.
    assert_eq!(browser.value("document.querySelectorAll('.leak').length"), 2 + freed);
    browser.press("#leaks [data-stack=true]", (0.5, 0.5));
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

/// Tells each text that is drawn on a canvas.
const LABELS: &str = "(() => { window.labels = []; const draw = CanvasRenderingContext2D.prototype.fillText; CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { window.labels.push(text); return draw.call(this, text, ...rest); }; })()";

fn labels(browser: &mut Browser) -> Vec<String> {
    let drawn = browser.value("window.labels.splice(0)");
    serde_json::from_value(drawn).expect("labels")
}

/// Enters a text into the search field.
fn search(browser: &mut Browser, text: &str) {
    browser.value(&format!("(() => {{ const input = document.getElementById('search'); input.value = {text:?}; input.dispatchEvent(new Event('input')); }})()"));
    browser.drawn();
}

const CACHE: &str = "shop::LruCache::get_or_make";

/// Threads by name; the timeline by functions and threads.
fn threads_are_chosen(browser: &mut Browser) {
    let threads = browser.text("[...document.querySelectorAll('#thread option')].map((one) => one.value).join(' ')");
    assert!(["worker-1", "worker-2", "reloader"].iter().all(|name| threads.contains(name)), "{threads}");
    let choose = |browser: &mut Browser, thread: &str| {
        browser.value(&format!("(() => {{ const which = document.getElementById('thread'); which.value = {thread:?}; which.dispatchEvent(new Event('change')); }})()"));
        browser.drawn();
    };
    choose(browser, "reloader");
    assert_eq!(functions(browser), ["shop::reload"]);
    assert!(browser.text("location.hash").contains("thread=reloader"));
    choose(browser, "worker-1");
    let names = functions(browser);
    assert!(names.iter().any(|name| name == CACHE) && !names.iter().any(|name| name == "shop::reload"), "{names:?}");
    choose(browser, "all");

    // The timeline by functions and threads; its axis has round steps.
    browser.value(LABELS);
    browser.press("#timeline [data-value=function]", (0.5, 0.5));
    let legend = "document.querySelector('#timeline .legend').textContent";
    let shown = browser.text(legend);
    assert!(shown.contains("shop::reload") && shown.contains(CACHE), "{shown}");
    let axis: Vec<String> =
        labels(browser).into_iter().filter(|label| label.ends_with("iB") && !label.contains("peak")).collect();
    let is_round = |label: &String| {
        let fraction =
            label.split_once('.').map_or("", |(_, rest)| rest.trim_end_matches(|c: char| !c.is_ascii_digit()));
        ["", "25", "5", "75"].contains(&fraction)
    };
    assert!(axis.len() >= 3 && axis.iter().all(is_round), "{axis:?}");
    browser.press("#timeline [data-value=threads]", (0.5, 0.5));
    let shown = browser.text(legend);
    assert!(shown.contains("reloader") && shown.contains("worker-2"), "{shown}");
}

/// Callers and callees of a function.
fn callers_and_callees_are_shown(browser: &mut Browser) {
    browser.value("(() => { const input = document.getElementById('focus'); input.value = 'shop::serve'; input.dispatchEvent(new Event('change')); })()");
    browser.drawn();
    let focused = browser.text("document.querySelector('#callers .focus').textContent");
    assert!(focused.starts_with("shop::serve") && focused.contains("shop.cpp:"), "{focused}");
    let [callers, callees] = [0, 1]
        .map(|at| browser.text(&format!("document.querySelectorAll('#callers .pair > .card')[{at}].textContent")));
    assert!(callees.contains(CACHE) && !callers.contains(CACHE) && callers.contains("main"), "{callers} {callees}");
    // A row goes on to that function.
    browser.value("[...document.querySelectorAll('#callers .pair > .card:last-child tr')].find((row) => row.textContent.includes('get_or_make')).querySelector('td.number').click()");
    browser.drawn();
    let focused = browser.text("document.querySelector('#callers .focus').textContent");
    assert!(focused.starts_with(CACHE), "{focused}");
}

/// The tooltip of a bar: source line, bytes, count.
fn tooltip_has_the_source_line(browser: &mut Browser) {
    browser.value("document.querySelector('#flame canvas').focus()");
    search(browser, "");
    let mut tips = Vec::new();
    for _ in 0..14 {
        browser.key("ArrowDown");
        tips.push(browser.text("document.getElementById('tip').textContent"));
    }
    let tip = tips.iter().find(|tip| tip.contains("shop.cpp:")).expect("a tooltip with a source line");
    assert!(tip.contains("allocations") && tip.contains("on average") && tip.contains("% of all"), "{tip}");
}

/// What looks like an expression and finds nothing gets a hint; between slashes it is one.
fn expressions_are_searched(browser: &mut Browser) {
    search(browser, "shop::.*make");
    let hints = browser.text("document.getElementById('sites').textContent");
    assert!(hints.contains("plain text") && hints.contains("/shop::.*make/"), "{hints}");
    search(browser, "/shop::.*make/");
    assert!(functions(browser).iter().any(|name| name == CACHE));
    search(browser, "/shop(/");
    let hints = browser.text("document.getElementById('sites').textContent");
    assert!(hints.contains("no regular expression"), "{hints}");
    search(browser, "");
}

/// The table as a file: whole names, numbers without units.
fn table_is_saved(browser: &mut Browser) {
    browser.value("(() => { URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return 'data:,'; }; })()");
    browser.press("#sites .options button", (0.5, 0.5));
    browser.wait("typeof window.saved === 'string'");
    let saved = browser.text("window.saved");
    let lines: Vec<&str> = saved.lines().collect();
    assert!(lines[0].starts_with("Call site,Module,Allocated (bytes),Allocations"), "{saved}");
    assert!(lines.iter().any(|line| line.contains("shop::LruCache<") && line.contains(",shop,")), "{saved}");
}

/// Two ranges: with and without the reloader.
fn ranges_are_compared(browser: &mut Browser) {
    browser.drag("#timeline canvas", (0.1, 0.3), (0.3, 0.3));
    browser.press("#base", (0.5, 0.5));
    browser.drag("#timeline canvas", (0.7, 0.3), (0.9, 0.3));
    let head = browser.text("document.querySelector('#sites thead').textContent");
    assert!(head.contains("Before") && head.contains("After"), "{head}");
    let rows =
        browser.text("[...document.querySelectorAll('#sites tbody tr')].map((row) => row.textContent).join('\\n')");
    assert!(rows.lines().any(|row| row.contains("shop::reload") && row.contains("gone")), "{rows}");
    assert!(browser.text("location.hash").contains("base="));
    browser.value("document.activeElement.blur()");
    browser.key("0");
    assert!(browser.text("document.querySelector('#sites thead').textContent").contains("Allocated"));
}

#[test]
fn page_answers_by_thread_function_and_two_ranges() {
    if !Browser::is_there() {
        return;
    }
    let program = Target::program("shop.cpp").flag("-std=c++20").build();
    let recording = Program::new(program).recorded().complete();
    let file = exported(&recording);
    let mut browser = opened(&file, "#show=bytes&group=function", DESK);

    // Names are short; the tooltip has the whole one.
    let names = functions(&mut browser);
    assert!(names.iter().any(|name| name == CACHE), "{names:?}");
    let titles = browser.text("[...document.querySelectorAll('#sites .first')].map((name) => name.title).join('\\n')");
    assert!(titles.contains("shop::LruCache<") && titles.contains("Session"), "{titles}");
    let head = browser.text("document.querySelector('#sites thead th').textContent");
    assert_eq!(head, "Call site");

    // Every cell of a row opens it.
    let opened_rows = "document.querySelectorAll('#sites [aria-expanded=true]').length";
    assert_eq!(browser.value(opened_rows), 0);
    browser.press("#sites tbody td.number:last-child", (0.5, 0.5));
    assert_eq!(browser.value(opened_rows), 1);
    browser.press("#sites tbody td.number:last-child", (0.5, 0.5));
    assert_eq!(browser.value(opened_rows), 0);

    threads_are_chosen(&mut browser);
    callers_and_callees_are_shown(&mut browser);
    tooltip_has_the_source_line(&mut browser);
    expressions_are_searched(&mut browser);
    table_is_saved(&mut browser);
    ranges_are_compared(&mut browser);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn controls_have_names_and_phones_show_whole_rows() {
    if !Browser::is_there() {
        return;
    }
    let recording = Program::new(target::c("named_threads")).recorded().complete();
    let file = exported(&recording);
    let mut browser = opened(&file, "", Screen { width: 390, height: 844, dark: true });
    let cut = "[...document.querySelectorAll('#sites tbody td')].filter((cell) => { const box = cell.getBoundingClientRect(); return box.right > innerWidth || box.left < 0; }).length";
    assert_eq!(browser.value(cut), 0, "cells of the table are cut");
    let first = browser.text("[...document.querySelectorAll('#sites tbody tr')][0].children[0].className");
    assert_eq!(first, "place");
    // One card for the function that both threads leak in, by two stacks.
    let cards = browser.text("[...document.querySelectorAll('.leak')].map((card) => card.textContent).join('\\n')");
    assert!(
        cards.lines().next().is_some_and(|card| card.contains("from 2 stacks") && card.contains("reader, writer")),
        "{cards}"
    );
    browser.call("Accessibility.enable", serde_json::json!({}));
    let tree = browser.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let nodes = tree["nodes"].as_array().expect("nodes");
    let controls =
        ["button", "textbox", "searchbox", "combobox", "slider", "application", "link", "table", "region", "img"];
    let (mut named, mut unnamed) = (0, Vec::new());
    for node in nodes.iter().filter(|node| node["ignored"] == false) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if controls.contains(&role) && role != "table" {
            match node["name"]["value"].as_str().unwrap_or_default() {
                "" => unnamed.push(node.to_string()),
                _ => named += 1,
            }
        }
    }
    assert!(unnamed.is_empty() && named > 30, "{named} {unnamed:#?}");
    assert_eq!(browser.complaints, [""; 0]);
}

/// A page begins with what `heaptape leaks` says first, and with links to the evidence.
#[test]
fn page_leads_with_the_answer() {
    if !Browser::is_there() {
        return;
    }
    let program = Target::program("service.cpp").flag("-std=c++20").build();
    let recording = Program::new(program).recorded().complete();
    let file = recording.directory.path().join("page.html");
    let outcome =
        recording.heaptape(&["export", "--to", "html", "--with-source", "-o", file.to_str().expect("a path")]);
    assert_eq!(outcome.code(), 0, "{outcome}");
    let leaks = recording.heaptape(&["leaks"]).success().text();
    let mut browser = opened(&file, "#stacked=resident", DESK);

    // The same words in the same units, before anything else.
    let lines = browser.value("[...document.querySelectorAll('#findings .headline')].map((line) => line.textContent)");
    let lines: Vec<String> = serde_json::from_value(lines).expect("lines");
    assert!(!lines.is_empty() && leaks.lines().zip(&lines).all(|(said, line)| said == line), "{lines:?} {leaks}");
    let below = browser.value(
        "document.getElementById('findings').getBoundingClientRect().bottom < document.getElementById('timeline').getBoundingClientRect().top && document.getElementById('findings').getBoundingClientRect().bottom < innerHeight",
    );
    assert_eq!(below, true, "the answer is above the timeline and on the first screen");
    let found = browser.value("[...document.querySelectorAll('#findings li')].map((line) => line.textContent)");
    let found: Vec<String> = serde_json::from_value(found).expect("findings");
    assert!(found.len() == 3 && found[0].contains("shop::") && found[0].contains("service.cpp:"), "{found:?}");
    let amount = leaks.lines().find(|line| line.starts_with("1. ")).expect("a leak");
    assert!(
        amount.contains(found[0].trim_start_matches(|c: char| !c.is_ascii_digit()).split(" in ").next().unwrap_or("?")),
        "{found:?} {leaks}"
    );

    // A link goes to the card with the evidence.
    browser.value("document.querySelector('#findings a').click()");
    browser.drawn();
    browser.drawn();
    let card = browser.text("document.activeElement.textContent");
    assert!(card.contains("shop::") && card.contains("never freed") || card.contains("live at the end"), "{card}");
    assert!(!card.contains("0x"), "no address of a process that is gone: {card}");

    // The source of a line.
    assert_eq!(browser.value("document.querySelectorAll('.leak .source').length"), 0);
    browser.value("document.querySelector('.leak button.where').click()");
    let source = browser.text("document.querySelector('.leak .source').textContent");
    let marked = browser.text("document.querySelector('.leak .source mark').textContent");
    assert!(source.lines().count() >= 5 && source.contains(&marked) && marked.trim().len() > 5, "{source}");

    // The resident view has a title, an axis up to its top, and marks for its snapshots.
    let title = browser.text("document.getElementById('timeline-title').textContent");
    let legend = browser.text("document.querySelector('#timeline .legend').textContent");
    assert!(title == "Resident memory over the run" && legend.contains("of the pages"), "{title} {legend}");

    // One peak: the figure, the sum of the flame graph, and the mark of the timeline.
    browser.value(LABELS);
    // The page may still be scrolling to the card.
    browser.value("document.querySelector('#timeline [data-value=total]').click()");
    let peak = browser.text("document.querySelector('.figure-value').textContent");
    let all = browser.text("document.querySelector('#measure-about b').textContent");
    browser.drawn();
    browser.drawn();
    let drawn = labels(&mut browser);
    assert!(peak == all && drawn.iter().any(|label| *label == format!("peak {peak}")), "{peak} {all} {drawn:?}");

    // Sizes in the bars.
    browser.value("document.activeElement.blur()");
    browser.key("i");
    browser.key("i");
    browser.drawn();
    browser.drawn();
    let drawn = labels(&mut browser);
    assert!(drawn.iter().any(|label| label.starts_with("main") && label.ends_with("iB")), "{drawn:?}");
    assert_eq!(browser.complaints, [""; 0]);
}

/// A function is merged into its callers or left out, a stack is copied, and the flame graph is a
/// table on request.
#[test]
fn functions_are_merged_left_out_and_listed() {
    if !Browser::is_there() {
        return;
    }
    let program = Target::program("shop.cpp").flag("-std=c++20").build();
    let recording = Program::new(program).recorded().complete();
    let file = exported(&recording);
    let mut browser = opened(&file, "#show=bytes&program=true", DESK);
    let listed = "document.querySelector('#flame table.top-down')?.textContent ?? ''";
    assert_eq!(browser.text(listed), "");
    browser.key("l");
    let rows = browser.text(listed);
    assert!(rows.contains("main") && rows.contains("shop.cpp:") && rows.contains("iB"), "{rows}");
    let lines = "document.querySelectorAll('#flame table.top-down tbody tr').length";
    let before = browser.value(lines).as_u64();
    browser.value("document.querySelector('#flame table.top-down [aria-expanded=true]').click()");
    assert!(browser.value(lines).as_u64() < before, "a line closes");
    browser.key("l");

    // Zoomed to a function, it can be copied, merged and left out.
    browser.value("navigator.clipboard.writeText = (text) => { window.copiedText = text; return Promise.resolve(); }");
    browser.value("document.querySelector('#flame canvas').focus()");
    let mut name = String::new();
    for _ in 0..12 {
        browser.key("ArrowDown");
        name = browser.text("document.getElementById('tip').textContent");
        if name.contains("shop::") {
            break;
        }
    }
    assert!(name.contains("shop::"), "{name}");
    browser.key("Enter");
    let crumb = browser.text("document.querySelector('.crumbs b').textContent");
    let press = |browser: &mut Browser, title: &str| {
        browser.value(&format!("[...document.querySelectorAll('.crumbs button')].find((button) => button.textContent === {title:?}).click()"));
        browser.drawn();
    };
    press(&mut browser, "copy the stack");
    let copied = browser.text("window.copiedText");
    assert!(
        copied.lines().next().is_some_and(|line| line.contains(crumb.split('<').next().unwrap_or("?"))),
        "{copied}"
    );
    assert!(copied.contains("shop.cpp:"), "{copied}");
    let total = browser.text("document.querySelector('#measure-about b').textContent");
    press(&mut browser, "merge into the caller");
    assert!(browser.text("document.querySelector('.crumbs').textContent").contains("merged: "));
    assert_eq!(browser.text("document.querySelector('#measure-about b').textContent"), total, "nothing is lost");
    browser.value("document.querySelector('.hidden-function').click()");
    browser.drawn();
    browser.value("document.querySelector('#flame canvas').focus()");
    for _ in 0..12 {
        browser.key("ArrowDown");
        if browser.text("document.getElementById('tip').textContent").contains(&crumb) {
            break;
        }
    }
    browser.key("Enter");
    press(&mut browser, "leave out");
    assert_ne!(browser.text("document.querySelector('#measure-about b').textContent"), total, "its stacks are gone");
    assert!(browser.text("location.hash").contains("without="));
    browser.value("document.activeElement.blur()");
    browser.key("0");
    assert_eq!(browser.text("document.querySelector('#measure-about b').textContent"), total);
    assert_eq!(browser.complaints, [""; 0]);
}

/// Runs of an interpreter's own frames are one line of the flame graph, as in the text of `leaks`.
#[test]
fn frames_of_an_interpreter_are_folded_where_libraries_are_hidden() {
    if !Browser::is_there() {
        return;
    }
    let library = Target::library("keeps_for_python.c").build();
    let script = format!(
        "import ctypes\nkeep = ctypes.CDLL({:?}).keep_rows\nfor number in range(500): keep(4000)\n",
        library.display().to_string()
    );
    let recording = Program::new("/usr/bin/python3").args(["-c", &script]).recorded().success();
    let file = exported(&recording);
    let rows = |browser: &mut Browser| {
        browser.key("l");
        // The caller of the library, and what is above it.
        let text = "[...document.querySelectorAll('#flame table.top-down tbody tr')].map((row) => row.textContent)";
        let rows: Vec<String> = serde_json::from_value(browser.value(text)).expect("rows");
        let at = rows.iter().position(|row| row.contains("keep_rows"));
        at.map_or(rows.clone(), |at| rows[..=at].to_vec())
    };
    let folded = rows(&mut opened(&file, "#show=bytes&program=true", DESK));
    assert!(folded.last().is_some_and(|row| row.contains("keep_rows")), "{folded:?}");
    assert!(folded.len() <= 3 && folded.iter().any(|row| row.contains("… frames of python3")), "{folded:?}");
    let whole = rows(&mut opened(&file, "#show=bytes&program=false", DESK));
    assert!(whole.len() > 5 && !whole.iter().any(|row| row.contains("frames of")), "{whole:?}");
    assert!(whole.iter().any(|row| row.contains("Py") || row.contains("python3")), "{whole:?}");
}

/// The map of holders, at the width of a desk and of a telephone.
#[test]
fn page_shows_who_holds_what_is_live() {
    if !Browser::is_there() {
        return;
    }
    let program = Program::new(Target::program("holds_cache.cpp").build()).arg("300");
    let recording = program.option("--references").recorded().success();
    let file = exported(&recording);
    for screen in [DESK, Screen { width: 390, height: 800, dark: true }] {
        let mut browser = opened(&file, "", screen);
        let table = browser.text("document.querySelector('#holders table').textContent");
        for name in ["global Cache::instance()::cache", "global kept", "nothing: lost", "only their own cycle"] {
            assert!(table.contains(name), "{name}: {table}");
        }
        let colours = "(() => { const map = document.querySelector('#holders canvas'); const { data } = map.getContext('2d').getImageData(0, 0, map.width, map.height); const seen = new Set(); for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]); return seen.size; })()";
        assert!(browser.value(colours).as_u64() > Some(4), "the map is drawn");
        let cards = browser.text("document.getElementById('leaks').textContent");
        assert!(cards.contains("Held by global kept (4.69 KiB)"), "{cards}");
        let too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
        assert_eq!(browser.value(too_wide), false);
    }
    // Without references there is nothing to show.
    let plain = Program::new("true").recorded().success();
    let mut browser = opened(&exported(&plain), "", DESK);
    assert_eq!(browser.value("document.getElementById('holders').hidden"), true);
}
