//! `heaptape top`: shows the daemon's processes live: live bytes, allocation rate, growth, and the
//! call sites of one process.

mod history;
mod merged;
mod screen;

use super::frames::Frames;
use crate::Outcome;
use crate::control::{Control, growth, has_growth, live_bytes, mode, resident, resident_parts};
use crate::full_screen::FullScreen;
use crate::table::{self, Column};
use anyhow::Context;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use heaptape_analyzer::sparkline;
use heaptape_analyzer::text::{Style, bytes, clean, count, counted};
use heaptape_daemon::protocol::{CallSite, Details, Entry, Process, Request, Response, Which};
use heaptape_recorder::os::crash;
use history::History;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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
    after_help = "Keys: up and down (or k and j) select; Enter shows the call sites of a process, and of a site the whole stack; Esc or b \
    goes back; w asks who holds the live blocks of a process; l, r, g, x sort by live bytes, rate, growth, lost events (sites: l, g, n, a by live bytes, growth, blocks, allocated \
    bytes); / filters by name, p pauses, ? explains the keys, q quits."
)]
pub(crate) struct Args {
    /// Control socket of the daemon [default: control in $HEAPTAPE_DIR, else in
    /// /run/heaptape-control for root and in $XDG_RUNTIME_DIR/heaptape for others]
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
/// Interval of the checks whether a program that is watched has ended.
const END_CHECK: Duration = Duration::from_millis(100);
/// Number of frames of a call site that are shown.
const FRAMES: usize = 3;

/// What a key does besides changing the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The view is drawn again.
    Draw,
    /// The daemon is queried before the view is drawn.
    Query,
    /// It is asked who holds the live blocks of this process.
    AskHolders(u32),
    /// This process is stopped, as every program is by Ctrl-Z.
    Stop,
    /// The command ends without an error.
    Quit,
}

/// Order of the call sites of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SiteSort {
    Live,
    Growth,
    Blocks,
    Allocated,
}

/// What fills the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Processes,
    /// The call sites of a process, by its pid.
    Sites(u32),
    /// The stack of a call site of a process, by their numbers.
    Stack(u32, u32),
    /// Who holds the live blocks of a process.
    Holders(u32),
}

/// What is shown, and what the daemon answered last.
struct View {
    page: Page,
    sort: Sort,
    site_sort: SiteSort,
    selected: usize,
    selected_site: usize,
    scroll: u16,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    shows_help: bool,
    /// Whether the key that quits stops the program that is shown.
    stops_program: bool,
    style: Style,
    processes: Vec<Process>,
    details: Option<Details>,
    /// The lines of the answer who holds what; `None` until it is there.
    holders: Option<Vec<String>>,
    history: History,
    past: BTreeMap<u32, VecDeque<u64>>,
    frames: Frames,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let control = Control::at(args.control.clone());
    let mut view = View::new(&args, Style::of_stdout());
    view.query(&control)?;
    let mut out = std::io::stdout();
    if args.once || !out.is_terminal() {
        for line in view.once() {
            writeln!(out, "{line}")?;
        }
        let is_empty = view.shown().is_empty();
        return Ok(if is_empty { Outcome::NoAnswer } else { Outcome::Done });
    }
    let mut screen =
        FullScreen::start().context("cannot control the terminal; --once prints the processes once instead")?;
    live(&mut view, &control, Duration::from_secs(args.delay), &mut screen, None)?;
    Ok(Outcome::Done)
}

/// Shows the call sites of a program until it has ended. The key that quits stops the program, as
/// Ctrl-C would; the second time, it kills it.
///
/// # Errors
/// The terminal cannot be controlled, or the daemon does not answer.
pub(super) fn watch(control: &Control, program: &mut Child) -> anyhow::Result<()> {
    let args = Args { control: None, process: Some(program.id()), delay: 1, sort: Sort::Live, once: false };
    let mut view = View::new(&args, Style::of_stdout());
    view.stops_program = true;
    view.query(control)?;
    let mut screen = FullScreen::start().context("cannot control the terminal")?;
    let mut signal = Signal::SIGINT;
    while program.try_wait()?.is_none() {
        live(&mut view, control, Duration::from_secs(args.delay), &mut screen, Some(&mut *program))?;
        if program.try_wait()?.is_none() {
            // The program was not waited for, so its pid is its own.
            kill(Pid::from_raw(program.id() as i32), signal)?;
            signal = Signal::SIGKILL;
        }
    }
    Ok(())
}

