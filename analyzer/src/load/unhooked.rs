//! A `malloc` that the program calls and that was not recorded.

use super::Process;
use crate::missing::Missing;
use heaptape_formats::recording;

impl Process {
    /// Notes a `malloc` of the program that could not be hooked.
    pub(super) fn note_unhooked(&mut self) {
        let unhooked =
            |allocator: &&recording::Allocator| allocator.is_own_malloc && allocator.found > 0 && allocator.hooked == 0;
        for allocator in self.about.allocators.iter().filter(unhooked) {
            let why = allocator.refused.first().map(|refused| refused.why.clone()).unwrap_or_default();
            self.missing.push(Missing::Unhooked { allocator: allocator.name.clone(), why });
        }
        // A wrapper passes its calls on.
        if self.about.own_malloc && self.tape.events == 0 && self.about.allocators.iter().all(|one| !unhooked(&one)) {
            let why = "it is that of the program, or of a library preloaded before heaptape's, and passes nothing on";
            self.missing.push(Missing::Unhooked { allocator: "malloc".into(), why: why.into() });
        }
    }
}
