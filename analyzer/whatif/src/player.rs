//! Performs a file of operations in this process, with the allocator of this process, and measures
//! what that takes.

use crate::operations::{Action, HEADER_BYTES, Header, OPERATION_BYTES, Operation};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, Thread};
use std::time::Instant;

/// Operations that are read at once.
const BATCH: usize = 4096;
/// Stack of a thread that performs operations, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// Allocated bytes between two looks at the resident memory, at least.
const LEAST_GROWTH: u64 = 64 << 10;
/// Share of all bytes allocated so far between two looks.
const GROWTH_SHARE: u64 = 512;
/// Bytes between two writes to a new block: the smallest page.
const TOUCHED_PAGE: usize = 4096;
/// How often a thread looks whether it is its turn before it sleeps.
const SPINS: u32 = 200;

/// What a replay took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The most anonymous memory that was resident, in bytes, beyond that at the start.
    pub peak_bytes: u64,
    /// Anonymous memory that was resident at the end, in bytes, beyond that at the start.
    pub end_bytes: u64,
    /// Time in the allocation functions and for the first write to each page, in nanoseconds.
    pub nanoseconds: u64,
    /// Page faults without input or output.
    pub page_faults: u64,
    /// Number of allocations that failed.
    pub failed: u64,
}

/// Why operations cannot be performed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// The file cannot be read.
    #[error("the file of operations cannot be read")]
    File(#[from] io::Error),
    /// The file holds something else.
    #[error("the file of operations is damaged: {0}")]
    Damaged(&'static str),
    /// The system starts no further thread.
    #[error("no thread could be started")]
    Thread(#[source] io::Error),
}

/// What all threads use. Only the thread whose turn it is holds the lock of the state.
struct Player {
    file: File,
    header: Header,
    /// The last operation of each thread.
    last_operations: Vec<u64>,
    blocks: Vec<AtomicPtr<u8>>,
    /// Number of the thread whose turn it is, or [`ENDED`].
    turn: AtomicUsize,
    state: Mutex<State>,
}

/// The turn of no thread: the replay has ended.
const ENDED: usize = usize::MAX;
/// The turn before the first one.
const NOBODY: usize = usize::MAX - 1;

struct State {
    next: u64,
    batch: Vec<u8>,
    /// Number of the first operation in `batch`.
    batch_start: u64,
    threads: Vec<Option<Thread>>,
    measured: Measured,
    allocated: u64,
    look_at: u64,
    statm: File,
    page_bytes: u64,
    /// Bytes that the next operation writes at most.
    written: u64,
    error: Option<PlayError>,
}

/// Performs the operations of a file and returns what that took.
///
/// # Errors
/// The file cannot be read or is damaged, or the system starts no further thread.
pub fn play(file: File) -> Result<Measured, PlayError> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let header = Header::decode(&bytes).ok_or(PlayError::Damaged("the header"))?;
    let bound = header.last_operations_offset().checked_add(u64::from(header.threads) * 8);
    if bound != Some(file.metadata()?.len()) || header.threads > 1 << 16 {
        return Err(PlayError::Damaged("its length"));
    }
    let mut last_operations = vec![0; header.threads as usize];
    for (number, last) in (0u64..).zip(&mut last_operations) {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, header.last_operations_offset() + number * 8)?;
        *last = u64::from_le_bytes(bytes);
    }
    // Written once here, so that the table is resident before the measurement.
    let blocks: Vec<AtomicPtr<u8>> =
        (0..header.slots).map(|_| AtomicPtr::new(ptr::without_provenance_mut(1))).collect();
    blocks.iter().for_each(|block| block.store(ptr::null_mut(), Ordering::Relaxed));
    let page_bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64;
    let state = State {
        next: 0,
        batch: vec![0; BATCH * OPERATION_BYTES],
        batch_start: u64::MAX,
        threads: vec![None; header.threads as usize],
        measured: Measured::default(),
        allocated: 0,
        look_at: LEAST_GROWTH,
        statm: File::open("/proc/self/statm")?,
        page_bytes,
        written: u64::MAX,
        error: None,
    };
    let player =
        Player { file, header, last_operations, blocks, turn: AtomicUsize::new(NOBODY), state: Mutex::new(state) };
    let (baseline, faults) = {
        let state = player.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.resident(), faults())
    };
    thread::scope(|scope| {
        let mut state = player.state.lock().unwrap_or_else(PoisonError::into_inner);
        let first = match player.operation(&mut state, 0) {
            Ok(operation) => operation.map_or(ENDED, |operation| usize::from(operation.thread)),
            Err(error) => {
                state.error = Some(error);
                ENDED
            }
        };
        player.pass_turn(&mut state, scope, first);
    });
    let mut state = player.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.error.take() {
        return Err(error);
    }
    let end = state.resident();
    Ok(Measured {
        peak_bytes: state.measured.peak_bytes.max(end).saturating_sub(baseline),
        end_bytes: end.saturating_sub(baseline),
        page_faults: self::faults().saturating_sub(faults),
        ..state.measured
    })
}

