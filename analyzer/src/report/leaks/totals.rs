//! The totals of the leak report: how much was never freed, by verdict, worst first.

use super::held::Fate;
use super::{Leak, LeakReport};
use crate::model::verdict::Verdict;
use crate::report::frames::{call_site, call_site_line};
use crate::short_name::NameLength;
use crate::symbols::Symbolizer;
use crate::text::{Color, Screen, bytes, counted, shorten};
use std::io;

/// The leaks with one verdict, summed up.
pub(super) struct VerdictTotal<'a> {
    /// Name of the verdict, or of what released the blocks.
    pub name: &'static str,
    pub color: Color,
    /// Whether the leaks are listed only on demand.
    pub is_harmless: bool,
    /// The leaks, worst first.
    pub leaks: Vec<&'a Leak<'a>>,
    /// Number of bytes never freed; of what was freed at exit, the sum of the peaks.
    pub bytes: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
}

/// Name of the total of what probably grows. There is no sure growth beside it in a short run.
pub(super) const PROBABLE: &str = "probably growing";
/// Name of the total of what exec released.
const RELEASED_BY_EXEC: &str = "released by exec";
/// Width of the names, in columns.
const NAME_WIDTH: usize = 25;
const AMOUNT_WIDTH: usize = 28;

/// Returns the totals by verdict, worst first. Verdicts without leaks are left out.
pub(super) fn by_verdict<'a>(found: &'a LeakReport<'a>) -> Vec<VerdictTotal<'a>> {
    let all = || {
        found
            .leaks
            .iter()
            .chain(&found.freed_at_exit)
            .filter(|leak| leak.kept.is_none() && leak.blocks.max(leak.grown) > 0)
    };
    let total = |name, color, is_harmless, mut leaks: Vec<&'a Leak<'a>>| {
        leaks.sort_by_key(|leak| leak.order());
        let bytes = leaks.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.bytes.max(leak.grown)));
        let blocks = leaks.iter().map(|leak| leak.blocks).sum();
        VerdictTotal { name, color, is_harmless, leaks, bytes, blocks }
    };
    let of_verdict = |verdict: Verdict| {
        let is_own = |leak: &&Leak| {
            leak.verdict == verdict && !leak.is_probable && !leak.is_released_by_exec() && leak.fate().is_none()
        };
        total(verdict.name(), color(verdict), verdict.is_harmless(), all().filter(is_own).collect())
    };
    let probable = all().filter(|leak| leak.is_probable && !leak.is_released_by_exec()).collect();
    let probable = total(PROBABLE, Color::Yellow, false, probable);
    let released =
        total(RELEASED_BY_EXEC, Color::Faint, true, all().filter(|leak| leak.is_released_by_exec()).collect());
    // A core has no times to judge by, but it says what nothing holds.
    let of_fate = |fate: Fate| {
        let of_cores = || all().filter(|leak| leak.fate().is_some());
        let own = of_cores().filter(|leak| leak.fate() == Some(fate)).collect();
        let (bytes, blocks) = of_cores()
            .map(|leak| fate.amount(leak))
            .fold((0u64, 0), |sum, one| (sum.0.saturating_add(one.0), sum.1 + one.1));
        let color = if matches!(fate, Fate::Lost | Fate::Cycle) { Color::Red } else { Color::Bold };
        VerdictTotal { bytes, blocks, ..total(fate.word(), color, false, own) }
    };
    let totals = Fate::WORST_FIRST.into_iter().map(of_fate).chain(std::iter::once(probable));
    let totals = totals.chain(Verdict::WORST_FIRST.into_iter().map(of_verdict)).chain([released]);
    totals.filter(|total| !total.leaks.is_empty() || total.bytes > 0).collect()
}

pub(super) const fn color(verdict: Verdict) -> Color {
    match verdict {
        Verdict::Growing => Color::Red,
        Verdict::Slow | Verdict::ContainerGrowth | Verdict::FreedAtExit => Color::Yellow,
        Verdict::TooLittle | Verdict::Uncertain => Color::Bold,
        Verdict::OneTime | Verdict::BoundedCache | Verdict::YoungAtEnd | Verdict::Inherited => Color::Faint,
    }
}

/// Prints a line for each total: the verdict, the amount, and the function with most of it.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(totals: &[VerdictTotal], symbols: &mut Symbolizer, screen: &mut Screen) -> io::Result<()> {
    let width = screen.style.width.saturating_sub(2 + NAME_WIDTH + AMOUNT_WIDTH + 3).max(20);
    for total in totals {
        let size = bytes(total.bytes);
        let amount = match total.blocks {
            0 => format!("grew to {size}"),
            blocks => format!("{size} in {}", counted(blocks, "block")),
        };
        let most = total.leaks.iter().max_by_key(|leak| (leak.bytes.max(leak.grown), std::cmp::Reverse(leak.site)));
        let function = most.map_or_else(String::new, |leak| {
            let call_site = call_site(symbols, leak.process.stacks(), leak.site, 1);
            call_site_line(&call_site, &leak.lines, symbols.names())
        });
        let more = if total.leaks.len() > 1 { ", …" } else { "" };
        let function = match symbols.names() {
            NameLength::Short => shorten(&function, width.saturating_sub(more.chars().count())),
            NameLength::Full => function,
        };
        let name = format!("  {:NAME_WIDTH$}", total.name);
        screen.spans(&[(total.color, &name), (Color::Plain, &format!(" {amount:AMOUNT_WIDTH$} {function}{more}"))])?;
    }
    Ok(())
}
