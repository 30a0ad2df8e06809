//! The memory of a process besides its live blocks, over time: what was resident at the snapshots
//! of its pages, and what the program had mapped itself.

use crate::event::Span;
use crate::load::Process;
use crate::report::mapped;

/// Maximum number of points of mapped memory.
const POINTS: u64 = 1000;

/// The bytes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrackPoint {
    /// Nanoseconds since the start of the process.
    pub(super) at_ns: u64,
    pub(super) bytes: u64,
}

/// A kind of memory over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryTrack {
    pub(super) name: &'static str,
    /// The points by time. The bytes are the same from each one to the next.
    pub(super) points: Vec<TrackPoint>,
}

/// Returns the tracks of a process for a span of its run: none if nothing is known, or if the
/// recording has no times.
pub(super) fn of(process: &Process, span: Span) -> Vec<MemoryTrack> {
    if !process.has_times() {
        return Vec::new();
    }
    let within = span.first_tick..span.end_tick;
    let point = |tick: u64, bytes: u64| TrackPoint { at_ns: process.clock.nanos(tick), bytes };
    let snapshots = process.tape.snapshots.iter().map(|snapshot| &snapshot.sums);
    let snapshots = snapshots.filter(|sums| within.contains(&sums.tick) && sums.resident_bytes > 0);
    let mut resident: Vec<TrackPoint> = snapshots.map(|sums| point(sums.tick, sums.resident_bytes)).collect();
    resident.sort_by_key(|point| point.at_ns);
    let (start, end) =
        (span.first_tick.max(process.clock.start_tick), span.end_tick.min(process.tape.last_tick.saturating_add(1)));
    let width = end.saturating_sub(start).div_ceil(POINTS).max(1);
    let ticks: Vec<u64> = (1..=POINTS).map(|number| start.saturating_add(number * width).min(end)).collect();
    let mapped = ticks.iter().zip(mapped::bytes_before(process, &ticks));
    let mut mapped: Vec<TrackPoint> = mapped.map(|(tick, bytes)| point(*tick, bytes.used)).collect();
    mapped.dedup_by_key(|point| point.bytes);
    if mapped.iter().all(|point| point.bytes == 0) {
        mapped.clear();
    }
    let tracks = [("resident memory", resident), ("mapped by the program", mapped)];
    let tracks = tracks.into_iter().filter(|(_, points)| !points.is_empty());
    tracks.map(|(name, points)| MemoryTrack { name, points }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn tracks(name: &str) -> Vec<MemoryTrack> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape/v1").join(name);
        let recording = crate::load::open(&path).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        let oldest = recording.processes.iter().min_by_key(|process| process.about.pid);
        of(oldest.unwrap_or_else(|| panic!("{name}: no process")), Span::ALL)
    }

    /// The frozen recordings have two snapshots each. What one of them maps is printed by its
    /// program.
    #[test]
    fn tracks_are_those_of_snapshots_and_of_calls() {
        let found = tracks("reserved");
        let [resident, mapped] = &found[..] else { panic!("{found:?}") };
        assert_eq!((resident.name, mapped.name), ("resident memory", "mapped by the program"));
        assert_eq!((resident.points.len(), mapped.points.last().map(|point| point.bytes)), (2, Some(491_520)));
        for track in &found {
            assert!(track.points.is_sorted_by(|a, b| a.at_ns < b.at_ns), "{track:?}");
        }
        assert!(mapped.points.len() > 2 && mapped.points.windows(2).all(|pair| pair[0].bytes != pair[1].bytes));
        let found = tracks("resident");
        assert_eq!(
            found.iter().map(|track| (track.name, track.points.len())).collect::<Vec<_>>(),
            [("resident memory", 2)]
        );
        assert!(tracks("trace").is_empty());
    }
}
