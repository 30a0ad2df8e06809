//! Writes a trace as a C program that allocates, reallocates and frees blocks of the same sizes in
//! the same order.
//!
//! A row of its table is `{slot, size, resize}`. Slots are reused, the slot freed last first. In
//! mptrace's program size 0 frees, so a block of size 0 cannot be distinguished from a free. Here a
//! row of size 0 frees the block of its slot, or allocates 0 bytes if the slot is empty. The number
//! of slots is not limited. Their array is written last, when the number is known.

use crate::text::clean;
use std::io::{self, Write};

/// A writer of the program.
pub struct Simulation<'a> {
    out: &'a mut dyn Write,
    slots: u64,
    unused: Vec<u64>,
}

impl<'a> Simulation<'a> {
    /// Writes the beginning of the program. `source` is the name of the trace.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    pub fn new(source: &str, out: &'a mut dyn Write) -> io::Result<Self> {
        let source = clean(source).replace("*/", "* /");
        write!(
            out,
            "/* Replays the allocations of {source}. Each row: slot, size, resize.\n   \
            Size 0 frees the slot's block, or allocates 0 bytes if there is none. */\n\n\
            #include <stdio.h>\n#include <stdlib.h>\n\n\
            static const struct {{ unsigned long slot, size; int resize; }} events[] = {{\n"
        )?;
        Ok(Simulation { out, slots: 0, unused: Vec::new() })
    }

    fn row(&mut self, slot: u64, size: u64, resize: u8) -> io::Result<()> {
        writeln!(self.out, "    {{{slot}, {size}, {resize}}},")
    }

    pub(super) fn alloc(&mut self, size: u64) -> io::Result<u64> {
        let slot = self.unused.pop().unwrap_or(self.slots + 1);
        self.slots = self.slots.max(slot);
        self.row(slot, size, 0)?;
        Ok(slot)
    }

    pub(super) fn resize(&mut self, slot: u64, size: u64) -> io::Result<()> {
        self.row(slot, size, 1)
    }

    pub(super) fn free(&mut self, slot: u64) -> io::Result<()> {
        self.unused.push(slot);
        self.row(slot, 0, 0)
    }

    /// Writes the rest of the program.
    pub(super) fn finish(self) -> io::Result<()> {
        let slots = self.slots + 1;
        write!(
            self.out,
            r#"    {{0, 0, 0}}
}};

static struct {{ void *block; int used; }} slots[{slots}];

int main(void)
{{
    unsigned long event, slot, size;

    for (event = 0; (slot = events[event].slot) != 0; event++) {{
        size = events[event].size;
        if (events[event].resize) {{
            slots[slot].block = realloc(slots[slot].block, size);
        }} else if (size == 0 && slots[slot].used) {{
            free(slots[slot].block);
            slots[slot].block = NULL;
            slots[slot].used = 0;
            continue;
        }} else {{
            slots[slot].block = malloc(size);
            slots[slot].used = 1;
        }}
        if (slots[slot].block == NULL && size != 0) {{
            fprintf(stderr, "event %lu: no memory for %lu bytes\n", event + 1, size);
            return EXIT_FAILURE;
        }}
    }}
    return EXIT_SUCCESS;
}}
"#
        )
    }
}