fn faults() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.minor_page_faults() as u64)
}

impl State {
    /// Returns the anonymous memory of this process that is resident, in bytes. Allocates nothing.
    fn resident(&self) -> u64 {
        let mut text = [0; 128];
        let count = self.statm.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..count]).unwrap_or_default();
        let number = |at: usize| text.split(' ').nth(at).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        number(1).saturating_sub(number(2)).saturating_mul(self.page_bytes)
    }

    /// Notes memory that was allocated, and looks at the resident memory from time to time.
    fn grew(&mut self, size: u64) {
        self.allocated = self.allocated.saturating_add(size);
        if self.allocated >= self.look_at {
            self.look_at = self.allocated.saturating_add(LEAST_GROWTH.max(self.allocated / GROWTH_SHARE));
            self.measured.peak_bytes = self.measured.peak_bytes.max(self.resident());
        }
    }
}

impl Player {
    /// Waits until it is the turn of a thread. Returns false when the replay has ended instead.
    fn wait_for(&self, thread: usize) -> bool {
        let mut spins = 0;
        loop {
            match self.turn.load(Ordering::Acquire) {
                turn if turn == thread => return true,
                ENDED => return false,
                _ if spins < SPINS => {
                    spins += 1;
                    std::hint::spin_loop();
                }
                _ => thread::park(),
            }
        }
    }

    /// Reads an operation; `None` after the last one.
    fn operation(&self, state: &mut State, number: u64) -> Result<Option<Operation>, PlayError> {
        if number >= self.header.operations {
            return Ok(None);
        }
        let start = number - number % BATCH as u64;
        if state.batch_start != start {
            let count = (self.header.operations - start).min(BATCH as u64) as usize;
            let bytes = &mut state.batch[..count * OPERATION_BYTES];
            self.file.read_exact_at(bytes, HEADER_BYTES as u64 + start * OPERATION_BYTES as u64)?;
            state.batch_start = start;
        }
        let (operations, _) = state.batch.as_chunks::<OPERATION_BYTES>();
        let found = operations.get((number - start) as usize).and_then(Operation::decode);
        let is_inside = |found: &Operation| {
            found.slot < self.header.slots && u32::from(found.thread) < self.header.threads && found.alignment < 32
        };
        found.filter(is_inside).map(Some).ok_or(PlayError::Damaged("an operation"))
    }

    /// The life of one thread: performs its operations, and ends after the last one.
    fn perform<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, thread: usize) {
        while self.wait_for(thread) {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let next = self.perform_turn(&mut state, thread);
            let is_last = state.next > self.last_operations[thread];
            let next = next.unwrap_or_else(|error| {
                state.error.get_or_insert(error);
                ENDED
            });
            self.pass_turn(&mut state, scope, next);
            if is_last {
                break;
            }
        }
    }

    /// Performs operations as long as they are of this thread. Returns the thread of the next one.
    fn perform_turn(&self, state: &mut State, thread: usize) -> Result<usize, PlayError> {
        let start = Instant::now();
        let next = loop {
            let Some(operation) = self.operation(state, state.next)? else { break ENDED };
            if usize::from(operation.thread) != thread {
                break usize::from(operation.thread);
            }
            state.next += 1;
            if operation.action == Action::LimitWrites {
                state.written = operation.size;
                continue;
            }
            let written = std::mem::replace(&mut state.written, u64::MAX);
            if !perform(&operation, &self.blocks[operation.slot as usize], written) {
                state.measured.failed += 1;
            }
            state.grew(operation.size);
        };
        state.measured.nanoseconds += start.elapsed().as_nanos() as u64;
        Ok(next)
    }

    /// Passes the turn to a thread, which is started if it has not been. After the last turn, or an
    /// error, all threads end.
    fn pass_turn<'scope>(&'scope self, state: &mut State, scope: &'scope Scope<'scope, '_>, thread: usize) {
        if state.threads.get(thread).is_some_and(Option::is_none) {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            match builder.spawn_scoped(scope, move || self.perform(scope, thread)) {
                Ok(started) => state.threads[thread] = Some(started.thread().clone()),
                Err(error) => state.error = Some(PlayError::Thread(error)),
            }
        }
        let turn = if state.error.is_some() { ENDED } else { thread };
        self.turn.store(turn, Ordering::Release);
        match state.threads.get(turn) {
            Some(Some(thread)) => thread.unpark(),
            _ => state.threads.iter().flatten().for_each(Thread::unpark),
        }
    }
}

