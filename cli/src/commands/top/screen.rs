//! What `top` draws: the table of processes, the call sites of one, a whole stack, who holds what, the keys.

use super::{Page, SiteSort, Sort, View};
use crate::control::{growth, has_growth, live_bytes, mode, resident, resident_parts, signed_bytes};
use heaptape_analyzer::text::{bytes, clean, count, counted};
use heaptape_daemon::protocol::Process;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

/// A column of a table: title, width, and whether it is aligned to the right.
struct Column {
    title: &'static str,
    width: u16,
    is_number: bool,
    /// Least width of the terminal at which the column is shown.
    from: u16,
}

const fn number(title: &'static str, width: u16) -> Column {
    Column { title, width, is_number: true, from: 0 }
}

const fn text(title: &'static str, width: u16) -> Column {
    Column { title, width, is_number: false, from: 0 }
}

/// Columns of the processes. At 80 columns all of the important ones fit; the others need more.
const PROCESSES: [Column; 9] = [
    number("PID", 8),
    text("NAME", 16),
    number("LIVE", 10),
    number("GROWTH", 10),
    number("ALLOCS/S", 10),
    number("LOST", 7),
    text("MODE", 13),
    Column { from: 96, ..number("BYTES/S", 10) },
    Column { from: 116, ..text("LIVE OVER TIME", 30) },
];

/// Columns of the call sites of a process.
const SITES: [Column; 5] = [
    number("LIVE", 9),
    number("GROWTH", 10),
    number("BLOCKS", 9),
    number("ALLOCATED", 10),
    text("CALL SITE < ITS CALLERS", 0),
];

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything that the screen shows.
pub(super) fn draw(view: &mut View, frame: &mut Frame<'_>) {
    let [head, body, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Line::styled(headline(view, head.width), BOLD), head);
    let help = match view.page {
        Page::Processes => {
            processes(view, frame, body);
            "↵ sites  / filter  l live  g growth  r rate  x lost  p pause  ? help"
        }
        Page::Sites(_) => {
            sites(view, frame, body);
            "b back  ↵ stack  w holders  l live  g growth  n blocks  a bytes  ? help"
        }
        Page::Stack(..) => {
            stack(view, frame, body);
            "Esc back  ↑ ↓ scroll  ? help"
        }
        Page::Holders(_) => {
            holders(view, frame, body);
            "Esc back  ↑ ↓ scroll  w ask again  ? help"
        }
    };
    let quit = if view.stops_program { "q stop" } else { "q quit" };
    let keys_line =
        if view.is_typing { format!("filter: {}_", clean(&view.filter)) } else { format!("{quit}  {help}") };
    frame.render_widget(Line::styled(keys_line, SELECTED), keys);
    if view.shows_help {
        keys_of_all(frame);
    }
}

/// Returns the sums of the processes that are shown, as much as fits into the width.
pub(super) fn headline(view: &View, width: u16) -> String {
    let shown = view.shown();
    let sum = |value: fn(&Process) -> u64| shown.iter().map(|process| value(process)).fold(0, u64::saturating_add);
    // Only processes that have been recorded for a minute have a growth.
    let grown: Vec<i64> = shown.iter().filter(|process| has_growth(process)).map(|process| process.growth).collect();
    let grown = match grown.is_empty() {
        true => "growth – (after 1 min)".to_owned(),
        false => format!("growth {}", signed_bytes(grown.into_iter().fold(0, i64::saturating_add))),
    };
    let parts = [
        format!("heaptape  {}", counted(shown.len() as u64, "process")),
        format!(
            "{}{} live",
            if shown.iter().all(|process| process.live_since_unix_ns.is_none()) { "" } else { "≥ " },
            bytes(sum(|process| process.live_bytes))
        ),
        grown,
        format!("{} lost", count(sum(|process| process.lost))),
        if view.is_paused { "paused".to_owned() } else { String::new() },
        format!("{} allocations/s", count(sum(|process| process.allocs_a_second))),
    ];
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let longer = if line.is_empty() { part.clone() } else { format!("{line}  {part}") };
        if !line.is_empty() && longer.chars().count() > usize::from(width) {
            break;
        }
        line = longer;
    }
    line
}

