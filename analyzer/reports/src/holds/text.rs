//! The answer of `heaptape holds` as text.

use super::{HoldsReport, RootRow, since};
use crate::print::Report;
use heaptape_analyzer::report::PointInTime;
use heaptape_analyzer::report::lost::Confidence;
use heaptape_analyzer::text::{Screen, bytes, count, counted, percent};
use std::io;

/// Ways in which the blocks of one call site are held that are shown.
const PATHS: usize = 2;

impl RootRow {
    /// Returns the name, and who else holds most of it.
    fn text(&self) -> String {
        match 10 * self.also_bytes >= self.bytes && self.also_bytes > 0 {
            true => format!("{}; {} of it also by {}", self.name, bytes(self.also_bytes), self.also_by),
            false => self.name.clone(),
        }
    }
}

impl HoldsReport {
    /// Returns the answer in one sentence.
    fn headline(&self) -> String {
        if self.is_core && self.blocks == 0 && !self.lacks.is_empty() {
            return format!("the blocks in the core are not known: {}", self.lacks);
        }
        let when = match &self.at {
            None if self.is_core => "in the core".into(),
            at => at.as_ref().map_or("at the end".into(), PointInTime::text),
        };
        if self.blocks == 0 {
            let then = match self.since {
                Some(since) => format!(" that was allocated {since} is live {when}; blocks from before are not known"),
                None => format!(" is live {when}"),
            };
            return format!("nothing{then}");
        }
        let all = format!("{} live in {} {when}", bytes(self.bytes), counted(self.blocks, "block"));
        if !self.lacks.is_empty() {
            return format!(
                "{all}: {} held; what is not is not judged, since {}",
                percent(self.held_bytes, self.bytes),
                self.lacks
            );
        }
        let lost_bytes = self.lost_bytes - self.cycle_bytes;
        let lost = match (self.lost_blocks - self.cycle_blocks, self.cycle_blocks) {
            (0, 0) => "none lost".to_owned(),
            (_, 0) => format!("{} lost", bytes(lost_bytes)),
            (0, _) => format!("{} in cycles that nothing else holds", bytes(self.cycle_bytes)),
            _ => format!("{} lost, {} in cycles that nothing else holds", bytes(lost_bytes), bytes(self.cycle_bytes)),
        };
        let by = self.roots.first().map(|root| format!(", most by {}", root.name)).unwrap_or_default();
        let undecided = match self.undecided_blocks {
            0 => String::new(),
            _ => format!("; {} that only registers of waiting threads may hold", bytes(self.undecided_bytes)),
        };
        let stale = match self.stale_blocks {
            0 => String::new(),
            _ => format!("; {} that only unused memory of blocks leads to", bytes(self.stale_bytes)),
        };
        let hidden = match self.hidden_blocks {
            0 => String::new(),
            _ => format!("; {} behind pointers in a disguise ({})", bytes(self.hidden_bytes), self.disguise),
        };
        format!("{all}: {} held{by}; {lost}{hidden}{stale}{undecided}", percent(self.held_bytes, self.bytes))
    }

    fn print_lost(&self, screen: &mut Screen) -> io::Result<()> {
        for row in &self.lost {
            let kind = if row.is_cycle { "cycle" } else { "lost" };
            let times = if row.times == 1 { String::new() } else { format!("{} times ", count(row.times)) };
            screen.line(&format!("  {kind}, {}: {times}{}", row.confidence, row.what))?;
            screen.line(&format!("    {} in {}; {}", bytes(row.bytes), counted(row.blocks, "block"), row.sign))?;
            for line in &row.lines {
                screen.line(&format!("      {line}"))?;
            }
        }
        Ok(())
    }
}

impl Report for HoldsReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        screen.line(&self.headline())?;
        if let Some(grown) = &self.grown {
            return since::print(grown, screen);
        }
        let is_all = !self.options.lost && !self.options.cycles && self.options.of.is_none();
        if is_all && !self.roots.is_empty() {
            let rows: Vec<Vec<String>> = self
                .roots
                .iter()
                .take(self.top)
                .map(|row| vec![bytes(row.bytes), count(row.blocks), bytes(row.only_bytes), row.text()])
                .collect();
            screen.heading("Held by")?;
            screen.table(&["bytes", "blocks", "only by it", "nearest root"], &rows)?;
        }
        if !self.held.is_empty() {
            screen.heading("What is held, and how")?;
        }
        for row in &self.held {
            screen.line(&format!("  {} in {}: {}", bytes(row.bytes), counted(row.blocks, "block"), row.label))?;
            if row.retained_blocks > row.blocks {
                let (size, blocks) = (bytes(row.retained_bytes), counted(row.retained_blocks, "block"));
                screen.line(&format!("    {size} in {blocks} with what only they hold"))?;
            }
            for path in row.paths.iter().take(PATHS) {
                if row.ways > 1 {
                    screen.line(&format!("    {} of them:", count(path.blocks)))?;
                }
                for (number, step) in path.steps.iter().enumerate() {
                    let arrow = if number == 0 { "" } else { "<- " };
                    screen.line(&format!("      {arrow}{step}"))?;
                }
            }
            if row.ways > PATHS as u64 {
                screen.line(&format!("    and in {}", counted(row.ways - PATHS as u64, "other way")))?;
            }
        }
        if !self.lost.is_empty() {
            screen.heading("Held by nothing")?;
            self.print_lost(screen)?;
        } else if self.options.lost || self.options.cycles {
            screen.line(if self.options.cycles { "no cycle holds itself" } else { "no block is lost" })?;
        }
        if self.replaced_blocks > 0 {
            let (size, blocks) = (bytes(self.replaced_bytes), counted(self.replaced_blocks, "block"));
            screen.line(&format!("{size} in {blocks}: the environment before setenv copied it, which nobody frees"))?;
        }
        if self.bytes > 0 {
            let (typed, references) = (percent(self.typed_bytes, self.bytes), counted(self.references, "reference"));
            screen.line(&format!("types are known for {typed} of the bytes; {references}"))?;
        }
        if self.lost.iter().any(|row| row.confidence == Confidence::Possible.word()) {
            screen.line("possible: a program may hide a pointer, e.g. by XOR or in unused bits")?;
        }
        let next =
            if is_all { "one of them: heaptape holds --of FUNCTION|TYPE|0xADDRESS" } else { "all: heaptape holds" };
        screen.line(&format!("{next} {}", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holds::{HeldRow, PathRow};
    use heaptape_analyzer::text::Style;

    fn text(report: &HoldsReport) -> String {
        let mut out = Vec::new();
        report.print(&mut Screen::new(&mut out, Style::PLAIN)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_third_way_is_one_other_way() {
        let path = |step: &str| PathRow { blocks: 1, bytes: 8, steps: vec![step.into()], example: String::new() };
        let row = |ways| HeldRow { ways, paths: vec![path("global a"), path("global b")], ..HeldRow::default() };
        let of = |ways| text(&HoldsReport { held: vec![row(ways)], ..HoldsReport::default() });
        assert!(of(3).contains("    and in 1 other way\n"), "{}", of(3));
        assert!(of(4).contains("    and in 2 other ways\n"), "{}", of(4));
    }

    #[test]
    fn nothing_held_has_no_table_and_no_types() {
        let text = text(&HoldsReport { top: 10, ..HoldsReport::default() });
        assert!(text.starts_with("nothing is live at the end\n"), "{text}");
        assert!(!text.contains("Held by") && !text.contains("types are known"), "{text}");
    }
}
