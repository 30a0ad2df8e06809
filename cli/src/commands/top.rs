//! `heaptape top`: shows the daemon's processes live: live bytes, allocation rate, growth, and the
//! call sites of one process.

use super::frames::Frames;
use crate::Outcome;
use crate::control::{Control, growth, has_growth, live_bytes, mode, signed_bytes};
use crate::full_screen::FullScreen;
use crate::table::{self, Column};
use anyhow::Context;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use heaptape_analyzer::sparkline;
use heaptape_analyzer::text::{Style, bytes, clean, count, counted};
use heaptape_recorder::crash;
use heaptape_recorder::daemon::protocol::{Details, Entry, Process, Request, Response, Which};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Column to sort by.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Sort {
    /// Live bytes
    Live,
    /// Allocations a second
    Rate,
    /// Growth in a minute
    Growth,
    /// Lost events
    Lost,
}

/// Options of `heaptape top`.
#[derive(clap::Args)]
#[command(
    after_help = "Keys: l, r, g, x sort by live bytes, rate, growth, lost events; up and down (or k and j) select; Enter shows the call \
    sites of the selected process, Esc or b goes back; / filters by name, p pauses, q quits."
)]
pub struct Args {
    /// Control socket of the daemon [default: /run/heaptape/control for root, else
    /// $XDG_RUNTIME_DIR/heaptape/control]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Start with the call sites of this process
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    delay: u64,
    /// Column to sort by
    #[arg(long, value_enum, default_value = "live")]
    sort: Sort,
    /// Print once and exit
    #[arg(long)]
    once: bool,
}

/// Number of updates that the sparkline of a process shows.
const PAST: usize = 30;
/// Number of call sites that are requested.
const MAX_SITES: u64 = 50;
/// Number of frames of a call site that are shown.
const FRAMES: usize = 3;

/// What a key does besides changing the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The view is drawn again.
    Draw,
    /// The daemon is queried before the view is drawn.
    Query,
    /// This process is stopped, as every program is by Ctrl-Z.
    Stop,
    /// The command ends without an error.
    Quit,
}

/// What is shown, and what the daemon answered last.
struct View {
    sort: Sort,
    selected: usize,
    inside: Option<u32>,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    style: Style,
    processes: Vec<Process>,
    details: Option<Details>,
    past: BTreeMap<u32, VecDeque<u64>>,
    frames: Frames,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let control = Control::at(args.control.clone());
    let mut view = View::new(&args, Style::of_stdout());
    view.query(&control)?;
    let mut out = std::io::stdout();
    if args.once || !out.is_terminal() {
        for line in view.lines(usize::MAX) {
            writeln!(out, "{line}")?;
        }
        let is_empty = view.shown().is_empty();
        return Ok(if is_empty { Outcome::NoAnswer } else { Outcome::Done });
    }
    let screen =
        FullScreen::start().context("cannot control the terminal; --once prints the processes once instead")?;
    live(&mut view, &control, Duration::from_secs(args.delay), &screen)?;
    Ok(Outcome::Done)
}

/// Shows the view until the user quits.
fn live(view: &mut View, control: &Control, delay: Duration, screen: &FullScreen) -> anyhow::Result<()> {
    let mut next_query = Instant::now() + delay;
    loop {
        crash::panic_if_requested();
        screen.draw(&view.lines(screen.size().1))?;
        let action = match screen.next_event(next_query.saturating_duration_since(Instant::now()))? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => view.key(key),
            Some(_) => Action::Draw,
            None if view.is_paused => Action::Draw,
            None => Action::Query,
        };
        match action {
            Action::Draw => {}
            Action::Query => view.query(control)?,
            Action::Stop => screen.stop()?,
            Action::Quit => return Ok(()),
        }
        if Instant::now() >= next_query {
            next_query = Instant::now() + delay;
        }
    }
}

impl View {
    fn new(args: &Args, style: Style) -> View {
        View {
            sort: args.sort,
            selected: 0,
            inside: args.process,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            style,
            processes: Vec::new(),
            details: None,
            past: BTreeMap::new(),
            frames: Frames::default(),
        }
    }

