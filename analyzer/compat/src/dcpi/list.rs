//! `dcpilist`: prints the counts of one procedure by source line or instruction.

use super::disassembly::{Instruction, disassemble};
use super::elf::{Elf, Procedure};
use super::prof::total_line;
use super::set::{Image, Set, add_row};
use super::text::Table;
use super::{Error, Result};
use heaptape_analyzer::symbols::SourceLine;
use heaptape_analyzer::text::clean_columns;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// Maximum number of lines without instructions that are shown between two lines with instructions.
const SHOWN_GAP: u32 = 6;
/// Maximum number of bytes that are read of a source file.
const MAX_SOURCE_BYTES: u64 = 16 << 20;
/// Maximum number of bytes that are shown at an address if there is no disassembly.
const SHOWN_BYTES: u64 = 8;

/// The kind of listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Source lines if the source can be read, else instructions.
    #[default]
    Auto,
    /// Source lines without instructions.
    Source,
    /// Instructions without source lines.
    Instructions,
    /// Source lines, each with its instructions.
    Both,
}

/// The options of `dcpilist`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of a procedure, or an address in it.
    pub procedure: String,
    /// The kind of listing.
    pub form: Form,
    /// Whether to omit the heading.
    pub no_header: bool,
    /// Shows bytes instead of running objdump.
    pub bytes_only: bool,
}

/// A procedure with the counts at its addresses. The addresses are those of the ELF file.
pub(super) struct Listing<'a> {
    pub(super) image: &'a Image,
    pub(super) elf: &'a Elf,
    pub(super) procedure: &'a Procedure,
    pub(super) rows: Vec<(u64, Vec<u64>)>,
}

/// Prints the listing of a procedure.
///
/// # Errors
/// Returns an error if the procedure is not found or ambiguous, or if writing to `out` fails.
pub fn print(set: &Set, options: &Options, out: &mut dyn Write) -> Result<()> {
    let listing = find(set, &options.procedure)?;
    let lines = listing.lines(set.events.len());
    let has_source = lines.keys().any(|line| !source(&line.file).is_empty());
    let form = match options.form {
        Form::Auto if has_source => Form::Source,
        Form::Auto => Form::Instructions,
        form => form,
    };
    if !options.no_header {
        listing.heading(set, out)?;
    }
    let with_heading = !options.no_header;
    let instructions =
        || if options.bytes_only { None } else { listing.disassembled() }.unwrap_or_else(|| listing.bytes());
    match form {
        Form::Instructions => listing.instructions(set, &instructions()).aligned(with_heading, out)?,
        Form::Both => listing.both(set, lines, &instructions(), out, with_heading)?,
        Form::Source | Form::Auto => listing.source(set, &lines, out, with_heading)?,
    }
    Ok(())
}

/// Returns the requested procedure. `wanted` is a name, an address of the profile or an address of
/// the ELF file.
pub(super) fn find<'a>(set: &'a Set, wanted: &str) -> Result<Listing<'a>> {
    let address = wanted.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let mut found: Vec<(&Image, &Elf, &Procedure)> = Vec::new();
    for image in &set.images {
        let Some(elf) = image.elf.as_deref() else { continue };
        match address {
            Some(address) => {
                let procedure = image.procedure(address).or_else(|| elf.procedure(address));
                found.extend(procedure.map(|procedure| (image, elf, procedure)));
            }
            None => found.extend(elf.procedures_named(wanted).into_iter().map(|procedure| (image, elf, procedure))),
        }
    }
    let mut listings: Vec<Listing<'_>> =
        found.iter().map(|&(image, elf, procedure)| Listing::new(set, image, elf, procedure)).collect();
    // Of several procedures with the same name, those without samples are ignored.
    if listings.len() > 1 {
        listings.retain(|listing| !listing.rows.is_empty());
    }
    match listings.len() {
        1 => Ok(listings.remove(0)),
        0 if found.len() > 1 => Err(Error::NoSamples { name: wanted.to_owned(), count: found.len() }),
        0 if set.images.iter().all(|image| image.elf.is_none()) => Err(Error::NoSymbols(wanted.to_owned())),
        0 => Err(Error::NoProcedure(wanted.to_owned())),
        _ => {
            let locations: Vec<String> = listings
                .iter()
                .map(|listing| {
                    format!("{:#x} in {}", listing.procedure.start, clean_columns(listing.image.long_name()))
                })
                .collect();
            Err(Error::SeveralProcedures { name: wanted.to_owned(), locations })
        }
    }
}

