//! What `top` draws, on a terminal in memory.

use super::*;
use heaptape_daemon::protocol::{CallSite, Frame};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn view() -> View {
    let args = Args { control: None, process: None, delay: 1, sort: Sort::Live, once: false };
    let mut view = View::new(&args, Style { block_elements: true, ..Style::PLAIN });
    let process = |pid, name: &str, live_bytes| Process { pid, name: name.into(), live_bytes, ..Process::default() };
    view.take(vec![
        process(7, "nginx", 5),
        Process {
            growth: 59 << 20,
            lost: 1234,
            allocs_a_second: 1_234_567,
            mode: "profile:65536".into(),
            ..process(8, "redis-server", 124 << 20)
        },
        process(9, "re\u{202e}dis\x1b[1m", 1),
    ]);
    view
}

/// Returns the lines of the screen of a terminal of this size.
fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(view, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).collect()
}

fn press(view: &mut View, keys: &[KeyCode]) -> Action {
    keys.iter().fold(Action::Draw, |_, key| view.key(KeyEvent::new(*key, KeyModifiers::NONE)))
}

fn names(view: &View) -> Vec<u32> {
    view.shown().iter().map(|process| process.pid).collect()
}

/// Shows a process with two sites, of which the second grows.
fn inside(view: &mut View) {
    assert_eq!(press(view, &[KeyCode::Enter]), Action::Query);
    let frame = |offset| Frame {
        address: offset,
        module: Some("/nowhere/app".into()),
        offset: Some(offset),
        ..Frame::default()
    };
    let site = |number, live_bytes| CallSite {
        site: number,
        live_bytes,
        live_blocks: 3,
        stack: (1..=40).map(|depth| frame(depth * 16 + u64::from(number))).collect(),
        ..CallSite::default()
    };
    let at = Instant::now();
    view.history.add(at, &[site(1, 5000), site(2, 1000)], MAX_SITES);
    let sites = vec![site(1, 5000), site(2, 3000)];
    view.history.add(at + Duration::from_secs(7), &sites, MAX_SITES);
    view.details = Some(Details { process: view.processes[1].clone(), call_sites: sites });
}

#[test]
fn parts_of_the_resident_memory_are_shown_where_they_are_known() {
    let mut view = view();
    inside(&mut view);
    if let Some(details) = &mut view.details {
        details.process.resident_bytes = 9 << 20;
        let parts = [("live", 2 << 20), ("held_free", 6 << 20), ("files", 1 << 20)];
        details.process.resident_parts = parts.map(|(name, bytes)| (name.to_owned(), bytes)).into();
    }
    let lines = drawn(&mut view, 100, 24);
    let expected = "9.00 MiB resident: 6.00 MiB free beside live blocks, 2.00 MiB live, 1.00 MiB files";
    assert!(lines[2].contains(expected), "{lines:#?}");
    assert!(lines[3].contains("GROWTH"), "{lines:#?}");
}

#[test]
fn keys_select_sort_filter_and_quit() {
    let mut view = view();
    assert_eq!(names(&view), [8, 7, 9]);
    press(&mut view, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::Down, KeyCode::Down]);
    assert_eq!(view.selected, 2);
    press(&mut view, &[KeyCode::Up]);
    assert_eq!(press(&mut view, &[KeyCode::Enter]), Action::Query);
    assert_eq!(view.page, Page::Sites(7));
    press(&mut view, &[KeyCode::Esc]);
    assert_eq!(view.page, Page::Processes);
    press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('r')]);
    press(&mut view, &[KeyCode::Char('e'), KeyCode::Enter]);
    assert_eq!((names(&view), view.filter.as_str()), (vec![8, 9], "re"));
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Action::Quit);
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!((view.key(control('c')), view.key(control('z'))), (Action::Quit, Action::Stop));
}

#[test]
fn holders_of_a_process_are_asked_for_and_scrolled() {
    let mut view = view();
    assert_eq!(press(&mut view, &[KeyCode::Char('w')]), Action::AskHolders(8));
    assert!(drawn(&mut view, 80, 24)[1].starts_with("Reading which block holds which"));
    view.holders = Some((0..40).map(|number| format!("line {number}\x1b[1m")).collect());
    assert!(drawn(&mut view, 80, 24)[1].starts_with("line 0"));
    press(&mut view, &[KeyCode::Down, KeyCode::Down]);
    assert!(drawn(&mut view, 80, 24)[1].starts_with("line 2"));
    assert_eq!(press(&mut view, &[KeyCode::Char('w')]), Action::AskHolders(8));
    assert_eq!((view.holders.is_none(), view.scroll), (true, 0));
    assert_eq!((press(&mut view, &[KeyCode::Esc]), view.page), (Action::Query, Page::Sites(8)));
    assert_eq!(press(&mut view, &[KeyCode::Char('w')]), Action::AskHolders(8));
}