/// The rows of a table, the title of the column that they are sorted by, and the selected one.
struct Rows {
    rows: Vec<Vec<String>>,
    sorted: &'static str,
    selected: usize,
}

/// Draws a table with the selected row among those that fit.
fn table(frame: &mut Frame<'_>, area: Rect, columns: &[&Column], rows: Rows) {
    let Rows { rows, sorted, selected } = rows;
    let cell = |column: &Column, value: String| {
        let line = Line::from(clean(&value).into_owned());
        Cell::from(if column.is_number { line.right_aligned() } else { line })
    };
    let head = Row::new(
        columns
            .iter()
            .map(|column| cell(column, format!("{}{}", column.title, if column.title == sorted { "↓" } else { "" }))),
    )
    .style(BOLD);
    let rows = rows.into_iter().map(|row| Row::new(columns.iter().zip(row).map(|(column, value)| cell(column, value))));
    let widths = columns.iter().map(|column| match column.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let table = Table::new(rows, widths).header(head).column_spacing(1).row_highlight_style(SELECTED);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(selected)));
}

fn processes(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let fits =
        |column: &Column| column.from <= area.width && (column.title != "LIVE OVER TIME" || view.style.block_elements);
    let columns: Vec<&Column> = PROCESSES.iter().filter(|column| fits(column)).collect();
    let sorted = match view.sort {
        Sort::Live => "LIVE",
        Sort::Rate => "ALLOCS/S",
        Sort::Growth => "GROWTH",
        Sort::Lost => "LOST",
    };
    let shown = view.shown();
    let row = |process: &&Process| {
        let all = [
            process.pid.to_string(),
            process.name.clone(),
            live_bytes(process),
            growth(process),
            count(process.allocs_a_second),
            count(process.lost),
            mode(&process.mode),
            bytes(process.bytes_a_second),
            view.spark(process.pid),
        ];
        PROCESSES.iter().zip(all).filter(|(column, _)| fits(column)).map(|(_, value)| value).collect()
    };
    if shown.is_empty() {
        let why = match view.filter.is_empty() {
            true => {
                "No process is recorded. A program is, if it starts with LD_PRELOAD and HEAPTAPE_SOCKET: heaptape daemon env"
            }
            false => "No process matches the filter. / and Esc end it.",
        };
        frame.render_widget(Paragraph::new(why).wrap(Wrap { trim: true }), area);
        return;
    }
    table(frame, area, &columns, Rows { rows: shown.iter().map(row).collect(), sorted, selected: view.selected });
}

fn sites(view: &mut View, frame: &mut Frame<'_>, area: Rect) {
    let Some(details) = view.details.take() else { return };
    let process = &details.process;
    let parts = resident_parts(process);
    let lines = [1, u16::from(parts.is_some())].map(Constraint::Length);
    let [head, memory, body] = Layout::vertical([lines[0], lines[1], Constraint::Fill(1)]).areas(area);
    if let Some(parts) = parts {
        frame.render_widget(Line::from(format!("{} resident: {parts}", resident(process))), memory);
    }
    let seconds = view.history.seconds();
    let line = format!(
        "{} ({})  {}  {} live in {}  site growth: {}",
        clean(&process.name),
        process.pid,
        clean(&mode(&process.mode)),
        live_bytes(process),
        counted(process.live_blocks, "block"),
        if seconds == 0 { "– (from now)".to_owned() } else { format!("last {seconds} s") },
    );
    frame.render_widget(Line::from(line), head);
    let order = view.order(&details);
    let columns: Vec<&Column> = SITES.iter().collect();
    let rows = order.iter().map(|&index| {
        let site = &details.call_sites[index];
        let grown = view.history.growth(site).map_or_else(|| "–".to_owned(), signed_bytes);
        let names = view.frames.named(process.pid, site, super::FRAMES).join(" < ");
        vec![bytes(site.live_bytes), grown, count(site.live_blocks), bytes(site.bytes), names]
    });
    let sorted = match view.site_sort {
        SiteSort::Live => "LIVE",
        SiteSort::Growth => "GROWTH",
        SiteSort::Blocks => "BLOCKS",
        SiteSort::Allocated => "ALLOCATED",
    };
    table(frame, body, &columns, Rows { rows: rows.collect(), sorted, selected: view.selected_site });
    view.details = Some(details);
}