impl<'a> Listing<'a> {
    fn new(set: &Set, image: &'a Image, elf: &'a Elf, procedure: &'a Procedure) -> Self {
        let shift = image.shift();
        let inside = |address: &u64| (procedure.start..procedure.end).contains(address);
        let moved = image.rows(set.events.len()).map(|(address, row)| (address.wrapping_add(shift), row));
        let mut rows: Vec<(u64, Vec<u64>)> = moved.filter(|(address, _)| inside(address)).collect();
        rows.sort_by_key(|&(address, _)| address);
        Listing { image, elf, procedure, rows }
    }

    /// Returns all source lines of the procedure with their counts.
    pub(super) fn lines(&self, events: usize) -> BTreeMap<SourceLine, Vec<u64>> {
        let all = self.elf.source_lines(self.procedure.start, self.procedure.end);
        let mut lines: BTreeMap<SourceLine, Vec<u64>> = all.into_iter().map(|line| (line, vec![0; events])).collect();
        for (address, row) in &self.rows {
            if let Some(line) = self.elf.source_line(*address) {
                add_row(lines.entry(line).or_insert_with(|| vec![0; events]), row);
            }
        }
        lines
    }

    fn heading(&self, set: &Set, out: &mut dyn Write) -> Result<()> {
        for event in &set.events {
            writeln!(out, "{}", total_line(event))?;
        }
        let Procedure { start, end, .. } = self.procedure;
        let (name, image) = (clean_columns(&self.procedure.name()), clean_columns(self.image.long_name()));
        writeln!(out, "procedure {name}, {start:#x} to {end:#x}, image {image}\n")?;
        Ok(())
    }

    fn disassembled(&self) -> Option<Vec<Instruction>> {
        disassemble(self.elf, self.procedure.start, self.procedure.end)
    }

    /// Returns the bytes from each address that has counts up to the next such address, in place of
    /// instructions.
    fn bytes(&self) -> Vec<Instruction> {
        let next = self.rows.iter().skip(1).map(|row| row.0).chain([self.procedure.end]);
        let shown = |(row, next): (&(u64, Vec<u64>), u64)| {
            let bytes = self.elf.bytes(row.0, next.min(row.0.saturating_add(SHOWN_BYTES)));
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Instruction { address: row.0, bytes: bytes.join(" "), text: String::new() }
        };
        self.rows.iter().zip(next).map(shown).collect()
    }

    /// Returns the counts by instruction. An address inside an instruction counts for that
    /// instruction.
    fn by_instruction(&self, events: usize, instructions: &[Instruction]) -> Vec<Vec<u64>> {
        let mut sums = vec![vec![0; events]; instructions.len()];
        for (address, row) in &self.rows {
            let index = instructions.partition_point(|instruction| instruction.address <= *address);
            if let Some(sum) = sums.get_mut(index.saturating_sub(1)) {
                add_row(sum, row);
            }
        }
        sums
    }

    fn instructions(&self, set: &Set, instructions: &[Instruction]) -> Table {
        let mut table = table(set, &["address", "offset", "bytes", "instruction"]);
        let counts = self.by_instruction(set.events.len(), instructions);
        for (instruction, counts) in instructions.iter().zip(counts) {
            let Instruction { address, bytes, text } = instruction;
            let offset = format!("+{:#x}", address.wrapping_sub(self.procedure.start));
            table.row(cells(&counts, [format!("{address:#x}"), offset, bytes.clone(), clean_columns(text)]));
        }
        table
    }

    /// Writes the listing by source line.
    fn source(
        &self,
        set: &Set,
        lines: &BTreeMap<SourceLine, Vec<u64>>,
        out: &mut dyn Write,
        with_heading: bool,
    ) -> Result<()> {
        let events = set.events.len();
        let mut table = table(set, &["line", "source"]);
        let files: BTreeSet<&str> = lines.keys().map(|line| line.file.as_str()).collect();
        for file in files {
            table.row(blank(events, [String::new(), format!("--- {}", clean_columns(file))]));
            let texts = source(file);
            let mut last = None;
            for (line, counts) in lines.iter().filter(|(line, _)| line.file == file) {
                for number in between(last, line.line) {
                    match number {
                        Some(number) => table.row(blank(events, [number.to_string(), text_of(&texts, number)])),
                        None => table.row(blank(events, ["...".to_string(), String::new()])),
                    }
                }
                table.row(cells(counts, [line.line.to_string(), text_of(&texts, line.line)]));
                last = Some(line.line);
            }
        }
        self.add_rest(set, &mut table);
        Ok(table.aligned(with_heading, out)?)
    }

