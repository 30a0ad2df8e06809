//! The changes of the working folder that a program requests for a child of `posix_spawn`. They are
//! in the list of file actions, whose layout glibc has kept since 2.29, where it got them
//! (`posix/spawn_int.h`).

use crate::{probe, sys, timestamp};
use core::ffi::c_void;

const CHANGE_TO_PATH: u64 = 3;
const CHANGE_TO_DESCRIPTOR: u64 = 4;
/// The most actions that are looked at.
const MOST: u64 = 256;

/// Returns the word at an address, or 0 if it cannot be read.
fn word(address: u64) -> u64 {
    let mut bytes = [0; 8];
    probe::copy_from(address as usize, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Changes to the folder that the child of these actions starts in. With `is_apart` the calling
/// thread's folder is its own. Returns whether a path means the same here as in the child.
pub(crate) fn enter(actions: *const c_void, is_apart: bool, path: usize) -> bool {
    let mut first = [0];
    if actions.is_null() || (probe::copy_from(path, &mut first) == 1 && first[0] == b'/') {
        return true;
    }
    let (actions, low) = (actions as u64, |word: u64| word & 0xffff_ffff);
    // Two numbers: of entries that there is space for, and of entries; the address of the entries.
    let (used, entries) = (word(actions) >> 32, word(actions.wrapping_add(8)));
    if !timestamp::has_libc_flag() {
        // Another libc. Its children rarely begin elsewhere, and names are rarely looked up there.
        return first[0] != b'.';
    }
    if used > MOST {
        return false;
    }
    // Each has four words: kind; descriptor or path; the others depend on the kind.
    (0..used).all(|index| {
        let entry = entries.wrapping_add(32 * index);
        let value = word(entry.wrapping_add(8));
        match low(word(entry)) {
            CHANGE_TO_PATH => is_apart && sys::change_folder(value as usize),
            CHANGE_TO_DESCRIPTOR => is_apart && sys::change_folder_to(low(value) as i32),
            _ => true,
        }
    })
}
