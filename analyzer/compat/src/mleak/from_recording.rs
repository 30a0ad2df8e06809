//! mleak's view of a recording or a trace: the blocks that are live at its end. Unlike in a log,
//! reallocations are followed.

use super::{Block, Options, print};
use crate::input::RecordingInput;
use heaptape_analyzer::Process;
use heaptape_analyzer::Progress;
use heaptape_analyzer::export::Error;
use heaptape_analyzer::model::live_set;
use heaptape_analyzer::replay_all;
use heaptape_analyzer::report::call_site;
use heaptape_analyzer::symbols::{Detail, Frame, Symbolizer};
use heaptape_analyzer::text::clean_columns;
use heaptape_formats::tape::Entry;
use std::io::Write;

/// Maximum number of frames that are shown of a stack.
const MAX_FRAMES: usize = 1024;

/// Prints the blocks that are live at the end of the selected process, or of the process with most
/// events. Returns notes for the user: other processes that could be shown, and data that is
/// missing.
///
/// # Errors
/// Returns an error if the recording has no events, or if writing to `out` fails.
pub fn view_recording(recorded: &RecordingInput, options: &Options, out: &mut dyn Write) -> Result<Vec<String>, Error> {
    let (process, others) = recorded.largest()?;
    let mut notes = Vec::new();
    if !others.is_empty() {
        notes.push(format!("this is {}; --process shows {}", process.about.folder, others.join(", ")));
    }
    let outcome = replay_all(process, &Progress::new("reading events"));
    notes.extend(process.missing.iter().chain(&outcome.missing).map(ToString::to_string));
    let mut live: Vec<(u64, live_set::Block)> = outcome.live.iter().filter(|(_, block)| !block.inherited).collect();
    live.sort_unstable_by_key(|(index, _)| *index);
    let mut symbols = Symbolizer::new(Detail::Full);
    let blocks: Vec<Block> =
        live.iter().map(|(index, block)| block_text(&mut symbols, process, *index, block)).collect();
    print(&blocks.iter().collect::<Vec<_>>(), options, out).map_err(|error| Error::Write("mleak".into(), error))?;
    Ok(notes)
}

/// Returns a block with the texts that a log would have.
fn block_text(symbols: &mut Symbolizer, process: &Process, index: u64, block: &live_set::Block) -> Block {
    let mut stack = Vec::new();
    for (_, site) in process.stacks().stack(block.site).take(MAX_FRAMES) {
        let frames = symbols.frames(process.stacks(), &site);
        // A bare trace has source locations, but no stacks.
        if site.address == 0 {
            continue;
        }
        let start = symbols.function(process.stacks(), &site);
        let shown = match start {
            Some((start, name)) => format!("\t0x{:016X} {name}+{}", site.address, site.address.wrapping_sub(start)),
            None => format!("\t0x{:016X} {}", site.address, frames.last().map_or_else(|| "???".into(), Frame::title)),
        };
        stack.push(clean_columns(&shown).into_bytes());
    }
    let entry = Entry::from_number(block.entry).map_or("malloc", Entry::name);
    let location = match block.site {
        0 => Frame::default(),
        site => call_site(symbols, process.stacks(), site, 1).frame,
    };
    let or_dash = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("-").to_string();
    let (function, file) = (or_dash(location.function.as_deref()), or_dash(location.file.as_deref()));
    let line = location.line.map_or_else(|| "-".into(), |line| line.to_string());
    let origin = format!("{{{entry}:{index}:{}}} [{function}|{file}|{line}]", block.resizes);
    Block {
        address: format!("0x{:016X}", block.address).into_bytes(),
        size: block.size,
        origin: clean_columns(&origin).into_bytes(),
        stack,
    }
}
