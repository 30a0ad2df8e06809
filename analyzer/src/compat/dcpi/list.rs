//! `dcpilist`: one procedure, source line by source line or instruction by instruction, with its counts.

use super::disassembly::{Instruction, disassemble};
use super::elf::{Elf, Place, Procedure};
use super::prof::total_line;
use super::set::{Image, Set, add_row};
use super::text::Table;
use super::{Error, Result};
use crate::text::clean_columns;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// Lines without instructions that are still shown between lines that have some.
const SHOWN_GAP: u32 = 6;
/// Bytes of a source file that are read.
const LONGEST_SOURCE: u64 = 16 << 20;
/// Bytes that are shown at an address when there is no disassembly.
const SHOWN_BYTES: u64 = 8;

/// What is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Source lines where the source can be read, else instructions.
    #[default]
    Best,
    /// Source lines.
    Source,
    /// Instructions.
    Instructions,
    /// Source lines, each with its instructions.
    Both,
}

/// The options of `dcpilist`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A procedure's name, or an address in it.
    pub procedure: String,
    /// What is listed.
    pub form: Form,
    /// No heading.
    pub no_header: bool,
    /// Bytes only: do not ask objdump.
    pub bytes_only: bool,
}

/// A procedure with the counts of its addresses, by the addresses of the ELF file.
pub(super) struct Listing<'a> {
    pub(super) image: &'a Image,
    pub(super) elf: &'a Elf,
    pub(super) procedure: &'a Procedure,
    pub(super) rows: Vec<(u64, Vec<u64>)>,
}

/// Prints a procedure's listing.
pub fn print(set: &Set, options: &Options, out: &mut dyn Write) -> Result<()> {
    let listing = find(set, &options.procedure)?;
    let lines = listing.lines(set.events.len());
    let has_source = lines.keys().any(|place| !source(&place.file).is_empty());
    let form = match options.form {
        Form::Best if has_source => Form::Source,
        Form::Best => Form::Instructions,
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
        Form::Source | Form::Best => listing.source(set, &lines, out, with_heading)?,
    }
    Ok(())
}

