//! Notes on the segments of a process.

use crate::load::Process;
use heaptape_formats::date::Date;
use heaptape_formats::recording::{Kept, RAN_ALREADY};

/// Returns when and why a flight recording was kept, and which segments are not included.
pub(crate) fn segment_notes(process: &Process) -> Vec<String> {
    let mut notes = Vec::new();
    let who = format!("{} (pid {})", process.name(), process.about.pid);
    if let Some(Kept { unix_ns, why }) = &process.about.kept {
        let at = Date::from_unix(unix_ns / 1_000_000_000);
        notes.push(format!("{who}: the last events were kept at {at}: {why}"));
    }
    if let Some(last) = process.left_out.last() {
        let number = process.left_out.len();
        let folders = if number == 1 { last.clone() } else { format!("{number} folders, the last one {last}") };
        notes.push(format!("{who}: earlier segments in another mode are not included: {folders}"));
    }
    notes
}

/// The note on a process for which [`is_attached`] holds.
pub const UNKNOWN_BEFORE: &str = "blocks from before the attach are not known";

/// Returns whether a process ran already when it was attached.
pub fn is_attached(process: &Process) -> bool {
    // A recording in progress may not list its processes yet. Its snapshots know it, too.
    let division = || process.tape.snapshots.iter().find_map(|snapshot| snapshot.division.as_ref());
    process.about.unseen_mappings == RAN_ALREADY || division().is_some_and(|division| division.blocks_since_tick > 0)
}

/// Returns live bytes as text: as a lower bound if not all live blocks are known.
pub fn lower_bound(live_since_unix_ns: Option<u64>, known: String) -> String {
    if live_since_unix_ns.is_some() { format!("≥ {known}") } else { known }
}

/// Returns the note that live blocks are known only from a time on.
pub fn known_since(live_since_unix_ns: Option<u64>) -> Option<String> {
    let since = Date::from_unix(live_since_unix_ns? / 1_000_000_000);
    Some(format!("live blocks are known since {since}: blocks that were allocated before are not counted"))
}
