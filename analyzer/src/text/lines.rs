//! Wraps long lines between words.

use std::iter::Peekable;

/// Most columns before the text of a line that starts with a label.
const MAX_LABEL: usize = 24;

/// Returns the offsets of the blanks at which a line is wrapped so that it fits into `width`
/// columns, and the indentation of the further lines. They begin below the text of the first line,
/// also if that has a label before its text. A longer word stays whole.
pub(super) fn wrap(line: &str, width: usize) -> (Vec<usize>, usize) {
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

/// Returns a part of a line with line feeds and `indent` blanks instead of the blanks at `breaks`.
/// The part begins at the offset `start` of the line.
pub(super) fn break_lines(
    text: &str,
    start: usize,
    breaks: &mut Peekable<impl Iterator<Item = usize>>,
    indent: usize,
) -> String {
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    while let Some(at) = breaks.next_if(|at| *at < start + text.len()) {
        out += &text[from..at - start];
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent));
        from = at - start + 1;
    }
    out + &text[from..]
}

/// Returns a line wrapped to `width` columns: see [`wrap`].
pub fn wrapped(line: &str, width: usize) -> String {
    let (breaks, indent) = wrap(line, width);
    break_lines(line, 0, &mut breaks.into_iter().peekable(), indent)
}
