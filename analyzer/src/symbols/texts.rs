//! The texts of a table of symbols.

use crate::frame::SourceFrame;
use heaptape_formats::tape::SymbolFrame;
use rustc_hash::FxHashMap;

/// A table of texts, each of which is stored once.
#[derive(Default)]
pub(super) struct Texts {
    pub all: Vec<Vec<u8>>,
    known: FxHashMap<Vec<u8>, u32>,
}

impl Texts {
    pub(super) fn number(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        self.all.push(text.to_vec());
        self.known.insert(text.to_vec(), self.all.len() as u32);
        self.all.len() as u32
    }

    pub(super) fn frame(&mut self, frame: &SourceFrame) -> SymbolFrame {
        let mut number = |text: &Option<String>| text.as_ref().map_or(0, |text| self.number(text.as_bytes()));
        SymbolFrame { symbol: number(&frame.symbol), file: number(&frame.file), line: frame.line.unwrap_or(0) }
    }
}