    /// Handles a key, and returns what is to be done.
    fn key(&mut self, key: KeyEvent) -> Action {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Action::Quit,
            KeyCode::Char('z') if is_control => return Action::Stop,
            _ if is_control => {}
            KeyCode::Enter if self.is_typing => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Esc if self.is_typing => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Char(character) if self.is_typing => self.filter.push(character),
            _ if self.is_typing => {}
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('l') => self.sort = Sort::Live,
            KeyCode::Char('r') => self.sort = Sort::Rate,
            KeyCode::Char('g') => self.sort = Sort::Growth,
            KeyCode::Char('x') => self.sort = Sort::Lost,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Enter if self.inside.is_none() => {
                self.inside = self.shown().get(self.selected).map(|process| process.pid);
                return Action::Query;
            }
            KeyCode::Esc | KeyCode::Char('b') => (self.inside, self.details) = (None, None),
            KeyCode::Char('/') => (self.is_typing, self.filter) = (true, String::new()),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            _ => {}
        }
        self.selected = self.selected.min(self.shown().len().saturating_sub(1));
        Action::Draw
    }

    /// Queries the daemon for the processes, and for the call sites of the one that is shown.
    fn query(&mut self, control: &Control) -> anyhow::Result<()> {
        let Response::List(entries) = control.ask(&Request::List)? else {
            return Err(control.unexpected("the answer is no list"));
        };
        // An incoming stream is a file of which nothing is known yet.
        let processes = entries.into_iter().filter_map(|entry| match entry {
            Entry::Process(process) => Some(*process),
            Entry::Stream(_) => None,
        });
        self.take(processes.collect());
        let Some(pid) = self.inside else { return Ok(()) };
        if !self.processes.iter().any(|process| process.pid == pid) {
            (self.inside, self.details) = (None, None);
            return Ok(());
        }
        let request = Request::Show { which: Which(pid.to_string()), sites: MAX_SITES };
        let Response::Show(details) = control.ask(&request)? else {
            return Err(control.unexpected("the answer is no process"));
        };
        self.details = Some(*details);
        Ok(())
    }

    /// Replaces the processes by those of a new answer.
    fn take(&mut self, processes: Vec<Process>) {
        self.processes = processes;
        for process in &self.processes {
            let past = self.past.entry(process.pid).or_default();
            past.push_back(process.live_bytes);
            if past.len() > PAST {
                past.pop_front();
            }
        }
        self.past.retain(|pid, _| self.processes.iter().any(|process| process.pid == *pid));
        self.selected = self.selected.min(self.shown().len().saturating_sub(1));
    }

    /// Returns the processes that the filter selects, in the order of the view.
    fn shown(&self) -> Vec<&Process> {
        let is_shown = |process: &&Process| clean(&process.name).contains(&self.filter);
        let mut shown: Vec<&Process> = self.processes.iter().filter(is_shown).collect();
        let key = |process: &Process| match self.sort {
            Sort::Live => i128::from(process.live_bytes),
            Sort::Rate => i128::from(process.allocs_a_second),
            Sort::Growth => i128::from(process.growth),
            Sort::Lost => i128::from(process.lost),
        };
        shown.sort_by_key(|process| (Reverse(key(process)), process.pid));
        shown
    }

    /// Returns the lines of the view for a terminal with this number of rows.
    fn lines(&mut self, rows: usize) -> Vec<String> {
        let mut lines = vec![self.headline()];
        match self.details.take() {
            Some(details) => {
                lines.extend(self.sites(&details, rows.saturating_sub(4)));
                self.details = Some(details);
            }
            None => lines.extend(self.table(rows.saturating_sub(3).max(1))),
        }
        lines
    }

    /// Returns the sums of the processes that are shown.
    fn headline(&self) -> String {
        let shown = self.shown();
        let sum = |value: fn(&Process) -> u64| shown.iter().map(|process| value(process)).fold(0, u64::saturating_add);
        // Only processes that have been recorded for a minute have a growth.
        let grown: Vec<i64> =
            shown.iter().filter(|process| has_growth(process)).map(|process| process.growth).collect();
        let grown = match grown.is_empty() {
            true => "growth – (after 1 min)".to_owned(),
            false => format!("growth {}", signed_bytes(grown.into_iter().fold(0, i64::saturating_add))),
        };
        let typed = if self.is_typing { format!("  filter: {}_", clean(&self.filter)) } else { String::new() };
        let paused = if self.is_paused { "  paused" } else { "" };
        format!(
            "heaptape  {}  {}{} live  {grown}  {} allocations/s  {} lost{paused}{typed}",
            counted(shown.len() as u64, "process"),
            if shown.iter().all(|process| process.live_since_unix_ns.is_none()) { "" } else { "≥ " },
            bytes(sum(|process| process.live_bytes)),
            count(sum(|process| process.allocs_a_second)),
            count(sum(|process| process.lost))
        )
    }

    /// Returns the table of processes, with the selected one among at most `fits` rows.
    fn table(&self, fits: usize) -> Vec<String> {
        let mut columns = vec![
            Column::Left(" "),
            Column::Right("PID"),
            Column::Left("NAME"),
            Column::Left("MODE"),
            Column::Right("LIVE"),
            Column::Right("ALLOCS/S"),
            Column::Right("BYTES/S"),
            Column::Right("GROWTH"),
            Column::Right("LOST"),
        ];
        if self.style.block_elements {
            columns.push(Column::Left("LIVE OVER TIME"));
        }
        let shown = self.shown();
        let first = (self.selected + 1).saturating_sub(fits);
        let rows = shown.iter().enumerate().skip(first).take(fits).map(|(index, process)| {
            let mut row = vec![
                if index == self.selected { ">" } else { " " }.to_owned(),
                process.pid.to_string(),
                process.name.clone(),
                mode(&process.mode),
                live_bytes(process),
                count(process.allocs_a_second),
                bytes(process.bytes_a_second),
                growth(process),
                count(process.lost),
            ];
            row.extend(self.style.block_elements.then(|| self.spark(process.pid)));
            row
        });
        table::lines(&columns, rows)
    }

    /// Returns the call sites of a process, at most `fits` of them.
    fn sites(&mut self, details: &Details, fits: usize) -> Vec<String> {
        let process = &details.process;
        let growing = match has_growth(process) {
            true => format!("{} sites grow", count(process.sites_growing)),
            false => "growing sites: – (after 1 min)".into(),
        };
        let mut lines = vec![format!(
            "{} ({})  {}  {} live in {}  {growing}  {}",
            clean(&process.name),
            process.pid,
            clean(&mode(&process.mode)),
            live_bytes(process),
            counted(process.live_blocks, "block"),
            self.spark(process.pid)
        )];
        let columns = [
            Column::Right("LIVE"),
            Column::Right("BLOCKS"),
            Column::Right("ALLOCATED"),
            Column::Left("CALL SITE < ITS CALLERS"),
        ];
        let rows = details.call_sites.iter().take(fits).map(|site| {
            let names = self.frames.named(process.pid, site, FRAMES).join(" < ");
            vec![bytes(site.live_bytes), count(site.live_blocks), bytes(site.bytes), names]
        });
        lines.extend(table::lines(&columns, rows));
        lines
    }

    /// Returns the sparkline of the live bytes of a process.
    fn spark(&self, pid: u32) -> String {
        let past: Vec<u64> = self.past.get(&pid).into_iter().flatten().copied().collect();
        sparkline(self.style, &past, PAST).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let args = Args { control: None, process: None, delay: 1, sort: Sort::Live, once: false };
        let mut view = View::new(&args, Style { block_elements: true, ..Style::PLAIN });
        let process =
            |pid, name: &str, live_bytes| Process { pid, name: name.into(), live_bytes, ..Process::default() };
        view.take(vec![
            process(7, "nginx", 5),
            process(8, "redis-server", 9000),
            process(9, "re\u{202e}dis\x1b[1m", 1),
        ]);
        view
    }

    fn press(view: &mut View, keys: &[KeyCode]) -> Action {
        keys.iter().fold(Action::Draw, |_, key| view.key(KeyEvent::new(*key, KeyModifiers::NONE)))
    }

    fn names(view: &View) -> Vec<u32> {
        view.shown().iter().map(|process| process.pid).collect()
    }

    #[test]
    fn keys_select_sort_filter_and_quit() {
        let mut view = view();
        assert_eq!(names(&view), [8, 7, 9]);
        press(&mut view, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::Down, KeyCode::Down]);
        assert_eq!(view.selected, 2);
        press(&mut view, &[KeyCode::Up]);
        assert!(view.lines(24)[3].starts_with(" >    7"), "{:?}", view.lines(24));
        assert_eq!(press(&mut view, &[KeyCode::Enter]), Action::Query);
        assert_eq!(view.inside, Some(7));
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!(view.inside, None);
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('r')]);
        press(&mut view, &[KeyCode::Char('e'), KeyCode::Enter]);
        assert_eq!((names(&view), view.filter.as_str()), (vec![8, 9], "re"));
        assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Action::Quit);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!((view.key(control('c')), view.key(control('z'))), (Action::Quit, Action::Stop));
    }

    #[test]
    fn the_selected_process_is_visible_in_a_small_terminal() {
        let mut view = view();
        press(&mut view, &[KeyCode::Down, KeyCode::Down]);
        let lines = view.lines(4);
        assert!(lines.len() == 3 && lines[2].starts_with(" >    9"), "{lines:?}");
    }

    #[test]
    fn names_of_programs_cannot_control_the_terminal() {
        let mut view = view();
        let mut lines = view.lines(24);
        view.details = Some(Details { process: view.processes[2].clone(), ..Details::default() });
        lines.extend(view.lines(24));
        let is_control = |c: char| c.is_control() || c == '\u{202e}';
        assert!(!lines.iter().any(|line| line.chars().any(is_control)), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("re\u{fffd}dis\u{fffd}[1m")), "{lines:?}");
    }
}
