//! Leaks as text.

use super::evidence::Evidence;
use super::{Found, Leak, Options};
use crate::missing::Missing;
use crate::model::leaks::SLICES;
use crate::model::verdict::{FLOOR_BYTES, FLOOR_SECONDS, FLOOR_SHARE, Verdict};
use crate::pictures::sparkline;
use crate::report::frames::{frame_line, text_stack};
use crate::report::grouping::innermost;
use crate::report::{say_missing, say_sampled};
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, count, counted, duration, percent, shorten};
use std::io;

/// Frames of each stack in the text.
const FRAMES: usize = 8;
/// Rows of the text when nobody asked for another number.
const TOP: usize = 10;
/// Sites told of that were emptied only at the end.
const AT_EXIT: usize = 3;

/// Prints what was found.
pub fn print(found: &Found, options: &Options, symbols: &mut Symbolizer, screen: &mut Screen) -> io::Result<()> {
    let Found { leaks, at_exit, total, missing, .. } = found;
    let cut = missing.iter().any(|(_, missing)| missing.contains(&Missing::NoEnd));
    let when = if cut { "still live when the recording was cut" } else { "never freed" };
    let (all, blocks) = (bytes(total.bytes), counted(total.blocks, "block"));
    let mut first = format!("{all} in {blocks} {when}, from {}", counted(total.stacks, "stack"));
    if let Some(worst) = leaks.first().filter(|leak| leak.verdict <= Verdict::Slow) {
        let frame = innermost(symbols, worst.image.stacks(), worst.site);
        first += &format!("; {}: {}", worst.verdict.name(), frame_line(&frame));
    }
    screen.heading(&first)?;
    let several = missing.len() > 1;
    let top = options.top.unwrap_or(TOP);
    for (number, leak) in leaks.iter().take(top).enumerate() {
        let mut head = format!("{}. {} in {}", number + 1, bytes(leak.bytes), counted(leak.blocks, "block"));
        head += &format!(", {} of all: {}", percent(leak.bytes, total.bytes), leak.verdict.name());
        if leak.sites > 1 {
            head += &format!(", {} stacks", leak.sites);
        }
        one(leak, head, several, options, symbols, screen)?;
    }
    if leaks.len() > top {
        let rest = &leaks[top..];
        let (sum, blocks) = rest.iter().fold((0u64, 0), |(a, b), leak| (a.saturating_add(leak.bytes), b + leak.blocks));
        let (more, bytes, blocks) = (rest.len(), bytes(sum), counted(blocks, "block"));
        screen.line(&format!("and {more} more with {bytes} in {blocks} (--top N)"))?;
    }
    if leaks.iter().take(top).any(|leak| leak.verdict == Verdict::TooLittle) {
        screen.line(&format!(
            "too little to tell: grew in a run shorter than {}, or by less than {} and {}% of the peak",
            duration((FLOOR_SECONDS * 1e9) as u64),
            bytes(FLOOR_BYTES),
            FLOOR_SHARE * 100.0
        ))?;
    }
    for leak in at_exit.iter().take(AT_EXIT.min(top)) {
        let most = leak.evidence.as_ref().map_or(leak.bytes, |evidence| evidence.most_bytes);
        let head =
            format!("grew to {}, and was freed only when the program ended: {}", bytes(most), leak.verdict.name());
        one(leak, head, several, options, symbols, screen)?;
    }
    for (image, _) in missing {
        if let Some(inherited) = &image.tape.inherited
            && inherited.blocks > 0
        {
            screen.line(&format!(
                "{} (pid {}) got {} in {} from its parent: inherited, no leak of its own",
                image.name(),
                image.about.pid,
                bytes(inherited.bytes),
                counted(inherited.blocks, "block")
            ))?;
        }
    }
    super::suppressed::print(found, screen)?;
    for (image, missing) in missing {
        let of = if several { format!("{}: ", image.about.folder) } else { String::new() };
        say_sampled(screen, &of, image)?;
        say_missing(screen, &of, missing)?;
    }
    Ok(())
}

fn one(
    leak: &Leak,
    mut head: String,
    several: bool,
    options: &Options,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    if several {
        head += &format!(", in {} (pid {})", leak.image.name(), leak.image.about.pid);
    }
    screen.heading(&head)?;
    let frames = if options.depth == 0 { FRAMES } else { options.depth };
    let (lines, more) = text_stack(symbols, leak.image.stacks(), leak.site, frames);
    let width = screen.style.width.saturating_sub(4);
    for line in lines {
        screen.line(&format!("    {}", shorten(&line, width)))?;
    }
    if more > 0 && leak.sites == 1 {
        screen.line(&format!("    … {}", counted(more as u64, "outer frame")))?;
    }
    match &leak.evidence {
        Some(evidence) => explain(leak, evidence, screen),
        None => screen.line("    sums hold no order and no times: nothing more can be said"),
    }
}

fn explain(leak: &Leak, evidence: &Evidence, screen: &mut Screen) -> io::Result<()> {
    let time = |value: u64| if evidence.unit == "ns" { duration(value) } else { counted(value, "event") };
    if leak.blocks > 0 {
        let mut born = match leak.blocks {
            1 => format!("born {}", evidence.first.text()),
            _ => format!("born {} to {}", evidence.first.text().replace(" after the start", ""), evidence.last.text()),
        };
        if let Some(rate) = evidence.bytes_per_second
            && rate >= 1.0
            && leak.verdict <= Verdict::Slow
        {
            born += &format!(", +{}/s", bytes(rate as u64));
        }
        let sizes = match (evidence.smallest, evidence.largest) {
            (Some(a), _) if leak.blocks == 1 => format!("; {a} B"),
            (Some(a), Some(b)) if a == b => format!("; {a} B each"),
            (Some(a), Some(b)) => format!("; {a} to {b} B"),
            _ => String::new(),
        };
        let example = evidence.examples.first().map(|(address, _)| format!(", e.g. {address}")).unwrap_or_default();
        let threads = match &evidence.threads[..] {
            [] | [_] => String::new(),
            several => format!(", by threads {}", several.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
        };
        screen.line(&format!("    {born}{sizes}{example}{threads}"))?;
    }
    if (leak.blocks > 2 || leak.verdict == Verdict::FreedAtExit)
        && let Some(line) = sparkline(screen.style, &evidence.live_bytes, SLICES)
    {
        screen.line(&format!("    live bytes over the run: {line}"))?;
    }
    if let (Some(mean), Some(longest)) = (evidence.mean_life, evidence.longest_life) {
        let mut siblings = format!(
            "    {} of {} allocations here were freed, after {} on average, {} at most",
            count(evidence.freed),
            count(evidence.allocs),
            time(mean),
            time(longest)
        );
        if let Some(at) = evidence.freed_at.first() {
            siblings += &format!(", mostly in {}", at.functions.join(" < "));
        }
        screen.line(&siblings)?;
    } else if evidence.freed > 0 {
        let (freed, allocs) = (count(evidence.freed), count(evidence.allocs));
        screen.line(&format!("    {freed} of {allocs} allocations here were freed"))?;
    } else if evidence.resized > 0 {
        screen.line(&format!("    resized {} times", count(evidence.resized)))?;
    }
    Ok(())
}
