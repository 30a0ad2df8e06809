//! How an answer is shown: its form, its length and its names.

use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::{Screen, Style};
use std::io::Write;

/// How a report is printed.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// JSON instead of text.
    pub json: bool,
    /// Maximum number of rows of a table.
    pub top: usize,
    /// Where the files are found that name frames.
    pub origin: Origin,
}

impl View {
    /// A view as JSON, with tables of at most `top` rows.
    pub fn json(top: usize) -> Self {
        View { json: true, top, ..View::default() }
    }

    /// A view as text, with tables of at most `top` rows.
    pub fn text(top: usize) -> Self {
        View { top, ..View::default() }
    }

    /// Returns a symbolizer that names frames in full.
    pub fn symbolizer(&self) -> Symbolizer {
        let full_names = self.json || self.origin.full_names;
        Symbolizer::from(Detail::Full, Origin { full_names, ..self.origin.clone() })
    }

    /// Returns a screen that writes text to `out`.
    pub fn screen<'a>(&self, out: &'a mut dyn Write, style: Style) -> Screen<'a> {
        Screen::new(out, style).with_names(self.origin.full_names)
    }
}
