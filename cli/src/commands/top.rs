//! `heaptape top`: shows the daemon's processes live: live bytes, allocation rate, growth, and the
//! call sites of one process. It draws plain lines, which any terminal shows.

use super::ctl::{ask, cleaned, growth, has_growth, live_bytes, number, signed_bytes, text};
use super::frames::Frames;
use crate::Outcome;
use heaptape_analyzer::text::{bytes, count, counted};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

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
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Start with the call sites of this process
    #[arg(long, value_name = "PID")]
    process: Option<u64>,
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

struct View {
    sort: Sort,
    selected: usize,
    inside: Option<u64>,
    filter: String,
    is_typing: bool,
    is_paused: bool,
    past: BTreeMap<u64, VecDeque<u64>>,
    frames: Frames,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut view = View {
        sort: args.sort,
        selected: 0,
        inside: args.process,
        filter: String::new(),
        is_typing: false,
        is_paused: false,
        past: BTreeMap::new(),
        frames: Frames::default(),
    };
    let mut out = std::io::stdout().lock();
    if args.once || !out.is_terminal() {
        let (rows, screen) = view.update(&args.control, (100, usize::MAX))?;
        screen.iter().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
        return Ok(if rows == 0 { Outcome::NoAnswer } else { Outcome::Done });
    }
    let _raw = RawTerminal::enter();
    let keys = keys();
    let outcome = live(&mut view, &args, &keys, &mut out);
    write!(out, "\x1b[?25h\x1b[?1049l")?;
    out.flush()?;
    outcome.map(|()| Outcome::Done)
}

fn live(view: &mut View, args: &Args, keys: &Receiver<u8>, out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "\x1b[?1049h\x1b[?25l")?;
    let mut rows = 0;
    loop {
        if !view.is_paused {
            let size =
                terminal_size::terminal_size().map_or((100, 30), |(width, height)| (width.0.into(), height.0.into()));
            let (found, screen) = view.update(&args.control, size)?;
            rows = found;
            write!(out, "\x1b[H")?;
            for line in screen.iter().take(size.1.saturating_sub(1)) {
                let line: String = line.chars().take(size.0).collect();
                write!(out, "{line}\x1b[K\r\n")?;
            }
            write!(out, "\x1b[J")?;
            out.flush()?;
        }
        let key = match keys.recv_timeout(Duration::from_secs(args.delay)) {
            Ok(key) => key,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if !view.key(key, keys, rows) {
            return Ok(());
        }
    }
}

impl View {
    /// Handles a key. Returns false when the user quits.
    fn key(&mut self, key: u8, keys: &Receiver<u8>, rows: usize) -> bool {
        if self.is_typing {
            match key {
                b'\r' | b'\n' => self.is_typing = false,
                0x7f | 8 => drop(self.filter.pop()),
                0x1b => (self.is_typing, self.filter) = (false, String::new()),
                b' '..=b'~' => self.filter.push(char::from(key)),
                _ => {}
            }
            return true;
        }
        // An arrow key sends three bytes at once, Esc sends one.
        let key = if key == 0x1b {
            let next = || keys.recv_timeout(Duration::from_millis(20)).unwrap_or(0);
            match (next(), next()) {
                (b'[', b'A') => b'k',
                (b'[', b'B') => b'j',
                _ => b'b',
            }
        } else {
            key
        };
        match key {
            b'q' | 3 => return false,
            b'l' => self.sort = Sort::Live,
            b'r' => self.sort = Sort::Rate,
            b'g' => self.sort = Sort::Growth,
            b'x' => self.sort = Sort::Lost,
            b'k' => self.selected = self.selected.saturating_sub(1),
            b'j' => self.selected = (self.selected + 1).min(rows.saturating_sub(1)),
            b'\r' | b'\n' => self.inside = self.inside.or(Some(u64::MAX)),
            b'b' => self.inside = None,
            b'/' => (self.is_typing, self.filter) = (true, String::new()),
            b'p' => self.is_paused = !self.is_paused,
            _ => {}
        }
        true
    }

    /// Queries the daemon. Returns the number of rows and the lines of the screen.
    fn update(&mut self, control: &Option<PathBuf>, size: (usize, usize)) -> anyhow::Result<(usize, Vec<String>)> {
        let answer = ask(control.clone(), &json!({ "word": "list" }))?;
        let mut rows: Vec<Value> = answer.as_array().cloned().unwrap_or_default();
        // An incoming stream is a file of which nothing is known yet.
        rows.retain(|row| row["received"].is_null());
        for row in &rows {
            let past = self.past.entry(number(row, "pid")).or_default();
            past.push_back(number(row, "live_bytes"));
            if past.len() > PAST {
                past.pop_front();
            }
        }
        self.past.retain(|pid, _| rows.iter().any(|row| number(row, "pid") == *pid));
        rows.retain(|row| text(row, "name").contains(&self.filter));
        let by = |row: &Value| match self.sort {
            Sort::Live => number(row, "live_bytes") as i64,
            Sort::Rate => number(row, "allocs_a_second") as i64,
            Sort::Growth => row["growth"].as_i64().unwrap_or(0),
            Sort::Lost => number(row, "lost") as i64,
        };
        rows.sort_by_key(|row| (std::cmp::Reverse(by(row)), number(row, "pid")));
        self.selected = self.selected.min(rows.len().saturating_sub(1));
        if self.inside == Some(u64::MAX) {
            self.inside = rows.get(self.selected).map(|row| number(row, "pid"));
        }
        let mut screen = Vec::new();
        let sum = |key: &str| rows.iter().map(|row| number(row, key)).sum::<u64>();
        let note = if self.is_typing { format!("  filter: {}_", self.filter) } else { String::new() };
        // Only processes that have been recorded for a minute have a growth.
        let grown: Vec<&Value> = rows.iter().filter(|row| has_growth(row)).collect();
        let grown = if grown.is_empty() {
            "growth – (after 1 min)".to_owned()
        } else {
            let sum = grown.iter().filter_map(|row| row["growth"].as_i64()).fold(0, i64::saturating_add);
            format!("growth {}", signed_bytes(sum))
        };
        screen.push(format!(
            "heaptape  {}  {}{} live  {grown}  {} allocations/s  {} lost{note}",
            counted(rows.len() as u64, "process"),
            if rows.iter().all(|row| row["live_since_unix_ns"].is_null()) { "" } else { "≥ " },
            bytes(sum("live_bytes")),
            count(sum("allocs_a_second")),
            count(sum("lost"))
        ));
        match self.inside {
            Some(pid) if rows.iter().any(|row| number(row, "pid") == pid) => {
                self.sites(control, pid, size, &mut screen)?
            }
            Some(_) => self.inside = None,
            None => self.processes(&rows, size, &mut screen),
        }
        Ok((rows.len(), screen))
    }