    /// Writes the listing by source line, each with its instructions.
    fn both(
        &self,
        set: &Set,
        lines: BTreeMap<SourceLine, Vec<u64>>,
        instructions: &[Instruction],
        out: &mut dyn Write,
        with_heading: bool,
    ) -> Result<()> {
        let events = set.events.len();
        let counts = self.by_instruction(events, instructions);
        let line_of: Vec<Option<SourceLine>> =
            instructions.iter().map(|instruction| self.elf.source_line(instruction.address)).collect();
        let mut table = table(set, &["address", "bytes", "instruction"]);
        let texts: BTreeMap<&str, Vec<String>> =
            lines.keys().map(|line| (line.file.as_str(), source(&line.file))).collect();
        for line in lines.keys().map(Some).chain([None]) {
            let indexes: Vec<usize> = (0..line_of.len()).filter(|&index| line_of[index].as_ref() == line).collect();
            if indexes.is_empty() {
                continue;
            }
            let (label, text) = match line {
                Some(line) => (format!("{}:{}", line.file, line.line), text_of(&texts[line.file.as_str()], line.line)),
                None => ("(no line)".to_string(), String::new()),
            };
            let shown = if text.is_empty() { clean_columns(&label) } else { text };
            table.row(blank(events, ["---".to_string(), String::new(), shown]));
            let mut last = None;
            for index in indexes {
                if last.is_some_and(|last| last + 1 != index) {
                    table.row(blank(events, ["...".to_string(), String::new(), String::new()]));
                }
                let Instruction { address, bytes, text } = &instructions[index];
                table.row(cells(&counts[index], [format!("{address:#x}"), bytes.clone(), clean_columns(text)]));
                last = Some(index);
            }
        }
        Ok(table.aligned(with_heading, out)?)
    }

    /// Adds a row for the counts at addresses without source line.
    fn add_rest(&self, set: &Set, table: &mut Table) {
        let mut rest = vec![0; set.events.len()];
        for (_, row) in self.rows.iter().filter(|(address, _)| self.elf.source_line(*address).is_none()) {
            add_row(&mut rest, row);
        }
        if rest.iter().any(|&count| count > 0) {
            table.row(cells(&rest, ["-".to_string(), "(no line)".to_string()]));
        }
    }
}

fn table(set: &Set, names: &[&str]) -> Table {
    let events = set.events.iter().map(|event| clean_columns(&event.name));
    Table::new(events.chain(names.iter().map(|name| name.to_string())).collect(), names.len())
}

fn cells<const N: usize>(counts: &[u64], names: [String; N]) -> Vec<String> {
    counts.iter().map(u64::to_string).chain(names).collect()
}

fn blank<const N: usize>(events: usize, names: [String; N]) -> Vec<String> {
    vec![String::new(); events].into_iter().chain(names).collect()
}

/// Returns the lines to show between two lines with instructions. A single `None` marks a
/// longer gap.
fn between(last: Option<u32>, next: u32) -> Vec<Option<u32>> {
    match last {
        Some(last) if next.saturating_sub(last) > SHOWN_GAP => vec![None],
        Some(last) => (last.saturating_add(1)..next).map(Some).collect(),
        None => Vec::new(),
    }
}

fn text_of(texts: &[String], line: u32) -> String {
    let index = usize::try_from(line).unwrap_or(usize::MAX).wrapping_sub(1);
    texts.get(index).cloned().unwrap_or_default()
}

/// Returns the lines of a source file, or an empty vector if it cannot be read.
fn source(path: &str) -> Vec<String> {
    let is_file = std::path::Path::new(path).is_file();
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else { return Vec::new() };
    let mut bytes = Vec::new();
    if file.take(MAX_SOURCE_BYTES).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    String::from_utf8_lossy(&bytes).lines().map(|line| clean_columns(&line.replace('\t', "    "))).collect()
}