fn stack(view: &mut View, frame: &mut Frame<'_>, area: Rect) {
    let Page::Stack(pid, number) = view.page else { return };
    let Some(details) = view.details.take() else { return };
    if let Some(site) = details.call_sites.iter().find(|site| site.site == number) {
        let mut lines = vec![
            Line::from(format!(
                "{} live in {}, {} allocated in {}",
                bytes(site.live_bytes),
                counted(site.live_blocks, "block"),
                bytes(site.bytes),
                counted(site.allocs, "allocation")
            )),
            Line::default(),
        ];
        // Every frame, outermost last.
        lines.extend(view.frames.named(pid, site, usize::MAX).iter().map(|name| Line::from(clean(name).into_owned())));
        view.scroll = view.scroll.min(lines.len().saturating_sub(1) as u16);
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((view.scroll, 0)), area);
    } else {
        frame.render_widget(Line::from("This call site is no longer among the largest. Esc goes back."), area);
    }
    view.details = Some(details);
}

/// Draws who holds the live blocks of a process.
fn holders(view: &mut View, frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = match &view.holders {
        Some(lines) => lines.iter().map(|line| Line::from(clean(line).into_owned())).collect(),
        None => vec![Line::from("Reading which block holds which, in a copy of the process …")],
    };
    view.scroll = view.scroll.min(lines.len().saturating_sub(1) as u16);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((view.scroll, 0)), area);
}

/// Draws the keys and terms above the view.
fn keys_of_all(frame: &mut Frame<'_>) {
    let lines = [
        "↑ ↓ (k j)      select a row",
        "Enter          the call sites of a process; the whole stack of a site",
        "w              who holds the live blocks of a process",
        "Esc, b         back",
        "/              filter processes by name; Esc ends it",
        "l g r x        sort processes by live bytes, growth, rate, lost events",
        "l g n a        sort sites by live bytes, growth, blocks, allocated bytes",
        "p              pause",
        "q, Ctrl-C      quit; of record --live: stop the program, again: kill it",
        "",
        "LIVE           bytes that are allocated and not freed",
        "GROWTH         change of LIVE: of a process in the last minute,",
        "               of a site since it is watched, at most one minute",
        "LOST           events that were dropped for want of space",
        "≥              the start of the process was not recorded",
    ];
    let area = frame.area();
    // With the frame.
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 2;
    let (width, height) = (widest.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let area = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" Keys (any key closes this) ")), area);
}

impl View {
    /// Returns the indexes of the call sites in the order of the view.
    pub(super) fn order(&self, details: &heaptape_daemon::protocol::Details) -> Vec<usize> {
        let key = |index: &usize| {
            let site = &details.call_sites[*index];
            match self.site_sort {
                SiteSort::Live => i128::from(site.live_bytes),
                SiteSort::Growth => self.history.growth(site).map_or(i128::MIN, i128::from),
                SiteSort::Blocks => i128::from(site.live_blocks),
                SiteSort::Allocated => i128::from(site.bytes),
            }
        };
        let mut order: Vec<usize> = (0..details.call_sites.len()).collect();
        order.sort_by_key(|index| (std::cmp::Reverse(key(index)), *index));
        order
    }
}