/// Shows the view until the user quits, or the program has ended.
fn live(
    view: &mut View,
    control: &Control,
    delay: Duration,
    screen: &mut FullScreen,
    mut program: Option<&mut Child>,
) -> anyhow::Result<()> {
    let mut next_query = Instant::now() + delay;
    loop {
        crash::panic_if_requested();
        screen.draw(|frame| screen::draw(view, frame))?;
        if program.as_mut().map(|program| program.try_wait()).transpose()?.flatten().is_some() {
            return Ok(());
        }
        let mut timeout = next_query.saturating_duration_since(Instant::now());
        if program.is_some() {
            timeout = timeout.min(END_CHECK);
        }
        let action = match screen.next_event(timeout)? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => view.key(key),
            Some(_) => Action::Draw,
            None if view.is_paused || Instant::now() < next_query => Action::Draw,
            None => Action::Query,
        };
        match action {
            Action::Draw => {}
            Action::Query => view.query(control)?,
            Action::AskHolders(pid) => {
                screen.draw(|frame| screen::draw(view, frame))?;
                view.holders = Some(holders(control, pid)?);
            }
            Action::Stop => screen.stop()?,
            Action::Quit => return Ok(()),
        }
        if Instant::now() >= next_query {
            next_query = Instant::now() + delay;
        }
    }
}

/// Returns what `heaptape holds --live` says of a process. The reports are made for a process that
/// ends: this one goes on with what may be wrong with theirs.
fn holders(control: &Control, pid: u32) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["holds", "--live", &pid.to_string(), "--control"]).arg(control.path()).stdin(Stdio::null());
    let output = command.output().context("cannot ask who holds what")?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(text.iter().flat_map(|text| text.lines()).map(str::to_owned).collect())
}

/// Returns the processes that the daemon records.
fn list(control: &Control) -> anyhow::Result<Vec<Process>> {
    let Response::List(entries) = control.ask(&Request::List)? else {
        return Err(control.unexpected("the answer is no list"));
    };
    // An incoming stream is a file of which nothing is known yet.
    let processes = entries.into_iter().filter_map(|entry| match entry {
        Entry::Process(process) => Some(*process),
        Entry::Stream(_) => None,
    });
    Ok(processes.collect())
}

impl View {
    fn new(args: &Args, style: Style) -> View {
        View {
            page: args.process.map_or(Page::Processes, Page::Sites),
            sort: args.sort,
            site_sort: SiteSort::Live,
            selected: 0,
            selected_site: 0,
            scroll: 0,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            shows_help: false,
            stops_program: false,
            style,
            processes: Vec::new(),
            details: None,
            holders: None,
            history: History::default(),
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
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Enter if self.is_typing => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Esc if self.is_typing => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Char(character) if self.is_typing => self.filter.push(character),
            _ if self.is_typing => {}
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.select(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|row| row + 1),
            code => return self.page_key(code),
        }
        self.select(|row| row);
        Action::Draw
    }

    /// Handles a key whose meaning depends on the page.
    fn page_key(&mut self, code: KeyCode) -> Action {
        match (self.page, code) {
            (Page::Processes, KeyCode::Char('l')) => self.sort = Sort::Live,
            (Page::Processes, KeyCode::Char('r')) => self.sort = Sort::Rate,
            (Page::Processes, KeyCode::Char('g')) => self.sort = Sort::Growth,
            (Page::Processes, KeyCode::Char('x')) => self.sort = Sort::Lost,
            (Page::Processes, KeyCode::Char('/')) => (self.is_typing, self.filter) = (true, String::new()),
            (Page::Processes, KeyCode::Enter) => {
                if let Some(process) = self.shown().get(self.selected) {
                    self.page = Page::Sites(process.pid);
                    (self.details, self.history, self.selected_site) = (None, History::default(), 0);
                    return Action::Query;
                }
            }
            (Page::Sites(_), KeyCode::Char('l')) => self.site_sort = SiteSort::Live,
            (Page::Sites(_), KeyCode::Char('g')) => self.site_sort = SiteSort::Growth,
            (Page::Sites(_), KeyCode::Char('n')) => self.site_sort = SiteSort::Blocks,
            (Page::Sites(_), KeyCode::Char('a')) => self.site_sort = SiteSort::Allocated,
            (Page::Sites(pid), KeyCode::Enter) => {
                let order = self.details.as_ref().map(|details| (self.order(details), details));
                let site = order
                    .and_then(|(order, details)| Some(details.call_sites.get(*order.get(self.selected_site)?)?.site));
                if let Some(site) = site {
                    (self.page, self.scroll) = (Page::Stack(pid, site), 0);
                }
            }
            (Page::Processes, KeyCode::Char('w')) => {
                if let Some(process) = self.shown().get(self.selected) {
                    return self.ask_holders(process.pid);
                }
            }
            (Page::Sites(pid), KeyCode::Char('w')) => return self.ask_holders(pid),
            (Page::Holders(pid), KeyCode::Char('w')) => return self.ask_holders(pid),
            (Page::Holders(pid), KeyCode::Esc | KeyCode::Char('b')) => {
                self.page = Page::Sites(pid);
                return Action::Query;
            }
            (Page::Sites(_), KeyCode::Esc | KeyCode::Char('b')) => (self.page, self.details) = (Page::Processes, None),
            (Page::Stack(pid, _), KeyCode::Esc | KeyCode::Char('b')) => self.page = Page::Sites(pid),
            _ => {}
        }
        Action::Draw
    }

