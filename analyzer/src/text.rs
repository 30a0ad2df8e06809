//! Text for terminals. Every string that comes from a recording goes through [`clean`], and
//! everything that is printed goes through a [`Screen`], which replaces what could steer a
//! terminal: no recording can colour, move or hide anything.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// How text is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether headings are coloured.
    pub colour: bool,
    /// Whether pictures may be made of block elements.
    pub pictures: bool,
    /// Columns.
    pub width: usize,
}

/// Columns where there is no terminal to ask.
const WIDTH: usize = 110;

impl Style {
    /// No colour and a fixed width.
    pub const PLAIN: Style = Style { colour: false, pictures: false, width: WIDTH };

    /// For stdout: colour on terminals only, and not with `NO_COLOR`.
    pub fn of_stdout() -> Style {
        Style::of(io::stdout().is_terminal(), terminal_size::terminal_size_of(io::stdout()))
    }

    /// For stderr.
    pub fn of_stderr() -> Style {
        Style::of(io::stderr().is_terminal(), terminal_size::terminal_size_of(io::stderr()))
    }

    fn of(is_terminal: bool, size: Option<(terminal_size::Width, terminal_size::Height)>) -> Style {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let width = size.map_or(WIDTH, |(terminal_size::Width(width), _)| usize::from(width).clamp(60, 200));
        // The first that is set decides, as it does for the C library.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        let is_utf8 = locale.is_some_and(|locale| locale.to_ascii_lowercase().replace('-', "").ends_with("utf8"));
        Style { colour: is_terminal && !forbidden && !dumb, pictures: is_terminal && !dumb && is_utf8, width }
    }
}