#[test]
fn eighty_columns_have_every_important_number_and_the_keys() {
    let mut view = view();
    let lines = drawn(&mut view, 80, 24);
    for title in ["PID", "NAME", "LIVE↓", "GROWTH", "ALLOCS/S", "LOST", "MODE"] {
        assert!(lines[1].contains(title), "{title}: {lines:#?}");
    }
    let row = lines.iter().find(|line| line.contains("redis-server")).unwrap();
    for value in ["124 MiB", "+59.0 MiB", "1,234,567", "1,234 ", "profile:64KiB"] {
        assert!(row.contains(value), "{value}: {row}");
    }
    assert!(lines[0].contains("124 MiB live") && lines[0].contains("growth +59.0 MiB"), "{lines:#?}");
    assert!(lines[23].starts_with("q quit") && lines[23].contains("? help"), "{lines:#?}");
    // More columns where there is room.
    assert!(!lines[1].contains("BYTES/S"));
    assert!(drawn(&mut view, 150, 24)[1].contains("LIVE OVER TIME"));
    press(&mut view, &[KeyCode::Char('?')]);
    let help = drawn(&mut view, 80, 24).join("\n");
    assert!(help.contains("Keys") && help.contains("whole stack of a site") && help.contains("GROWTH"), "{help}");
    press(&mut view, &[KeyCode::Char('q')]);
    assert!(!view.shows_help);
}

#[test]
fn sites_have_growth_and_whole_stacks() {
    let mut view = view();
    inside(&mut view);
    let lines = drawn(&mut view, 80, 24);
    assert!(lines[1].contains("redis-server (8)") && lines[1].contains("last 7 s"), "{lines:#?}");
    assert!(lines[2].contains("GROWTH") && lines[2].contains("BLOCKS") && lines[2].contains("CALL SITE"), "{lines:#?}");
    assert!(lines[3].contains("4.88 KiB") && lines[3].contains("+0 B"), "{lines:#?}");
    assert!(lines[4].contains("+1.95 KiB") && lines[4].contains("app+0x12 <"), "{lines:#?}");
    press(&mut view, &[KeyCode::Char('g')]);
    assert!(drawn(&mut view, 80, 24)[3].contains("+1.95 KiB"));
    press(&mut view, &[KeyCode::Enter]);
    assert_eq!(view.page, Page::Stack(8, 2));
    let shown = |view: &mut View| drawn(view, 80, 24).join("\n");
    assert!(shown(&mut view).contains("app+0x12") && !shown(&mut view).contains("app+0x282"));
    // The outermost frame is reached by scrolling.
    press(&mut view, &[KeyCode::Down; 30]);
    assert!(shown(&mut view).contains("app+0x282"));
    press(&mut view, &[KeyCode::Esc, KeyCode::Esc]);
    assert_eq!(view.page, Page::Processes);
}

#[test]
fn the_selected_process_is_visible_in_a_small_terminal() {
    let mut view = view();
    press(&mut view, &[KeyCode::Down, KeyCode::Down]);
    let lines = drawn(&mut view, 60, 4);
    assert!(lines[2].contains("re\u{fffd}dis"), "{lines:?}");
    for (width, height) in [(1, 1), (3, 2), (20, 3), (300, 80)] {
        drawn(&mut view, width, height);
    }
}

#[test]
fn names_of_programs_cannot_control_the_terminal() {
    let mut view = view();
    let mut lines = drawn(&mut view, 80, 24);
    lines.extend(view.once());
    view.page = Page::Sites(9);
    view.details = Some(Details { process: view.processes[2].clone(), ..Details::default() });
    lines.extend(drawn(&mut view, 80, 24));
    lines.extend(view.once());
    let is_control = |c: char| c.is_control() || c == '\u{202e}';
    assert!(!lines.iter().any(|line| line.chars().any(is_control)), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("re\u{fffd}dis\u{fffd}[1m")), "{lines:?}");
}

#[test]
fn the_list_of_keys_fits_into_80_columns() {
    let mut view = view();
    press(&mut view, &[KeyCode::Char('?')]);
    let lines = drawn(&mut view, 80, 24).join("\n");
    for text in ["blocks, allocated bytes", "stop the program, again: kill it"] {
        assert!(lines.contains(&format!("{text}│")) || lines.contains(&format!("{text} ")), "{text}:\n{lines}");
    }
}
