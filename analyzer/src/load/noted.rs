//! What the recorder noted of stacks that are not whole.

use super::Process;
use crate::missing::Missing;
use heaptape_formats::tape::{CUT_STACKS, UNREAD_STACKS};

impl Process {
    /// Notes the stacks that lack frames, or were not read at all.
    pub(super) fn note_missing_stacks(&mut self) {
        for what in [CUT_STACKS, UNREAD_STACKS] {
            let noted =
                |text: &[u8]| std::str::from_utf8(text).ok()?.strip_suffix(what)?.trim_end().parse::<u64>().ok();
            let count = self.tape.notes.iter().filter_map(|note| noted(&note.text.0)).fold(0, u64::saturating_add);
            if count > 0 {
                self.missing.push(Missing::Stacks { count, what });
            }
        }
    }
}