/// Performs an operation, and writes to the pages of at most `written` bytes of its block. Returns
/// whether it succeeded.
fn perform(operation: &Operation, slot: &AtomicPtr<u8>, written: u64) -> bool {
    let size = operation.size as usize;
    let old = slot.load(Ordering::Relaxed);
    // SAFETY: `old` is null or a block of this allocator that only this slot holds: slots are used
    // only by the thread whose turn it is, and are overwritten by what the call returns.
    let new = unsafe {
        match operation.action {
            Action::Allocate => libc::malloc(size),
            Action::AllocateZeroed => libc::calloc(1, size),
            Action::AllocateAligned => {
                let alignment = size_of::<usize>().max(1 << operation.alignment);
                let mut block = ptr::null_mut();
                if libc::posix_memalign(&raw mut block, alignment, size) == 0 { block } else { ptr::null_mut() }
            }
            Action::Resize => libc::realloc(old.cast(), size.max(1)),
            Action::Free | Action::LimitWrites => {
                libc::free(old.cast());
                ptr::null_mut()
            }
        }
    };
    let new: *mut u8 = new.cast();
    if operation.action == Action::Free {
        slot.store(new, Ordering::Relaxed);
        return true;
    }
    if new.is_null() {
        return size == 0;
    }
    slot.store(new, Ordering::Relaxed);
    for offset in (0..size.min(written as usize)).step_by(TOUCHED_PAGE) {
        // SAFETY: the offset is in the block, which has `size` bytes.
        unsafe { new.add(offset).write_volatile(1) };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Writer;
    use std::io::{Seek, SeekFrom, Write};

    fn file_of(operations: &[Operation]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        let mut writer = Writer::new(&mut file).expect("a header");
        operations.iter().for_each(|operation| writer.push(*operation).expect("an operation"));
        writer.finish().expect("the end");
        file
    }

    fn operation(action: Action, thread: u16, slot: u32, size: u64) -> Operation {
        Operation { action, alignment: 12, thread, slot, size }
    }

    /// A block goes through three threads, each of which needs what the one before has done.
    #[test]
    fn operations_of_several_threads_are_performed_in_order() {
        let mut operations = Vec::new();
        for round in 0..3 * BATCH as u32 {
            let slot = round % 7;
            operations.push(operation(Action::AllocateAligned, 0, slot, 100));
            operations.push(operation(Action::Resize, 1, slot, 300));
            operations.push(operation(Action::Free, 2, slot, 0));
        }
        operations.push(operation(Action::AllocateZeroed, 3, 0, 8 << 20));
        let measured = play(file_of(&operations)).expect("a replay");
        assert_eq!(measured.failed, 0);
        assert!(measured.end_bytes >= 8 << 20 && measured.peak_bytes >= measured.end_bytes, "{measured:?}");
        assert!(measured.page_faults >= (8 << 20) / 4096 && measured.nanoseconds > 0, "{measured:?}");
    }

    #[test]
    fn allocations_that_fail_are_counted() {
        let operations = [
            operation(Action::Allocate, 0, 0, u64::MAX / 4),
            operation(Action::Free, 0, 0, 0),
            operation(Action::Allocate, 0, 0, 10),
        ];
        assert_eq!(play(file_of(&operations)).expect("a replay").failed, 1);
    }

    #[test]
    fn blocks_have_the_alignment_of_the_operation() {
        let slot = AtomicPtr::new(ptr::null_mut());
        assert!(perform(&operation(Action::AllocateAligned, 0, 0, 100), &slot, u64::MAX));
        assert_eq!(slot.load(Ordering::Relaxed).addr() % 4096, 0);
        assert!(perform(&operation(Action::Free, 0, 0, 0), &slot, u64::MAX));
        assert!(slot.load(Ordering::Relaxed).is_null());
    }

    #[test]
    fn damaged_files_are_refused() {
        let mut file = file_of(&[operation(Action::Allocate, 0, 0, 1)]);
        file.seek(SeekFrom::Start(HEADER_BYTES as u64)).expect("its operation");
        file.write_all(&[9]).expect("no action");
        assert!(matches!(play(file), Err(PlayError::Damaged("an operation"))));
        let file = file_of(&[]);
        file.set_len(HEADER_BYTES as u64 + 1).expect("another length");
        assert!(matches!(play(file), Err(PlayError::Damaged("its length"))));
        assert!(matches!(play(tempfile::tempfile().expect("a file")), Err(PlayError::File(_))));
    }
}
