//! Text for terminals. All output goes through a [`Screen`], which replaces control characters with
//! [`clean`], so no string of a recording can color, move or hide anything on the terminal.

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

/// Most columns before the text of a line that starts with a label.
const MAX_LABEL: usize = 24;

/// Returns the offsets of the blanks at which a line is wrapped so that it fits into `width`
/// columns, and the indentation of the further lines. They begin below the text of the first line,
/// also if that has a label before its text. A longer word stays whole.
pub fn wrap(line: &str, width: usize) -> (Vec<usize>, usize) {
    if line.len() <= width || line.chars().count() <= width {
        return (Vec::new(), 0);
    }
    let leading = line.len() - line.trim_start_matches(' ').len();
    let label_end = line[leading..].find("  ").map(|at| leading + at);
    let text = label_end.map(|at| line.len() - line[at..].trim_start_matches(' ').len());
    let labeled = text.map(|text| (text, line[..text].chars().count())).filter(|(_, columns)| *columns <= MAX_LABEL);
    let (start, indent) = labeled.unwrap_or((leading, leading + 2));
    let (mut breaks, mut column, mut last_blank) = (Vec::new(), line[..start].chars().count(), None);
    for (offset, c) in line[start..].char_indices() {
        if c == ' ' {
            last_blank = Some((start + offset, column));
        }
        column += 1;
        if column > width
            && let Some((blank, at)) = last_blank.take()
        {
            breaks.push(blank);
            column = indent + column - at - 1;
        }
    }
    (breaks, indent)
}

/// Returns a line wrapped to `width` columns: see [`wrap`].
pub fn wrapped(line: &str, width: usize) -> String {
    let (breaks, indent) = wrap(line, width);
    let mut out = String::with_capacity(line.len() + breaks.len() * indent);
    let mut from = 0;
    for at in breaks {
        out += &line[from..at];
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent));
        from = at + 1;
    }
    out + &line[from..]
}