/// Whether a character may steer a terminal: C0, DEL, C1, and the marks that reorder, join or hide
/// text.
const fn steers(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with everything that may steer a terminal replaced by `\u{fffd}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(steers) {
        Cow::Owned(text.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// The same for bytes of a file; what is not UTF-8 is replaced, too.
pub fn clean_name(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) => clean(text),
        Err(_) => Cow::Owned(clean(&String::from_utf8_lossy(name)).into_owned()),
    }
}

/// The same for text whose columns tabs separate: these stay.
pub fn clean_columns(text: &str) -> String {
    text.split('\t').map(clean).collect::<Vec<_>>().join("\t")
}

/// What [`Harmless`] lets through.
const PASSED: [char; 3] = ['\n', '\t', '\x0c'];

/// A writer for text that is made elsewhere (dumps): the same replacement on its way out, but for
/// line feeds, tabs, and the form feeds that gprof prints between listings.
pub struct Harmless<W> {
    out: W,
    /// A character whose last bytes have not come yet.
    part: Vec<u8>,
}

impl<W: Write> Harmless<W> {
    /// Prints to `out`.
    pub const fn new(out: W) -> Self {
        Harmless { out, part: Vec::new() }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        for piece in text.split_inclusive(PASSED) {
            let end = piece.len() - usize::from(piece.ends_with(PASSED));
            self.out.write_all(clean(&piece[..end]).as_bytes())?;
            self.out.write_all(&piece.as_bytes()[end..])?;
        }
        Ok(())
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.is_empty() && bytes.iter().all(|byte| matches!(byte, b'\n' | b'\t' | b'\x0c' | b' '..=b'~')) {
            return self.out.write_all(bytes).map(|()| bytes.len());
        }
        self.part.extend_from_slice(bytes);
        let part = std::mem::take(&mut self.part);
        for chunk in part.utf8_chunks() {
            self.put(chunk.valid())?;
            let invalid = chunk.invalid();
            // Cut characters stand only at the end, and have at most three bytes.
            if !invalid.is_empty()
                && part.ends_with(invalid)
                && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none())
            {
                self.part.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                self.put("\u{fffd}")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.part).is_empty() {
            self.put("\u{fffd}")?;
        }
        self.out.flush()
    }
}

/// Where reports print.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    /// How.
    pub style: Style,
}

impl<'a> Screen<'a> {
    /// Prints to `out`.
    pub fn new(out: &'a mut dyn Write, style: Style) -> Self {
        Screen { out, style }
    }

    /// A line, cleaned. Line feeds within it are kept.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        for line in text.split('\n') {
            writeln!(self.out, "{}", clean(line.trim_end()))?;
        }
        Ok(())
    }

    /// A heading: bold where there is colour.
    pub fn heading(&mut self, text: &str) -> io::Result<()> {
        self.painted("1", text)
    }

    /// Something that is missing or wrong: yellow where there is colour.
    pub fn warning(&mut self, text: &str) -> io::Result<()> {
        self.painted("33", text)
    }

    fn painted(&mut self, colour: &str, text: &str) -> io::Result<()> {
        match self.style.colour {
            true => writeln!(self.out, "\x1b[{colour}m{}\x1b[0m", clean(text)),
            false => writeln!(self.out, "{}", clean(text)),
        }
    }

    /// An empty line.
    pub fn blank(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// A table: the last column is text and takes what is left of the width, all others are
    /// numbers.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        use comfy_table::{CellAlignment, Table, presets::NOTHING};
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(head.iter().map(|cell| clean(cell).into_owned()));
        let Some((_, numbers)) = head.split_last() else { return Ok(()) };
        let width = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain([head[at].chars().count()]).max().unwrap_or(0)
        };
        let taken: usize = (0..numbers.len()).map(|at| width(at) + 2).sum();
        let left = self.style.width.saturating_sub(taken + 2).max(20);
        for row in rows {
            let cells = row.iter().enumerate().map(|(at, cell)| {
                let cell = clean(cell);
                if at == numbers.len() { shorten(&cell, left) } else { cell.into_owned() }
            });
            table.add_row(cells);
        }
        for at in 0..numbers.len() {
            if let Some(column) = table.column_mut(at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.line(&table.to_string())
    }
}

/// A name with its template arguments replaced; the name itself where brackets do not match.
pub fn without_arguments(name: &str, with: &str) -> String {
    let (out, is_closed) = arguments_replaced(name, with);
    if is_closed { out } else { name.to_string() }
}

/// The text with outermost pairs of angle brackets replaced, and whether each that opens is closed.
fn arguments_replaced(text: &str, with: &str) -> (String, bool) {
    let mut depth = 0u32;
    let mut out = String::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        // `operator<`, `operator<<`, `->`, and ` < ` between frames are no brackets.
        let operator = text[..at].trim_end_matches('<').ends_with("operator");
        let opens = c == '<' && before != ' ' && !operator;
        let closes = c == '>' && before != '-' && depth > 0;
        if opens && depth == 0 {
            out.push_str(with);
        }
        depth += u32::from(opens);
        if depth == 0 {
            out.push(c);
        }
        depth -= u32::from(closes);
        before = c;
    }
    (out, depth == 0)
}

/// A text of at most `width` characters: first template arguments go, then the middle.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let (out, is_closed) = arguments_replaced(text, "<…>");
    let count = out.chars().count();
    if !is_closed || count > width {
        let out = if is_closed { &out } else { text };
        let keep: String = out.chars().take(width.saturating_sub(1)).collect();
        return keep + "…";
    }
    out
}

/// Bytes for people: three figures and a binary unit.
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
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.places$} {}", UNITS[unit])
}

/// A count with commas.
pub fn count(number: u64) -> String {
    let figures = number.to_string();
    let mut out = String::with_capacity(figures.len() + figures.len() / 3);
    for (at, figure) in figures.chars().enumerate() {
        if at > 0 && (figures.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(figure);
    }
    out
}

/// `1 block`, `2 blocks`, `2 processes`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if one.ends_with('s') { "es" } else { "s" };
    format!("{} {one}{}", count(number), if number == 1 { "" } else { many })
}

/// A duration for people.
pub fn duration(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..=999_999 => format!("{:.3} us", value / 1e3),
        // What rounds to the next unit is shown in it.
        1_000_000..=999_999_499 => format!("{:.3} ms", value / 1e6),
        999_999_500..60_000_000_000 => format!("{:.3} s", value / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{}m{:02}s", nanos / 60_000_000_000, nanos / 1_000_000_000 % 60),
        _ => format!("{}h{:02}m", nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60),
    }
}

/// A share of a whole in per cent.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1}%", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_a_recording_steers_the_terminal() {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Style { colour: true, pictures: true, width: 80 });
        let hostile = "a\x1b[31mb\u{9b}1mc\x07\u{202e}d\u{200b}e\x7f\rf";
        screen.line(hostile).unwrap();
        screen.heading(hostile).unwrap();
        screen.table(&["n", "name"], &[vec![hostile.into(), hostile.into()]]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let own = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace('\n', "");
        assert!(!own.chars().any(steers), "{own:?}");
        assert!(own.contains("a\u{fffd}[31mb"));
    }

    #[test]
    fn dumps_steer_nothing_wherever_they_are_split() {
        let hostile = "a\x1b[2J\u{9b}é\u{202e}\tb\n\x0c\u{fffd}€".as_bytes();
        let expected = "a\u{fffd}[2J\u{fffd}é\u{fffd}\tb\n\x0c\u{fffd}€";
        for split in 0..=hostile.len() {
            let mut out = Vec::new();
            let mut harmless = Harmless::new(&mut out);
            harmless.write_all(&hostile[..split]).unwrap();
            harmless.write_all(&hostile[split..]).unwrap();
            harmless.flush().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        let mut harmless = Harmless::new(&mut out);
        harmless.write_all(b"x\xffy\xe2\x82").unwrap();
        harmless.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "x\u{fffd}y\u{fffd}");
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
