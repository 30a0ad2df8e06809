//! Takes a snapshot of the pages of a process.

use super::mappings::{self, Mappings};
use super::pages;
use crate::os::clock::Clock;
use crate::target::maps;
use formats::tape::field::Text;
use formats::tape::{PageRuns, Residency};
use nix::libc;
use std::fs::File;
use std::io::{self, Read};

/// Maximum number of bytes of `status` that are read.
const MAX_STATUS: u64 = 16 << 10;
/// Number of times that the pages are read if the resident memory changes meanwhile.
const TRIES: usize = 3;
/// The resident memory has changed if it is this share smaller or larger than before.
const CHANGE: u64 = 128;

/// What was read before the pages.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// The resident memory in bytes.
    pub(crate) resident_bytes: u64,
    /// Path of a second C library in the process.
    pub(crate) second_libc: Option<String>,
    /// Whether the library has taken memory meanwhile, which seems to be the program's.
    has_grown: bool,
}

/// The outcome of an attempt to take a snapshot.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The snapshot was taken.
    Taken(Box<Residency>, Before),
    /// The pages may not be read, or cannot be. The text is the reason.
    Refused(String),
    /// The process is gone, or executes a program that is not recorded yet.
    Gone,
}

/// Returns the resident memory of a process in bytes, from `/proc/PID/statm`.
pub(super) fn resident_bytes(pid: u32, page: u64) -> Option<u64> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/statm")).ok()?.take(256).read_to_string(&mut text).ok()?;
    text.split(' ').nth(1)?.parse::<u64>().ok()?.checked_mul(page)
}

/// Stores the sums of `/proc/PID/status` in a snapshot.
fn add_status(pid: u32, snapshot: &mut Residency) -> io::Result<()> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/status"))?.take(MAX_STATUS).read_to_end(&mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let field = match name {
            "VmRSS" => &mut snapshot.resident_bytes,
            "RssAnon" => &mut snapshot.anonymous_bytes,
            "RssFile" => &mut snapshot.file_bytes,
            "RssShmem" => &mut snapshot.shared_bytes,
            "VmSwap" => &mut snapshot.swapped_bytes,
            _ => continue,
        };
        let kibibytes: u64 = value.trim().trim_end_matches("kB").trim().parse().unwrap_or(0);
        *field = kibibytes.saturating_mul(1024);
    }
    Ok(())
}

/// Returns the inode of the area that this process has mapped at an address.
pub(crate) fn area_at(address: u64) -> Option<u64> {
    mappings::area_at(&String::from_utf8_lossy(&maps::read_of("self").ok()?), address)
}

/// Returns where the private memory of the library in the process is now.
type Own<'a> = &'a dyn Fn() -> Vec<(u64, u64)>;

/// Reads maps, pages and sums. Returns what was read before the pages, or `None` if the process has
/// not mapped the area with this inode, as after an exec.
fn read(
    (pid, own): (u32, Own<'_>),
    area: u64,
    page: u64,
    clock: &Clock,
    snapshot: &mut Residency,
) -> io::Result<Option<Before>> {
    // Both files belong to the program that the process executes now, also after a later exec.
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let maps = maps::read_of(&pid.to_string())?;
    // The library says where its memory is before it uses it. So this is read after the mappings.
    let ranges = own();
    let mut mappings = Mappings::parse(&String::from_utf8_lossy(&maps), &ranges);
    if !mappings.has_area(area) {
        return Ok(None);
    }
    if maps.len() as u64 == maps::MAX_BYTES {
        snapshot.lacks = "the process has too many mappings".into();
    }
    let mut runs = PageRuns::default();
    let second_libc = mappings.take_second_libc();
    let resident_bytes = resident_bytes(pid, page).unwrap_or(0);
    snapshot.tick = clock.now();
    snapshot.method = pages::pages(&pagemap, page, mappings.ranges(), &mut runs)?;
    snapshot.end_tick = clock.now();
    let has_grown = own() != ranges;
    add_status(pid, snapshot)?;
    mappings.store_into(snapshot);
    runs.pack_into(snapshot)?;
    Ok(Some(Before { resident_bytes, second_libc, has_grown }))
}

/// Takes a snapshot of a process that has mapped the area with this inode. If its memory changes
/// meanwhile, so that pages, sum and the library's part do not agree, the snapshot is taken again.
pub(super) fn take(process: (u32, Own<'_>), area: u64, page: u64, clock: &Clock, cause: u8) -> Attempt {
    let mut tries = 1;
    loop {
        let mut snapshot = Residency { cause, ..Residency::default() };
        let before = read(process, area, page, clock, &mut snapshot);
        let after = snapshot.resident_bytes;
        let has_changed = |before: &Before| before.has_grown || before.resident_bytes.abs_diff(after) > after / CHANGE;
        if tries == TRIES || !matches!(&before, Ok(Some(before)) if has_changed(before)) {
            return attempt(process.0, before, snapshot);
        }
        tries += 1;
    }
}

/// Returns the outcome of an attempt to read maps, pages and sums.
fn attempt(pid: u32, before: io::Result<Option<Before>>, snapshot: Residency) -> Attempt {
    match before {
        // A process that ends has no memory any more.
        Ok(Some(_)) if snapshot.resident_bytes == 0 => Attempt::Gone,
        Ok(Some(before)) => Attempt::Taken(Box::new(snapshot), before),
        Ok(None) => Attempt::Gone,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Attempt::Refused(format!("the recorder may not read /proc/{pid}/pagemap ({error})"))
        }
        // A process that ends has its files for a while, and no memory.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Attempt::Gone,
        Err(error) if std::path::Path::new(&format!("/proc/{pid}/pagemap")).exists() => {
            Attempt::Refused(format!("/proc/{pid}/pagemap: {error}"))
        }
        Err(_) => Attempt::Gone,
    }
}

/// Returns a record that states why there are no pages.
pub(super) fn refused(pid: u32, clock: &Clock, cause: u8, why: &str) -> Residency {
    let tick = clock.now();
    let mut record = Residency { tick, end_tick: tick, cause, lacks: Text::from(why), ..Residency::default() };
    // The sums may be readable all the same.
    let _ = add_status(pid, &mut record);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of the test's own process exist, as those of a process that ends.
    #[test]
    fn process_without_memory_is_gone() {
        let outcome = |code| {
            let error = io::Error::from_raw_os_error(code);
            attempt(std::process::id(), Err(error), Residency::default())
        };
        assert!(matches!(outcome(libc::ESRCH), Attempt::Gone));
        assert!(matches!(outcome(libc::EACCES), Attempt::Refused(_)));
        assert!(matches!(outcome(libc::EIO), Attempt::Refused(_)));
    }
}
