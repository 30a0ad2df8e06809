//! The executable or shared object of a profile, as gprof sees it.

use heaptape_analyzer::symbols::{BinutilsSymbol, LineStart, Lines, Machine, ObjectError, ObjectFile, SourceLine};
use heaptape_analyzer::text::clean;
use heaptape_formats::Abi;
use std::ops::Range;

/// The data of an object file that the view needs.
pub(super) struct Image {
    /// Byte order and pointer size of the target.
    pub abi: Abi,
    /// Build ID, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// Address range of `.text`.
    pub text: Range<u64>,
    /// Function symbols in the order of the symbol table.
    pub symbols: Vec<BinutilsSymbol>,
    /// Whether names begin with an underscore that the source does not have.
    pub has_underscores: bool,
    lines: Option<Lines>,
    /// Whether the binutils print a line only inside a function of the debug information, as for
    /// Windows programs. For ELF files they take the symbol where there is none.
    only_in_functions: bool,
    code: Option<Code>,
}

/// The machine and the bytes of `.text`, in which direct calls are searched.
struct Code {
    machine: Machine,
    bytes: Vec<u8>,
}

/// The source location of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Path of the source file, including the compilation directory.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// The innermost function, which may be inlined, if the debug information has its name.
    pub function: Option<String>,
}

impl Image {
    /// Parses the bytes of an ELF or PE file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a readable program, or if the names of its symbols
    /// are too long.
    pub(super) fn read(bytes: &[u8]) -> Result<Image, ObjectError> {
        let file = ObjectFile::parse(bytes)?;
        let mut symbols = file.binutils_symbols()?;
        for symbol in &mut symbols {
            symbol.name = clean(&symbol.name).into_owned();
        }
        let code = file.text_bytes().zip(file.machine());
        let code = code.map(|(bytes, machine)| Code { machine, bytes: bytes.to_vec() });
        let build_id = file.build_id().ok().flatten();
        let has_underscores = file.has_underscores();
        let (lines, only_in_functions) = (file.lines(), file.is_windows());
        let (abi, text) = (file.abi(), file.text());
        Ok(Image { abi, build_id, text, symbols, has_underscores, lines, only_in_functions, code })
    }

    /// Returns the targets of the direct calls between two addresses, including the last one. All
    /// byte sequences that look like a call are decoded, so only targets that are entries of
    /// functions are meaningful.
    pub(super) fn calls(&self, first: u64, last: u64) -> Vec<u64> {
        let Some(code) = &self.code else { return Vec::new() };
        let offset =
            |address: u64| address.checked_sub(self.text.start).and_then(|offset| usize::try_from(offset).ok());
        let (Some(start), Some(end)) = (offset(first), offset(last)) else { return Vec::new() };
        let truncate = |target: u64| if self.abi.word_size == 4 { target & u64::from(u32::MAX) } else { target };
        let call = |offset: usize| {
            let address = self.text.start.wrapping_add(offset as u64);
            let word = |offset: usize| {
                code.bytes.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
            };
            match code.machine {
                Machine::X86 if code.bytes[offset] == 0xe8 => {
                    let distance = i64::from(word(offset + 1)?.cast_signed());
                    Some(truncate(address.wrapping_add(5).wrapping_add_signed(distance)))
                }
                Machine::X86 => None,
                Machine::Aarch64 => {
                    let word = word(offset).filter(|word| offset.is_multiple_of(4) && word >> 26 == 0b10_0101)?;
                    Some(address.wrapping_add_signed(i64::from((word << 6).cast_signed() >> 6) * 4))
                }
            }
        };
        (start..code.bytes.len().min(end.saturating_add(1))).filter_map(call).collect()
    }

    /// Returns the source location of an address.
    pub(super) fn location(&self, address: u64) -> Option<Location> {
        let lines = self.lines.as_ref().filter(|lines| self.has_line(lines, address))?;
        Some(location(lines, lines.at(address)?, address))
    }

    /// Returns the source locations of `.text` in ascending order, each with the address where it
    /// starts.
    pub(super) fn locations(&self) -> Vec<(u64, Location)> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let mut starts = lines.within(self.text.clone());
        // Inside a line, code of an inlined function may begin or end.
        let bounds = lines.function_bounds(self.text.clone()).into_iter();
        starts.extend(bounds.filter_map(|address| Some(LineStart { address, line: lines.at(address)? })));
        starts.retain(|start| self.has_line(lines, start.address));
        starts.sort_by_key(|start| start.address);
        starts.into_iter().map(|start| (start.address, location(lines, start.line, start.address))).collect()
    }

    fn has_line(&self, lines: &Lines, address: u64) -> bool {
        !self.only_in_functions || lines.has_function(address)
    }
}

fn location(lines: &Lines, line: SourceLine, address: u64) -> Location {
    let function = lines.linker_name(address).map(|name| clean(&name).into_owned());
    Location { file: clean(&line.file).into_owned(), line: line.line, function }
}
