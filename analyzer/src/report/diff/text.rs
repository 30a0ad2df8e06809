//! The comparison as text.

use super::{Change, Comparison, Options, Values};
use crate::text::{Color, Screen, bytes, count, counted};
use std::io;

/// Default number of rows.
const TOP: usize = 20;

/// Formats a change with its sign.
pub(super) fn signed(value: f64, shown: impl Fn(u64) -> String) -> String {
    match value.round() {
        0.0 => "0".into(),
        value if value < 0.0 => format!("-{}", shown(-value as u64)),
        value => format!("+{}", shown(value as u64)),
    }
}

/// Formats a change as a percentage of the old value.
pub(super) fn relative(a: f64, b: f64) -> String {
    match (a, b) {
        (a, b) if a == b => "same".into(),
        (0.0, _) => "new".into(),
        (_, 0.0) => "gone".into(),
        (a, b) => format!("{:+.1}%", (b - a) * 100.0 / a),
    }
}

/// How a site, or a whole side, changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    New,
    Gone,
    Grew,
    Shrank,
    /// Only what is allocated grew, not what is live.
    More,
    /// Only what is allocated shrank.
    Less,
    Same,
}

impl Direction {
    /// All directions of sites, worst first.
    const ALL: [Direction; 6] =
        [Direction::Grew, Direction::New, Direction::More, Direction::Less, Direction::Shrank, Direction::Gone];

    fn of(a: &Values, b: &Values) -> Direction {
        let nothing = |values: &Values| values.all().iter().all(|&value| value == 0.0);
        let changes = [b.live_bytes - a.live_bytes, b.bytes - a.bytes, b.allocs - a.allocs];
        let first = changes.iter().position(|change| change.round() != 0.0);
        match (nothing(a), nothing(b), first) {
            (true, false, _) => Direction::New,
            (false, true, _) => Direction::Gone,
            (_, _, Some(0)) if changes[0] > 0.0 => Direction::Grew,
            (_, _, Some(0)) => Direction::Shrank,
            (_, _, Some(index)) if changes[index] > 0.0 => Direction::More,
            (_, _, Some(_)) => Direction::Less,
            (_, _, None) => Direction::Same,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Direction::New => "new",
            Direction::Gone => "gone",
            Direction::Grew => "grew",
            Direction::Shrank => "shrank",
            Direction::More => "allocates more",
            Direction::Less => "allocates less",
            Direction::Same => "same",
        }
    }

    const fn color(self) -> Color {
        match self {
            Direction::Grew | Direction::New => Color::Red,
            Direction::More => Color::Yellow,
            _ => Color::Bold,
        }
    }
}

/// Prints the verdict on the whole: how the live bytes and the peak changed.
fn print_verdict(found: &Comparison, options: &Options, screen: &mut Screen) -> io::Result<()> {
    let is_noise = |a: f64, b: f64| (b - a).abs() <= options.noise * a.max(b);
    let change = |name: &str, a: f64, b: f64| {
        let amount = signed(b - a, bytes);
        if is_noise(a, b) { format!("{name} {amount}") } else { format!("{name} {amount} ({})", relative(a, b)) }
    };
    let (a, b) = (&found.a, &found.b);
    let of_live = Values { live_bytes: a.live_bytes, ..*b };
    let direction = match () {
        () if found.changes.is_empty() => Direction::Same,
        () if !is_noise(a.live_bytes, b.live_bytes) => Direction::of(&of_live, b),
        () if is_noise(a.bytes, b.bytes) && is_noise(a.allocs, b.allocs) => Direction::Same,
        () => Direction::of(&Values { live_bytes: b.live_bytes, ..*a }, b),
    };
    let mut rest = format!(": {}", change("live", a.live_bytes, b.live_bytes));
    if let Some((a, b)) = found.peak_bytes {
        rest += &format!(", {}", change("peak", a, b));
    }
    rest += &format!(", {}", change("allocated", a.bytes, b.bytes));
    screen.spans(&[(direction.color(), direction.name()), (Color::Bold, &rest)])
}

