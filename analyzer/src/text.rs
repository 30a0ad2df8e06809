//! Text for terminals. All output goes through a [`Screen`], which replaces control characters with
//! [`clean`], so no string of a recording can color, move or hide anything on the terminal.

mod lines;
mod names;
mod numbers;
mod sanitize;

pub use lines::wrapped;
use lines::{break_lines, wrap};
pub use names::shorten;
pub(crate) use names::{own_name, without_arguments};
pub use numbers::{bytes, count, counted, duration, percent};
pub use sanitize::{SanitizingWriter, clean, clean_columns, clean_name};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Properties of the terminal that text is laid out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether headings and warnings are colored.
    pub color: bool,
    /// Whether charts may use Unicode block elements.
    pub block_elements: bool,
    /// Width of a line in columns.
    pub width: usize,
    /// Whether longer lines are wrapped between words, as on a terminal. Otherwise they stay whole,
    /// for programs that read them.
    pub wraps: bool,
}

/// Width of output that does not go to a terminal.
const DEFAULT_WIDTH: usize = 110;
/// Width of a line for which reports are laid out at least, in columns.
const MIN_WIDTH: usize = 60;
/// Width of a line that reports use at most, in columns.
const MAX_WIDTH: usize = 400;

impl Style {
    /// The style without color, with a fixed width.
    pub const PLAIN: Style = Style { color: false, block_elements: false, width: DEFAULT_WIDTH, wraps: false };

    /// Returns the style for standard output. It has color on terminals only, and not if `NO_COLOR`
    /// is set.
    pub fn of_stdout() -> Style {
        Style::of(io::stdout().is_terminal(), terminal_size::terminal_size_of(io::stdout()))
    }

    /// Returns the style for standard error.
    pub fn of_stderr() -> Style {
        Style::of(io::stderr().is_terminal(), terminal_size::terminal_size_of(io::stderr()))
    }

    fn of(is_terminal: bool, size: Option<(terminal_size::Width, terminal_size::Height)>) -> Style {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let width = size.map(|(terminal_size::Width(width), _)| usize::from(width)).filter(|_| is_terminal);
        let width = width_of(std::env::var("COLUMNS").ok().as_deref(), width);
        // The first variable that is set decides, as in the C library.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        let is_utf8 = locale.is_some_and(|locale| locale.to_ascii_lowercase().replace('-', "").ends_with("utf8"));
        let (color, block_elements) = (is_terminal && !forbidden && !dumb, is_terminal && !dumb && is_utf8);
        Style { color, block_elements, width, wraps: is_terminal }
    }
}

/// Returns the width of lines: that of the variable `COLUMNS` if it is a number, else that of the
/// terminal.
fn width_of(columns: Option<&str>, terminal: Option<usize>) -> usize {
    let columns = columns.and_then(|columns| columns.parse().ok()).filter(|&columns: &usize| columns > 0);
    columns.or(terminal).map_or(DEFAULT_WIDTH, |width| width.clamp(MIN_WIDTH, MAX_WIDTH))
}

/// The color of a span of text, on a terminal that shows colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// The color of the terminal's own text.
    Plain,
    /// Bold, for headings and verdicts.
    Bold,
    /// Faint, for what matters little.
    Faint,
    /// Bold red, for what is wrong.
    Red,
    /// Yellow, for what may be wrong.
    Yellow,
}

impl Color {
    /// Returns the parameters of the escape sequence; empty for plain text.
    const fn code(self) -> &'static str {
        match self {
            Color::Plain => "",
            Color::Bold => "1",
            Color::Faint => "2",
            Color::Red => "1;31",
            Color::Yellow => "33",
        }
    }
}

/// The output of a text report.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    pub style: Style,
    /// Whether names in tables are printed in full.
    full_names: bool,
}

impl<'a> Screen<'a> {
    /// Creates a screen that prints to `out`.
    pub fn new(out: &'a mut dyn Write, style: Style) -> Self {
        Screen { out, style, full_names: false }
    }

    /// Returns the screen with names in tables in full, if `full_names` is set.
    #[must_use]
    pub(crate) fn with_names(mut self, full_names: bool) -> Self {
        self.full_names = full_names;
        self
    }

