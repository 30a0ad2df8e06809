//! Suppressions of `heaptape leaks`: where the rules come from, and what they suppressed.

use super::{LeakReport, Options};
use crate::load::Process;
use crate::program_frames::blamed;
use crate::report::Error;
use crate::suppress::{Dialect, NamedFrame, Rule, generate, kept_on_purpose, read};
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, clean, counted};
use heaptape_formats::regular;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Maximum number of frames of a stack that rules are matched against.
const MAX_FRAMES: usize = 512;

/// Maximum size of a file of suppressions in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The suppression rules of a report.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules from files and from programs, with what each of them suppressed.
    pub rules: Vec<Rule>,
    /// Bytes and blocks that the runtime keeps on purpose; `None` when they are not separated.
    pub kept: Option<(u64, u64)>,
    /// Messages on rules of programs that could not be read.
    pub notes: Vec<String>,
    /// Paths of the modules whose own rules have been read.
    programs: Vec<String>,
}

/// What a rule suppressed, in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct RuleEffect {
    rule: String,
    origin: String,
    stacks: u64,
    blocks: u64,
    bytes: u64,
}

impl Rules {
    /// Returns rules without files that separate what the runtime keeps on purpose.
    pub fn built_in() -> Rules {
        Rules { kept: Some((0, 0)), ..Rules::default() }
    }

    /// Reads files of suppressions.
    ///
    /// # Errors
    /// Returns [`Error::Open`] when a file cannot be read, and [`Error::Suppressions`] when it is
    /// not a file of suppressions.
    pub fn read(files: &[PathBuf], built_in: bool) -> Result<Rules, Error> {
        let mut rules = Rules { kept: built_in.then_some((0, 0)), ..Rules::default() };
        for file in files {
            let name = file.display().to_string();
            let text = regular::read_text(file, MAX_BYTES);
            let text = text.map_err(|source| Error::Open { path: name.clone(), source })?;
            rules.rules.extend(read(&name, &text)?);
        }
        Ok(rules)
    }

    /// Adds the rules of an imported file, and those of the process's own modules: the text of their
    /// `__lsan_default_suppressions`.
    pub(crate) fn add_own(&mut self, process: &Process, symbols: &mut Symbolizer) {
        if !process.import_suppressions.is_empty() {
            match read(&format!("{}: its own rules", process.about.folder), &process.import_suppressions.join("\n")) {
                Ok(rules) => self.rules.extend(rules),
                Err(error) => self.notes.push(error.to_string()),
            }
        }
        for module in &process.stacks().modules {
            let path = String::from_utf8_lossy(&module.path).into_owned();
            if self.programs.contains(&path) {
                continue;
            }
            self.programs.push(path.clone());
            match symbols.default_suppressions(module) {
                None => {}
                Some(Ok(text)) => match read(&format!("{path}: __lsan_default_suppressions"), &text) {
                    Ok(rules) => self.rules.extend(rules),
                    Err(error) => self.notes.push(error.to_string()),
                },
                Some(Err(why)) => self.notes.push(format!("{path}: __lsan_default_suppressions: {why}")),
            }
        }
    }

    /// Returns whether a rule suppresses the stack, and counts its blocks if so.
    pub fn suppress(&mut self, process: &Process, symbols: &mut Symbolizer, site: u32, blocks: u64, size: u64) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let stack = named_stack(process, symbols, site);
        let Some(rule) = self.rules.iter_mut().find(|rule| rule.matches(&stack)) else { return false };
        rule.stacks += 1;
        rule.blocks += blocks;
        rule.bytes = rule.bytes.saturating_add(size);
        true
    }

    /// Returns the name of what the runtime keeps on purpose in this stack, and counts its blocks;
    /// `None` for other stacks.
    pub(crate) fn count_kept(
        &mut self,
        process: &Process,
        symbols: &mut Symbolizer,
        site: u32,
        blocks: u64,
        size: u64,
    ) -> Option<&'static str> {
        let (all_bytes, all_blocks) = self.kept.as_mut()?;
        let stacks = process.stacks();
        let frames = stacks.stack(site).take(MAX_FRAMES).map(|(_, site)| symbols.name(stacks, &site).as_ref().clone());
        let what = kept_on_purpose(frames)?;
        *all_bytes = all_bytes.saturating_add(size);
        *all_blocks += blocks;
        Some(what)
    }

    pub fn suppressed(&self) -> Vec<RuleEffect> {
        let row = |rule: &Rule| RuleEffect {
            rule: rule.text.clone(),
            origin: rule.origin.clone(),
            stacks: rule.stacks,
            blocks: rule.blocks,
            bytes: rule.bytes,
        };
        self.rules.iter().map(row).collect()
    }
}