/// Returns whether a character may control a terminal: C0, DEL, C1, and the Unicode characters that
/// reorder, join or hide text.
const fn is_control(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text with each control character replaced by `\u{fffd}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_control) {
        Cow::Owned(text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the text of a name in a file with control characters and invalid UTF-8 replaced by
/// `\u{fffd}`.
pub fn clean_name(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) => clean(text),
        Err(_) => Cow::Owned(clean(&String::from_utf8_lossy(name)).into_owned()),
    }
}

/// Returns the text with control characters replaced by `\u{fffd}`, except tabs.
pub fn clean_columns(text: &str) -> String {
    text.split('\t').map(clean).collect::<Vec<_>>().join("\t")
}

/// Control characters that [`SanitizingWriter`] keeps. gprof prints form feeds between listings.
const KEPT: [char; 3] = ['\n', '\t', '\x0c'];

/// A writer that replaces control characters like [`clean`], except line feeds, tabs and form
/// feeds.
pub struct SanitizingWriter<W> {
    out: W,
    /// The first bytes of a character whose rest has not been written yet.
    incomplete: Vec<u8>,
}

impl<W: Write> SanitizingWriter<W> {
    /// Creates a writer to `out`.
    pub const fn new(out: W) -> Self {
        SanitizingWriter { out, incomplete: Vec::new() }
    }
}

impl<W: Write> Write for SanitizingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_clean_bytes(bytes, &mut self.incomplete, &mut self.out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            write_clean("\u{fffd}", &mut self.out)?;
        }
        self.out.flush()
    }
}

fn write_clean(text: &str, out: &mut dyn Write) -> io::Result<()> {
    for segment in text.split_inclusive(KEPT) {
        let end = segment.len() - usize::from(segment.ends_with(KEPT));
        out.write_all(clean(&segment[..end]).as_bytes())?;
        out.write_all(&segment.as_bytes()[end..])?;
    }
    Ok(())
}

/// Writes bytes without control characters. `incomplete` is the start of a character, before and
/// after them.
fn write_clean_bytes(bytes: &[u8], incomplete: &mut Vec<u8>, out: &mut dyn Write) -> io::Result<()> {
    if incomplete.is_empty() && bytes.iter().all(|byte| matches!(byte, b'\n' | b'\t' | b'\x0c' | b' '..=b'~')) {
        return out.write_all(bytes);
    }
    incomplete.extend_from_slice(bytes);
    let pending = std::mem::take(incomplete);
    for chunk in pending.utf8_chunks() {
        write_clean(chunk.valid(), out)?;
        let invalid = chunk.invalid();
        // An incomplete character can only be at the end. It has at most three bytes.
        if !invalid.is_empty()
            && pending.ends_with(invalid)
            && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none())
        {
            incomplete.extend_from_slice(invalid);
        } else if !invalid.is_empty() {
            write_clean("\u{fffd}", out)?;
        }
    }
    Ok(())
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
    /// The style of the text.
    pub style: Style,
}

impl<'a> Screen<'a> {
    /// Creates a screen that prints to `out`.
    pub fn new(out: &'a mut dyn Write, style: Style) -> Self {
        Screen { out, style }
    }

    /// Prints a line with control characters replaced. Line feeds in it are kept.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        text.split('\n').try_for_each(|line| self.spans(&[(Color::Plain, line.trim_end())]))
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
            let (mut out, mut from) = (String::with_capacity(text.len()), 0);
            while let Some(at) = breaks.next_if(|at| *at < start + text.len()) {
                out += &text[from..at - start];
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                from = at - start + 1;
            }
            out += &text[from..];
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
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain(header.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
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

    /// Prints a table whose last column has bars. `bar` returns the one for a value, in at most so
    /// many columns.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn bar_table(
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

    /// Prints a table. The last column is text, shortened to the remaining width. All others are
    /// numbers. A table without rows is not printed.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        use comfy_table::{CellAlignment, Table, presets::NOTHING};
        let Some((_, numbers)) = header.split_last() else { return Ok(()) };
        if rows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(header.iter().map(|cell| clean(cell).into_owned()));
        let (text_width, is_narrow) = self.last_width(header, rows);
        for row in rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let cell = clean(cell);
                if column == numbers.len() { shorten(&cell, text_width) } else { cell.into_owned() }
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

/// Returns a name with its template arguments replaced by `with`. If the angle brackets do not
/// match, the name is returned unchanged.
pub fn without_arguments(name: &str, with: &str) -> String {
    let (out, is_balanced) = replace_arguments(name, with);
    if is_balanced { out } else { name.to_string() }
}

/// Replaces outermost pairs of angle brackets with their content. Returns the result, and whether
/// each opened bracket is closed.
fn replace_arguments(text: &str, with: &str) -> (String, bool) {
    let mut depth = 0u32;
    let mut out = String::new();
    let mut previous = ' ';
    for (offset, c) in text.char_indices() {
        // `operator<`, `operator<<`, `->`, and ` < ` between frames are not brackets.
        let is_operator = text[..offset].trim_end_matches('<').ends_with("operator");
        let opens = c == '<' && previous != ' ' && !is_operator;
        let closes = c == '>' && previous != '-' && depth > 0;
        if opens && depth == 0 {
            out.push_str(with);
        }
        depth += u32::from(opens);
        if depth == 0 {
            out.push(c);
        }
        depth -= u32::from(closes);
        previous = c;
    }
    (out, depth == 0)
}

/// Shortens a text to at most `width` characters: first it removes template arguments, then the
/// end.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let (out, is_balanced) = replace_arguments(text, "<…>");
    let count = out.chars().count();
    if !is_balanced || count > width {
        let out = if is_balanced { &out } else { text };
        let keep: String = out.chars().take(width.saturating_sub(1)).collect();
        return keep + "…";
    }
    out
}

/// Formats a number of bytes with three significant digits and a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats a number with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with a noun: `1 block`, `2 blocks`, `2 processes`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { plural })
}

/// Formats a duration in nanoseconds with a suitable unit.
pub fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..=999_999 => format!("{:.3} us", value / 1e3),
        // A value that rounds up to the next unit is shown in that unit.
        1_000_000..=999_999_499 => format!("{:.3} ms", value / 1e6),
        999_999_500..60_000_000_000 => format!("{:.3} s", value / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{}m{:02}s", nanos / 60_000_000_000, nanos / 1_000_000_000 % 60),
        _ => format!("{}h{:02}m", nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60),
    }
}

/// Formats `part` of `whole` as a percentage.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1}%", part as f64 * 100.0 / whole as f64) }
}

/// Returns the message of an error and those of its causes, as commands print it.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"))
}

#[cfg(test)]
mod tests {
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
    fn sanitizing_writer_accepts_text_split_at_any_byte() {
        let hostile = "a\x1b[2J\u{9b}é\u{202e}\tb\n\x0c\u{fffd}€".as_bytes();
        let expected = "a\u{fffd}[2J\u{fffd}é\u{fffd}\tb\n\x0c\u{fffd}€";
        for split in 0..=hostile.len() {
            let mut out = Vec::new();
            let mut writer = SanitizingWriter::new(&mut out);
            writer.write_all(&hostile[..split]).unwrap();
            writer.write_all(&hostile[split..]).unwrap();
            writer.flush().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        let mut writer = SanitizingWriter::new(&mut out);
        writer.write_all(b"x\xffy\xe2\x82").unwrap();
        writer.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "x\u{fffd}y\u{fffd}");
    }

    #[test]
    fn columns_decides_the_width() {
        assert_eq!(width_of(Some("80"), None), 80);
        assert_eq!(width_of(Some("72"), Some(120)), 72);
        assert_eq!([width_of(Some("0"), Some(120)), width_of(Some("wide"), Some(120))], [120, 120]);
        assert_eq!([width_of(None, None), width_of(Some(""), None)], [DEFAULT_WIDTH, DEFAULT_WIDTH]);
        assert_eq!([width_of(Some("5"), None), width_of(Some("99999"), None)], [MIN_WIDTH, MAX_WIDTH]);
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0, 1023, 1024, 10_240, 123_456, 1 << 20, 1_048_000, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "10.0 KiB", "121 KiB", "1.00 MiB", "1.00 MiB", "16.0 EiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let shown = [5, 1_500, 2_000_000, 3_141_592_653, 61_000_000_000, 3_660_000_000_000].map(duration);
        assert_eq!(shown, ["5 ns", "1.500 us", "2.000 ms", "3.142 s", "1m01s", "1h01m"]);
    }

    #[test]
    fn long_names_lose_template_arguments_first() {
        let name = "std::map<std::string, std::vector<int> >::operator[] < shop::load(Order<int>)";
        assert_eq!(shorten(name, 60), "std::map<…>::operator[] < shop::load(Order<…>)");
        assert_eq!(shorten(name, 20), "std::map<…>::operat…");
        assert_eq!(shorten("a->b->c", 7), "a->b->c");
        assert_eq!(shorten("operator<<", 5), "oper…");
    }
}
