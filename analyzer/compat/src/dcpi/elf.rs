//! Procedures, source lines and bytes of an ELF file, as DCPI's tools show them.

use heaptape_analyzer::symbols::{
    FunctionRange, Lines, ObjectError, ObjectFile, SourceLine, Style, TextSection, demangle_in, hexadecimal,
};
use std::path::{Path, PathBuf};

/// An ELF file. All addresses are those in the file.
pub struct Elf {
    /// Path from which the file was read.
    pub path: PathBuf,
    /// Build ID in hexadecimal digits.
    pub build_id: Option<String>,
    procedures: Vec<Procedure>,
    text_sections: Vec<TextSection>,
    lines: Option<Lines>,
}

/// A function symbol of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// The name in the symbol table.
    pub symbol: String,
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
}

impl Procedure {
    /// Returns the demangled name.
    pub fn name(&self) -> String {
        demangle_in(Style::Binutils, &self.symbol)
    }
}

impl Elf {
    /// Parses the bytes of an ELF file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a readable ELF file.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Elf, ObjectError> {
        let file = ObjectFile::parse_elf(bytes)?;
        let text_sections = file.text_sections();
        let procedure =
            |function: FunctionRange| Procedure { symbol: function.symbol, start: function.start, end: function.end };
        Ok(Elf {
            path: path.to_path_buf(),
            build_id: file.build_id()?.map(|id| hexadecimal(&id)),
            procedures: file.functions(&text_sections).into_iter().map(procedure).collect(),
            text_sections,
            lines: file.lines(),
        })
    }

    /// Returns the number to add to an address of a profile to get the address in the file.
    /// `tstart` and `tsize` are the text range that the profile states. Profiles by heaptape state
    /// addresses of the file. Other profiles may state the range in the memory of the process.
    pub fn shift(&self, tstart: u64, tsize: u64) -> u64 {
        let (Some(first), Some(last)) = (self.text_sections.first(), self.text_sections.last()) else { return 0 };
        if tstart < last.end && tstart.saturating_add(tsize.max(1)) > first.start {
            return 0;
        }
        // A section with the same offset in its page is the one that was mapped. Otherwise it is
        // the first page of the text.
        let page = 0xfff;
        let section = self.text_sections.iter().find(|text| text.start & page == tstart & page);
        section.map_or(first.start & !page, |text| text.start).wrapping_sub(tstart)
    }

    /// Returns the procedure that contains an address.
    pub fn procedure(&self, address: u64) -> Option<&Procedure> {
        let index = self.procedures.partition_point(|procedure| procedure.start <= address);
        self.procedures[..index].last().filter(|procedure| address < procedure.end)
    }

    /// Returns the procedures with a mangled or demangled name. If there are none, it returns those
    /// whose demangled name without parameters matches.
    pub(crate) fn procedures_named(&self, name: &str) -> Vec<&Procedure> {
        let all = |is_named: &dyn Fn(&Procedure) -> bool| -> Vec<&Procedure> {
            self.procedures.iter().filter(|procedure| is_named(procedure)).collect()
        };
        let found = all(&|procedure| procedure.symbol == name || procedure.name() == name);
        if !found.is_empty() || name.is_empty() {
            return found;
        }
        all(&|procedure| procedure.name().strip_prefix(name).is_some_and(|parameters| parameters.starts_with('(')))
    }

    pub fn source_line(&self, address: u64) -> Option<SourceLine> {
        self.lines.as_ref()?.at(address)
    }

    /// Returns all source lines that have instructions in a range, sorted and without duplicates.
    pub fn source_lines(&self, start: u64, end: u64) -> Vec<SourceLine> {
        let starts = self.lines.as_ref().map(|lines| lines.within(start..end)).unwrap_or_default();
        let mut lines: Vec<SourceLine> = starts.into_iter().map(|start| start.line).collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Returns the bytes of a range, up to the end of its section. The result is empty if no
    /// section contains `start`.
    pub fn bytes(&self, start: u64, end: u64) -> &[u8] {
        let text = self.text_sections.iter().find(|text| text.start <= start && start < text.end);
        let Some(text) = text else { return &[] };
        let from = usize::try_from(start - text.start).unwrap_or(usize::MAX);
        let to = usize::try_from(end.max(start) - text.start).unwrap_or(usize::MAX).min(text.bytes.len());
        text.bytes.get(from..to).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procedures_are_found_without_their_parameters() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon/exe/names64");
        let elf = Elf::parse(&path, &std::fs::read(&path).expect("the sample")).expect("an ELF file");
        let named = |name: &str| elf.procedures_named(name).iter().map(|found| found.name()).collect::<Vec<_>>();
        let full = "shop::Item::stock(shop::Item*, int)";
        for name in [full, "shop::Item::stock", "_ZN4shop4Item5stockEPS0_i"] {
            assert_eq!(named(name), [full], "{name}");
        }
        for name in ["shop::Item::st", "stock", ""] {
            assert!(named(name).is_empty(), "{name}");
        }
    }
}