/// Prints how many sites changed in which direction, and by how much.
fn print_directions(found: &Comparison, screen: &mut Screen) -> io::Result<()> {
    let mut lines = Vec::new();
    for direction in Direction::ALL {
        let own = || found.changes.iter().filter(|change| Direction::of(&change.a, &change.b) == direction);
        let of_live = !matches!(direction, Direction::More | Direction::Less);
        let sum: f64 = own().map(|change| if of_live { change.delta.live_bytes } else { change.delta.bytes }).sum();
        if own().next().is_some() {
            let what = if of_live { "live" } else { "allocated" };
            lines.push(format!("{} {} ({} {what})", count(own().count() as u64), direction.name(), signed(sum, bytes)));
        }
    }
    screen.line(&format!("sites: {}", lines.join(", ")))
}

/// Prints the changes, and the sums of both sides.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(found: &Comparison, options: &Options, screen: &mut Screen) -> io::Result<()> {
    let whole = |name: &str, a: f64, b: f64, shown: fn(u64) -> String| {
        format!("{name} {} -> {} ({})", shown(a.max(0.0) as u64), shown(b.max(0.0) as u64), relative(a, b))
    };
    print_verdict(found, options, screen)?;
    let Values { live_bytes, live_blocks, bytes: allocated, allocs } = found.a;
    let mut totals = vec![
        whole("live", live_bytes, found.b.live_bytes, bytes),
        whole("live blocks", live_blocks, found.b.live_blocks, count),
        whole("allocated", allocated, found.b.bytes, bytes),
        whole("allocations", allocs, found.b.allocs, count),
    ];
    if let Some((a, b)) = found.peak_bytes {
        totals.push(whole("peak", a, b, bytes));
    }
    screen.line(&totals.join("; "))?;
    if (found.scale - 1.0).abs() > 1e-9 {
        screen.line(&format!("B is multiplied by {:.4}", found.scale))?;
    }
    if found.changes.is_empty() {
        return screen.line(&format!("nothing changed beyond the noise, at {}", counted(found.quiet_sites, "site")));
    }
    print_directions(found, screen)?;
    let top = options.top.unwrap_or(TOP);
    let rows: Vec<Vec<String>> = found.changes.iter().take(top).map(row).collect();
    screen.table(&["", "live", "", "allocated", "", "allocations", "", "site"], &rows)?;
    if found.changes.len() > top {
        screen.line(&format!("and {} more changed sites (--top N)", count((found.changes.len() - top) as u64)))?;
    }
    screen.line(&format!("{} did not change beyond the noise", counted(found.quiet_sites, "site")))
}

/// Formats a change on one line, for a report without a table.
pub fn change_line(change: &Change) -> String {
    let Change { delta, .. } = change;
    let (live, blocks) = (signed(delta.live_bytes, bytes), signed(delta.live_blocks, count));
    let (allocated, allocs) = (signed(delta.bytes, bytes), signed(delta.allocs, count));
    format!("{live} live in {blocks} blocks, {allocated} allocated in {allocs} allocations: {}", site(change))
}

/// Formats the site of a change: the innermost function with its line, or with the number of lines
/// that it sums up, then its callers.
fn site(change: &Change) -> String {
    let location = match (&change.file, change.line) {
        (Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            if change.lines > 1 { format!(" {file} ({} lines)", change.lines) } else { format!(" {file}:{line}") }
        }
        _ => String::new(),
    };
    let mut names = change.functions.iter();
    let mut site = names.next().cloned().unwrap_or_default() + &location;
    names.for_each(|name| site += &format!(" < {name}"));
    site
}

fn row(change: &Change) -> Vec<String> {
    let Change { a, b, delta, .. } = change;
    vec![
        Direction::of(a, b).name().into(),
        signed(delta.live_bytes, bytes),
        relative(a.live_bytes, b.live_bytes),
        signed(delta.bytes, bytes),
        relative(a.bytes, b.bytes),
        signed(delta.allocs, count),
        relative(a.allocs, b.allocs),
        site(change),
    ]
}