    fn ask_holders(&mut self, pid: u32) -> Action {
        (self.page, self.scroll, self.holders) = (Page::Holders(pid), 0, None);
        Action::AskHolders(pid)
    }

    /// Moves the selected row of the page, or scrolls the text.
    fn select(&mut self, to: impl Fn(usize) -> usize) {
        let sites = self.details.as_ref().map_or(0, |details| details.call_sites.len());
        match self.page {
            Page::Processes => self.selected = to(self.selected).min(self.shown().len().saturating_sub(1)),
            Page::Sites(_) => self.selected_site = to(self.selected_site).min(sites.saturating_sub(1)),
            Page::Stack(..) | Page::Holders(_) => {
                self.scroll = u16::try_from(to(self.scroll.into())).unwrap_or(u16::MAX)
            }
        }
    }

    /// Queries the daemon for the processes, and for the call sites of the one that is shown.
    fn query(&mut self, control: &Control) -> anyhow::Result<()> {
        self.take(list(control)?);
        let (Page::Sites(pid) | Page::Stack(pid, _)) = self.page else { return Ok(()) };
        if self.has(pid) {
            let request = Request::Show { which: Which(pid.to_string()), sites: MAX_SITES };
            match control.ask(&request) {
                Ok(Response::Show(mut details)) => {
                    let is_complete = (details.call_sites.len() as u64) < MAX_SITES;
                    let label = |site: &CallSite| self.frames.named(pid, site, FRAMES).join(" < ");
                    details.call_sites = merged::merge(std::mem::take(&mut details.call_sites), label);
                    self.history.add(Instant::now(), &details.call_sites, if is_complete { u64::MAX } else { 0 });
                    self.details = Some(*details);
                }
                Ok(_) => return Err(control.unexpected("the answer is no process")),
                Err(error) => {
                    // It may have ended since it was listed.
                    self.take(list(control)?);
                    if self.has(pid) {
                        return Err(error);
                    }
                }
            }
        }
        if !self.has(pid) {
            (self.page, self.details) = (Page::Processes, None);
        }
        Ok(())
    }

    /// Returns whether the daemon records a process.
    fn has(&self, pid: u32) -> bool {
        self.processes.iter().any(|process| process.pid == pid)
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

    /// Returns the lines that `--once` prints.
    fn once(&mut self) -> Vec<String> {
        let mut lines = vec![screen::headline(self, u16::MAX)];
        match self.details.take() {
            Some(details) => {
                lines.extend(self.site_lines(&details));
                self.details = Some(details);
            }
            None => lines.extend(self.process_lines()),
        }
        lines
    }

    /// Returns the table of processes.
    fn process_lines(&self) -> Vec<String> {
        let columns = [
            Column::Right("PID"),
            Column::Left("NAME"),
            Column::Left("MODE"),
            Column::Right("RSS"),
            Column::Right("LIVE"),
            Column::Right("ALLOCS/S"),
            Column::Right("BYTES/S"),
            Column::Right("GROWTH"),
            Column::Right("LOST"),
        ];
        let shown = self.shown();
        let rows = shown.iter().map(|process| {
            vec![
                process.pid.to_string(),
                process.name.clone(),
                mode(&process.mode),
                resident(process),
                live_bytes(process),
                count(process.allocs_a_second),
                bytes(process.bytes_a_second),
                growth(process),
                count(process.lost),
            ]
        });
        table::lines(&columns, rows)
    }

    /// Returns the call sites of a process.
    fn site_lines(&mut self, details: &Details) -> Vec<String> {
        let process = &details.process;
        let growing = match has_growth(process) {
            true => format!("{} sites grow", count(process.sites_growing)),
            false => "growing sites: – (after 1 min)".into(),
        };
        let mut lines = vec![format!(
            "{} ({})  {}  {} resident  {} live in {}  {growing}",
            clean(&process.name),
            process.pid,
            clean(&mode(&process.mode)),
            resident(process),
            live_bytes(process),
            counted(process.live_blocks, "block")
        )];
        if let Some(parts) = resident_parts(process) {
            lines.push(format!("resident at its last snapshot: {parts}"));
        }
        let columns = [
            Column::Right("LIVE"),
            Column::Right("BLOCKS"),
            Column::Right("ALLOCATED"),
            Column::Left("CALL SITE < ITS CALLERS"),
        ];
        let rows = details.call_sites.iter().map(|site| {
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
mod tests;