    fn processes(&self, rows: &[Value], size: (usize, usize), screen: &mut Vec<String>) {
        screen.push(format!(
            "  {:>8} {:<16} {:<13} {:>10} {:>10} {:>10} {:>10} {:>8}  LAST {PAST}",
            "PID", "NAME", "MODE", "LIVE", "ALLOCS/S", "BYTES/S", "GROWTH", "LOST"
        ));
        let fits = size.1.saturating_sub(4).max(1);
        let first = self.selected.saturating_sub(fits - 1);
        for (index, row) in rows.iter().enumerate().skip(first).take(fits) {
            let line = self.past.get(&number(row, "pid")).map(spark).unwrap_or_default();
            screen.push(format!(
                "{} {:>8} {:<16} {:<13} {:>10} {:>10} {:>10} {:>10} {:>8}  {line}",
                if index == self.selected { '>' } else { ' ' },
                number(row, "pid"),
                text(row, "name"),
                text(row, "mode"),
                live_bytes(row),
                count(number(row, "allocs_a_second")),
                bytes(number(row, "bytes_a_second")),
                growth(row),
                count(number(row, "lost"))
            ));
        }
    }

    fn sites(
        &mut self,
        control: &Option<PathBuf>,
        pid: u64,
        size: (usize, usize),
        screen: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let answer = ask(control.clone(), &json!({ "word": "show", "which": pid.to_string(), "sites": 50 }))?;
        let line = self.past.get(&pid).map(spark).unwrap_or_default();
        let grow = if has_growth(&answer) {
            format!("{} sites grow", number(&answer, "sites_growing"))
        } else {
            "growing sites: – (after 1 min)".into()
        };
        screen.push(format!(
            "{} ({pid})  {}  {} live in {} blocks  {grow}  {line}",
            text(&answer, "name"),
            text(&answer, "mode"),
            live_bytes(&answer),
            count(number(&answer, "live_blocks"))
        ));
        screen.push(format!("{:>10} {:>10} {:>12}  CALL SITE", "LIVE", "BLOCKS", "ALLOCATED"));
        for site in answer["call_sites"].as_array().into_iter().flatten().take(size.1.saturating_sub(5)) {
            let frames = self.frames.named(site, 3);
            let names: Vec<String> = frames.iter().map(|frame| cleaned(frame)).collect();
            screen.push(format!(
                "{:>10} {:>10} {:>12}  {}",
                bytes(number(site, "live_bytes")),
                count(number(site, "live_blocks")),
                bytes(number(site, "bytes")),
                names.join(" < ")
            ));
        }
        Ok(())
    }
}

/// Draws live bytes as a sparkline of eight heights.
fn spark(past: &VecDeque<u64>) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (least, most) = (past.iter().min().copied().unwrap_or(0), past.iter().max().copied().unwrap_or(0));
    let height = |value: &u64| HEIGHTS[((value - least) as u128 * 7 / u128::from((most - least).max(1))) as usize];
    past.iter().map(height).collect()
}

/// Makes the terminal pass on each key at once, and restores its settings when dropped. It runs
/// `stty`, which every system has.
struct RawTerminal(Option<String>);

impl RawTerminal {
    fn enter() -> RawTerminal {
        let before = stty(&["-g"]).map(|text| text.trim().to_owned());
        if before.is_some() {
            stty(&["-icanon", "-echo", "min", "1"]);
        }
        RawTerminal(before)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.0.iter().for_each(|before| drop(stty(&[before.as_str()])));
    }
}

fn stty(args: &[&str]) -> Option<String> {
    let output = Command::new("stty").args(args).stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn keys() -> Receiver<u8> {
    let (sends, keys) = channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count == 1) && sends.send(byte[0]).is_ok() {}
    });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_use_the_whole_height() {
        assert_eq!(spark(&VecDeque::from([0, 7, 14, 0])), "▁▄█▁");
        assert_eq!(spark(&VecDeque::from([5, 5])), "▁▁");
        assert_eq!(spark(&VecDeque::from([0, u64::MAX])), "▁█");
    }
}
