//! Suppressions of `heaptape leaks`: where the rules come from, and what they ate.

use super::Found;
use crate::load::Image;
use crate::program_frames::blamed;
use crate::report::Error;
use crate::suppress::{NamedFrame, Rule, kept_on_purpose, read};
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, counted};
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Frames of a stack that rules look at.
const DEEPEST: usize = 512;

/// The rules of a question.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules of files and programs.
    pub rules: Vec<Rule>,
    /// Bytes and blocks of stacks that the run-time keeps on purpose; none when they are not to be
    /// kept apart.
    pub kept: Option<(u64, u64)>,
    /// What could not be read.
    pub notes: Vec<String>,
    programs: Vec<String>,
}

/// What a rule ate, in `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Eaten {
    rule: String,
    origin: String,
    stacks: u64,
    blocks: u64,
    bytes: u64,
}

impl Rules {
    /// What the run-time keeps on purpose, and no files.
    pub fn built_in() -> Rules {
        Rules { kept: Some((0, 0)), ..Rules::default() }
    }

    /// Reads the files that were named.
    ///
    /// # Errors
    /// When one of them cannot be read or is no file of suppressions.
    pub fn read(files: &[PathBuf], built_in: bool) -> Result<Rules, Error> {
        let mut rules = Rules { kept: built_in.then_some((0, 0)), ..Rules::default() };
        for file in files {
            let name = file.display().to_string();
            let text =
                std::fs::read_to_string(file).map_err(|error| Error::Unanswerable(format!("{name}: {error}")))?;
            rules.rules.extend(read(&name, &text).map_err(|error| Error::Unanswerable(error.to_string()))?);
        }
        Ok(rules)
    }

    /// Adds what the image's own modules bring: the text of their `__lsan_default_suppressions`.
    pub fn add_own(&mut self, image: &Image, symbols: &mut Symbolizer) {
        for module in &image.stacks().modules {
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

    /// Whether a stack is suppressed; counts what is.
    pub fn eat(&mut self, image: &Image, symbols: &mut Symbolizer, site: u32, blocks: u64, size: u64) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let stack = seen(image, symbols, site);
        let Some(rule) = self.rules.iter_mut().find(|rule| rule.matches(&stack)) else { return false };
        rule.stacks += 1;
        rule.blocks += blocks;
        rule.bytes = rule.bytes.saturating_add(size);
        true
    }

    /// What the run-time keeps on purpose in a stack, if it does; counts it.
    pub fn keep(
        &mut self,
        image: &Image,
        symbols: &mut Symbolizer,
        site: u32,
        blocks: u64,
        size: u64,
    ) -> Option<&'static str> {
        let (all_bytes, all_blocks) = self.kept.as_mut()?;
        let stacks = image.stacks();
        let frames = stacks.stack(site).take(DEEPEST).map(|(_, site)| symbols.name(stacks, &site).as_ref().clone());
        let what = kept_on_purpose(frames)?;
        *all_bytes = all_bytes.saturating_add(size);
        *all_blocks += blocks;
        Some(what)
    }

    /// What each rule ate.
    pub fn eaten(&self) -> Vec<Eaten> {
        let row = |rule: &Rule| Eaten {
            rule: rule.text.clone(),
            origin: rule.origin.clone(),
            stacks: rule.stacks,
            blocks: rule.blocks,
            bytes: rule.bytes,
        };
        self.rules.iter().map(row).collect()
    }
}

/// A stack with all that rules may name, innermost first.
pub fn seen(image: &Image, symbols: &mut Symbolizer, site: u32) -> Vec<NamedFrame> {
    let stacks = image.stacks();
    let mut all = Vec::new();
    for (_, site) in stacks.stack(site).take(DEEPEST) {
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

/// Position of the frame of a stack that is blamed.
pub fn blamed_frame(stack: &[NamedFrame]) -> usize {
    blamed(stack.iter().map(|seen| seen.frame.role), 1).first().copied().unwrap_or(0)
}

/// Says what was suppressed, and which rules are of no use.
pub fn print(found: &Found, screen: &mut Screen) -> io::Result<()> {
    let Rules { rules, kept, notes, .. } = &found.rules;
    if let Some((size, blocks)) = kept
        && *blocks > 0
    {
        let (size, blocks) = (bytes(*size), counted(*blocks, "block"));
        screen
            .line(&format!("{size} in {blocks} that the run-time keeps on purpose are not listed (--no-built-in)"))?;
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