    /// Prints a line with control characters replaced. A line feed is one of them: a thread may have
    /// one in its name, and its row would become two.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.spans(&[(Color::Plain, text.trim_end())])
    }

    /// Prints a heading, in bold if the style has color.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn heading(&mut self, text: &str) -> io::Result<()> {
        self.spans(&[(Color::Bold, text)])
    }

    /// Prints a warning, in yellow if the style has color.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn warning(&mut self, text: &str) -> io::Result<()> {
        self.spans(&[(Color::Yellow, text)])
    }

    /// Prints a line of spans, in their colors if the style has color.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn spans(&mut self, spans: &[(Color, &str)]) -> io::Result<()> {
        let spans = spans.iter().map(|(color, text)| (*color, clean(text)));
        let spans: Vec<(Color, Cow<'_, str>)> = spans.collect();
        let (mut breaks, mut indent) = (Vec::new(), 0);
        if self.style.wraps {
            let line: String = spans.iter().map(|(_, text)| &**text).collect();
            (breaks, indent) = wrap(&line, self.style.width);
        }
        let (mut breaks, mut start) = (breaks.into_iter().peekable(), 0);
        for (color, text) in &spans {
            let out = break_lines(text, start, &mut breaks, indent);
            start += text.len();
            match self.style.color && *color != Color::Plain {
                true => write!(self.out, "\x1b[{}m{out}\x1b[0m", color.code())?,
                false => write!(self.out, "{out}")?,
            }
        }
        writeln!(self.out)
    }

    /// Prints an empty line.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn blank(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// Returns the columns that are left for the last column of a table, and whether its columns
    /// are one blank apart, since it would not fit with two.
    fn last_width(&self, header: &[&str], rows: &[Vec<String>]) -> (usize, bool) {
        const MIN_TEXT: usize = 20;
        const MIN_NARROW_TEXT: usize = 12;
        let width = |column: usize| {
            let titles = header.get(column).into_iter().flat_map(|title| title.lines());
            titles.map(|line| line.chars().count()).chain([cells_width(rows, column)]).max().unwrap_or(0)
        };
        let numbers = header.len().saturating_sub(1);
        let used: usize = (0..numbers).map(width).sum();
        let left = |blanks: usize| self.style.width.saturating_sub(used + blanks * (numbers + 1));
        let is_narrow = left(2) < width(numbers).min(MIN_TEXT);
        if is_narrow {
            (left(1).max(MIN_NARROW_TEXT), true)
        } else {
            (left(2).max(width(numbers).min(MIN_TEXT)), false)
        }
    }

    /// Prints a table whose last column has bars. `bar` returns the bar of a value that has at most
    /// a number of columns.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn bar_table(
        &mut self,
        header: &[&str],
        rows: Vec<(Vec<String>, u64)>,
        bar: impl Fn(u64, usize) -> String,
    ) -> io::Result<()> {
        const MAX_BAR: usize = 40;
        let (mut rows, values): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let width = self.last_width(header, &rows).0.min(MAX_BAR);
        rows.iter_mut().zip(values).for_each(|(row, value)| row.push(bar(value, width)));
        self.table(header, &rows)
    }

    /// Prints a table. The last column is a name, shortened to the remaining width. All others are
    /// numbers. A table without rows is not printed.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let full_names = self.full_names;
        self.print_table(header, rows, |cell, width| if full_names { cell.into() } else { shorten(cell, width) })
    }

    /// Prints a table whose last column explains. It is wrapped where lines are.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn prose_table(&mut self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let wraps = self.style.wraps;
        self.print_table(header, rows, |cell, width| if wraps { wrapped(cell, width) } else { cell.into() })
    }

    fn print_table(
        &mut self,
        header: &[&str],
        rows: &[Vec<String>],
        fit: impl Fn(&str, usize) -> String,
    ) -> io::Result<()> {
        use comfy_table::{CellAlignment, Table, presets::NOTHING};
        let Some((_, numbers)) = header.split_last() else { return Ok(()) };
        if rows.is_empty() {
            return Ok(());
        }
        let mut titles: Vec<String> = header.iter().map(|cell| clean(cell).into_owned()).collect();
        let (mut text_width, mut is_narrow) = self.last_width(header, rows);
        if is_narrow {
            for (column, title) in titles.iter_mut().enumerate().take(numbers.len()) {
                *title = stacked(title, cells_width(rows, column));
            }
            // All stand right above their columns.
            let height = titles.iter().map(|title| title.lines().count()).max().unwrap_or(0);
            for title in &mut titles {
                title.insert_str(0, &"\n".repeat(height - title.lines().count()));
            }
            let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
            (text_width, is_narrow) = self.last_width(&titles, rows);
        }
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(titles);
        for row in rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let cell = clean(cell);
                if column == numbers.len() { fit(&cell, text_width) } else { cell.into_owned() }
            });
            table.add_row(cells);
        }
        for index in 0..numbers.len() {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        if is_narrow {
            for column in table.column_iter_mut() {
                column.set_padding((1, 0));
            }
        }
        table.lines().try_for_each(|line| writeln!(self.out, "{}", clean(line.trim_end())))
    }
}

/// Returns the columns that the widest cell of a column takes.
fn cells_width(rows: &[Vec<String>], column: usize) -> usize {
    rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

/// Returns a title on as many lines as make it no wider than its column.
fn stacked(title: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in title.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.into()),
        }
    }
    lines.join("\n")
}