/// The procedure that is asked for, by name or by an address of the profile or of the ELF file.
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
            None => found.extend(elf.named(wanted).into_iter().map(|procedure| (image, elf, procedure))),
        }
    }
    let mut listings: Vec<Listing<'_>> =
        found.iter().map(|&(image, elf, procedure)| Listing::new(set, image, elf, procedure)).collect();
    // Of several procedures of one name, those without samples are not meant.
    if listings.len() > 1 {
        listings.retain(|listing| !listing.rows.is_empty());
    }
    match listings.len() {
        1 => Ok(listings.remove(0)),
        0 if found.len() > 1 => {
            Err(Error::NoProcedure(format!("{wanted}: {} procedures, none with samples", found.len())))
        }
        0 if set.images.iter().all(|image| image.elf.is_none()) => {
            Err(Error::NoProcedure(format!("{wanted}: no image has symbols; name its ELF file (--image)")))
        }
        0 => Err(Error::NoProcedure(format!("{wanted}: no such procedure in the images"))),
        _ => {
            let places: Vec<String> = listings
                .iter()
                .map(|listing| {
                    format!("{:#x} in {}", listing.procedure.start, clean_columns(listing.image.long_name()))
                })
                .collect();
            Err(Error::NoProcedure(format!("{wanted}: several procedures, name an address: {}", places.join(", "))))
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

    /// All source lines of the procedure, with their counts.
    pub(super) fn lines(&self, events: usize) -> BTreeMap<Place, Vec<u64>> {
        let all = self.elf.places(self.procedure.start, self.procedure.end);
        let mut lines: BTreeMap<Place, Vec<u64>> = all.into_iter().map(|place| (place, vec![0; events])).collect();
        for (address, row) in &self.rows {
            if let Some(place) = self.elf.place(*address) {
                add_row(lines.entry(place).or_insert_with(|| vec![0; events]), row);
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

    /// The bytes at each address that has counts, up to the next such address.
    fn bytes(&self) -> Vec<Instruction> {
        let next = self.rows.iter().skip(1).map(|row| row.0).chain([self.procedure.end]);
        let shown = |(row, next): (&(u64, Vec<u64>), u64)| {
            let bytes = self.elf.bytes(row.0, next.min(row.0.saturating_add(SHOWN_BYTES)));
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Instruction { address: row.0, bytes: bytes.join(" "), text: String::new() }
        };
        self.rows.iter().zip(next).map(shown).collect()
    }

    /// Counts by instruction. An address inside an instruction is counted at it.
    fn by_instruction(&self, events: usize, instructions: &[Instruction]) -> Vec<Vec<u64>> {
        let mut sums = vec![vec![0; events]; instructions.len()];
        for (address, row) in &self.rows {
            let place = instructions.partition_point(|instruction| instruction.address <= *address);
            if let Some(sum) = sums.get_mut(place.saturating_sub(1)) {
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

    fn source(
        &self,
        set: &Set,
        lines: &BTreeMap<Place, Vec<u64>>,
        out: &mut dyn Write,
        with_heading: bool,
    ) -> Result<()> {
        let events = set.events.len();
        let mut table = table(set, &["line", "source"]);
        let files: BTreeSet<&str> = lines.keys().map(|place| place.file.as_str()).collect();
        for file in files {
            table.row(blank(events, [String::new(), format!("--- {}", clean_columns(file))]));
            let texts = source(file);
            let mut last = None;
            for (place, counts) in lines.iter().filter(|(place, _)| place.file == file) {
                for line in between(last, place.line) {
                    match line {
                        Some(line) => table.row(blank(events, [line.to_string(), text_of(&texts, line)])),
                        None => table.row(blank(events, ["...".to_string(), String::new()])),
                    }
                }
                table.row(cells(counts, [place.line.to_string(), text_of(&texts, place.line)]));
                last = Some(place.line);
            }
        }
        self.rest(set, &mut table);
        Ok(table.aligned(with_heading, out)?)
    }

    fn both(
        &self,
        set: &Set,
        lines: BTreeMap<Place, Vec<u64>>,
        instructions: &[Instruction],
        out: &mut dyn Write,
        with_heading: bool,
    ) -> Result<()> {
        let events = set.events.len();
        let counts = self.by_instruction(events, instructions);
        let places: Vec<Option<Place>> = instructions.iter().map(|one| self.elf.place(one.address)).collect();
        let mut table = table(set, &["address", "bytes", "instruction"]);
        let texts: BTreeMap<&str, Vec<String>> =
            lines.keys().map(|place| (place.file.as_str(), source(&place.file))).collect();
        for place in lines.keys().map(Some).chain([None]) {
            let own: Vec<usize> = (0..places.len()).filter(|&one| places[one].as_ref() == place).collect();
            if own.is_empty() {
                continue;
            }
            let (line, text) = match place {
                Some(place) => {
                    (format!("{}:{}", place.file, place.line), text_of(&texts[place.file.as_str()], place.line))
                }
                None => ("(no line)".to_string(), String::new()),
            };
            let shown = if text.is_empty() { clean_columns(&line) } else { text };
            table.row(blank(events, ["---".to_string(), String::new(), shown]));
            let mut last = None;
            for one in own {
                if last.is_some_and(|last| last + 1 != one) {
                    table.row(blank(events, ["...".to_string(), String::new(), String::new()]));
                }
                let Instruction { address, bytes, text } = &instructions[one];
                table.row(cells(&counts[one], [format!("{address:#x}"), bytes.clone(), clean_columns(text)]));
                last = Some(one);
            }
        }
        Ok(table.aligned(with_heading, out)?)
    }

    /// Counts at addresses without line.
    fn rest(&self, set: &Set, table: &mut Table) {
        let mut rest = vec![0; set.events.len()];
        for (_, row) in self.rows.iter().filter(|(address, _)| self.elf.place(*address).is_none()) {
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

/// The lines to show between two that have instructions; `None` for a longer gap.
fn between(last: Option<u32>, next: u32) -> Vec<Option<u32>> {
    match last {
        Some(last) if next.saturating_sub(last) > SHOWN_GAP => vec![None],
        Some(last) => (last.saturating_add(1)..next).map(Some).collect(),
        None => Vec::new(),
    }
}

fn text_of(texts: &[String], line: u32) -> String {
    let place = usize::try_from(line).unwrap_or(usize::MAX).wrapping_sub(1);
    texts.get(place).cloned().unwrap_or_default()
}

/// The lines of a source file; none if it cannot be read here.
fn source(path: &str) -> Vec<String> {
    let is_file = std::path::Path::new(path).is_file();
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else { return Vec::new() };
    let mut bytes = Vec::new();
    if file.take(LONGEST_SOURCE).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    String::from_utf8_lossy(&bytes).lines().map(|line| clean_columns(&line.replace('\t', "    "))).collect()
}