/// Returns a stack with all names that rules may match, innermost frame first.
fn named_stack(process: &Process, symbols: &mut Symbolizer, site: u32) -> Vec<NamedFrame> {
    let stacks = process.stacks();
    let (mut all, mut inner) = (Vec::new(), None);
    for (_, site) in stacks.stack(site).take(MAX_FRAMES) {
        let tails = symbols.tail_frames(stacks, &site, inner.as_ref());
        all.extend(tails.iter().map(|frame| NamedFrame { symbol: None, frame: frame.clone() }));
        inner = Some(site);
        let symbol = symbols.symbol(stacks, &site);
        let frames = symbols.frames(stacks, &site);
        all.extend(
            frames
                .iter()
                .map(|frame| NamedFrame { symbol: symbol.clone().filter(|_| !frame.inlined), frame: frame.clone() }),
        );
    }
    all
}

/// Returns the index of the blamed frame of a stack.
fn blamed_frame(stack: &[NamedFrame]) -> usize {
    blamed(stack.iter().map(|seen| seen.frame.role), 1).first().copied().unwrap_or(0)
}

/// Writes suppressions for the leaks, ready for a file.
///
/// # Errors
/// Returns an error when `out` fails.
pub(super) fn write(
    found: &LeakReport,
    dialect: Dialect,
    options: &Options,
    symbols: &mut Symbolizer,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut written = Vec::new();
    let own = found.leaks.iter().filter(|leak| leak.kept.is_none());
    for leak in own.take(options.top.unwrap_or(usize::MAX)) {
        let stack = named_stack(leak.process, symbols, leak.site);
        let rule = generate(dialect, &stack, blamed_frame(&stack), written.len() + 1);
        let rule: Vec<_> = rule.lines().map(|line| clean(line).into_owned()).collect();
        let rule = rule.join("\n");
        if !rule.is_empty() && !written.contains(&rule) {
            writeln!(out, "{rule}")?;
            written.push(rule);
        }
    }
    Ok(())
}

/// Prints what was suppressed, and which rules suppressed nothing.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(found: &LeakReport, screen: &mut Screen) -> io::Result<()> {
    let Rules { rules, kept, notes, .. } = &found.rules;
    if let Some((size, blocks)) = kept
        && *blocks > 0
    {
        let (size, blocks) = (bytes(*size), counted(*blocks, "block"));
        screen.line(&format!("{size} in {blocks} that the runtime keeps on purpose are not listed (--no-built-in)"))?;
    }
    let used: Vec<&Rule> = rules.iter().filter(|rule| rule.stacks > 0).collect();
    if !used.is_empty() {
        screen.line("suppressed:")?;
        let row = |rule: &&Rule| vec![bytes(rule.bytes), crate::text::count(rule.blocks), rule.text.clone()];
        screen.table(&["bytes", "blocks", "rule"], &used.iter().map(row).collect::<Vec<_>>())?;
    }
    for rule in rules.iter().filter(|rule| rule.stacks == 0) {
        screen.warning(&format!("! {}: {} suppressed nothing", rule.origin, rule.text))?;
    }
    for note in notes {
        screen.warning(&format!("! {note}"))?;
    }
    Ok(())
}