/// Returns the message of an error and those of its causes, as commands print it.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::sanitize::is_control;
    use super::*;

    #[test]
    fn control_characters_of_a_recording_do_not_reach_the_terminal() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Style { color: true, block_elements: true, width: 80, wraps: true });
        let hostile = "a\x1b[31mb\u{9b}1mc\x07\u{202e}d\u{200b}e\x7f\rf";
        screen.line(hostile).unwrap();
        screen.heading(hostile).unwrap();
        screen.table(&["n", "name"], &[vec![hostile.into(), hostile.into()]]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let own = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace('\n', "");
        assert!(!own.chars().any(is_control), "{own:?}");
        assert!(own.contains("a\u{fffd}[31mb"));
    }

    #[test]
    fn line_feed_in_a_name_makes_no_second_line() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Style::PLAIN);
        let hostile = "stack of thread 7 io\n1. growing: 9 B";
        screen.line(hostile).unwrap();
        screen.heading(hostile).unwrap();
        screen.table(&["n", "name"], &[vec!["1".into(), hostile.into()]]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.starts_with("stack of thread 7 io\u{fffd}1. growing: 9 B\n"), "{text}");
    }

    #[test]
    fn long_lines_are_wrapped_below_their_text() {
        for (line, expected) in [
            ("a short line", "a short line"),
            ("one two three four five six", "one two three four\n  five six"),
            ("    one two three four five", "    one two three\n      four five"),
            ("events   one two three four five", "events   one two\n         three four\n         five"),
            ("at /a/very/long/path/without/blanks is nothing", "at\n  /a/very/long/path/without/blanks\n  is nothing"),
            ("äöü äöü äöü äöü äöü", "äöü äöü äöü äöü äöü"),
            ("äöü äöü äöü äöü äöü äöü", "äöü äöü äöü äöü äöü\n  äöü"),
        ] {
            assert_eq!(wrapped(line, 20), expected, "{line}");
            let mut out = Vec::new();
            Screen::new(&mut out, Style { width: 20, wraps: true, ..Style::PLAIN }).line(line).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}\n"));
            let mut out = Vec::new();
            Screen::new(&mut out, Style { width: 20, ..Style::PLAIN }).line(line).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), format!("{line}\n"));
        }
    }

    #[test]
    fn colored_lines_are_wrapped_in_any_span() {
        let mut out = Vec::new();
        let style = Style { color: true, width: 20, wraps: true, ..Style::PLAIN };
        Screen::new(&mut out, style)
            .spans(&[(Color::Bold, "one two three"), (Color::Plain, " four five six")])
            .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1mone two three\x1b[0m four\n  five six\n");
    }

    #[test]
    fn tables_fit_into_narrow_terminals() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Style { width: 60, block_elements: true, ..Style::PLAIN });
        let row = |name: &str| [&["1,234,567"; 5][..], &[name]].concat().into_iter().map(str::to_owned).collect();
        screen.table(&["a", "b", "c", "d", "e", "name"], &[row("name (1)")]).unwrap();
        let numbers = || vec!["1,234,567".to_owned(); 3];
        let bar = |value: u64, width: usize| "█".repeat(value as usize * width / 100);
        screen.bar_table(&["a", "b", "c", ""], vec![(numbers(), 50), (numbers(), 100)], bar).unwrap();
        screen.table(&["n", "name"], &[]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("1,234,567 name (1)\n") && !text.contains('…'), "{text}");
        let bars: Vec<usize> = text.lines().map(|line| line.matches('█').count()).filter(|bar| *bar > 0).collect();
        assert!(bars[1].abs_diff(2 * bars[0]) <= 1, "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
    }

    #[test]
    fn titles_and_explanations_take_several_lines_in_narrow_terminals() {
        let print = |wraps: bool, width: usize| {
            let mut out = Vec::new();
            let mut screen = Screen::new(&mut out, Style { width, wraps, ..Style::PLAIN });
            let row = ["1,234,567", "8.00 KiB", "service.cpp:37"].map(str::to_owned);
            screen.table(&["blocks", "a pool would return", "allocated at"], &[row.to_vec()]).unwrap();
            let row = ["1.00 MiB", "memory of the process that never was a block"].map(str::to_owned);
            screen.prose_table(&["bytes", "what it is"], &[row.to_vec()]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            print(true, 40),
            "              a pool\n               would\n    blocks    return  allocated at\n 1,234,567  8.00 KiB  service.cpp:37\n    \
             bytes  what it is\n 1.00 MiB  memory of the process that\n             never was a block\n"
        );
        let wide = "    blocks  a pool would return  allocated at\n 1,234,567             8.00 KiB  service.cpp:37\n    bytes  what it \
                    is\n 1.00 MiB  memory of the process that never was a block\n";
        assert_eq!([print(true, 80), print(false, 60)], [wide, wide]);
    }

    #[test]
    fn columns_decides_the_width() {
        assert_eq!(width_of(Some("80"), None), 80);
        assert_eq!(width_of(Some("72"), Some(120)), 72);
        assert_eq!([width_of(Some("0"), Some(120)), width_of(Some("wide"), Some(120))], [120, 120]);
        assert_eq!([width_of(None, None), width_of(Some(""), None)], [DEFAULT_WIDTH, DEFAULT_WIDTH]);
        assert_eq!([width_of(Some("5"), None), width_of(Some("99999"), None)], [MIN_WIDTH, MAX_WIDTH]);
    }
}
