//! Compares the unwinder with the `backtrace` crate (libgcc's unwinder), on the stacks of this test
//! program.

use super::memory::OwnStack;
use super::other::OtherStack;
use super::walk;
use super::{Frame, rules};
use crate::caller::Caller;
use crate::stack::pages::Pages;
use core::cell::RefCell;
use heaptape_wire::nodes::{SIGNAL, TRUNCATED};

const EMPTY: Frame = Frame { slot: 0, address: 0, bp: 0, step_info: 0 };

thread_local! {
    static OURS: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    static THEIRS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// An entry stub like those of the hooks: it passes its caller's state to the body.
#[unsafe(naked)]
extern "C" fn capture() {
    crate::arch::capture_stub!(body)
}

extern "C" fn body(caller: Caller) {
    let sp = caller.sp;
    rules::of(0x1000); // no module there: must not disturb
    let mut frames = vec![EMPTY; 1024];
    let mut probed = vec![EMPTY; 1024];
    let mut own = OwnStack { low: sp as u64, end: crate::stack::own_stack_end(sp, crate::sys::tid()) as u64 };
    assert!(own.end > own.low, "the test's own stack was not found");
    let count = walk::plain(walk::first(caller), &mut own, &mut frames);
    let again = walk::plain(walk::first(caller), &mut OtherStack::new(sp as u64, 0, 0, &mut Pages::new()), &mut probed);
    assert_eq!(count, again, "a probed walk reads the same words");
    frames.truncate(count);
    OURS.set(frames);
    let mut theirs = Vec::new();
    backtrace::trace(|frame| {
        theirs.push(frame.ip() as u64);
        true
    });
    // libgcc reports the end of the stack as one more frame, of address 0.
    theirs.retain(|address| *address != 0);
    THEIRS.set(theirs);
}

fn compare() -> Vec<Frame> {
    let ours = OURS.take();
    let theirs = THEIRS.take();
    let start = theirs.iter().position(|address| *address == ours[0].address).expect("the caller is in both");
    let addresses: Vec<u64> = ours.iter().map(|frame| frame.address).collect();
    assert_eq!(addresses, theirs[start..]);
    assert!(ours.iter().all(|frame| frame.flags() & TRUNCATED == 0));
    ours
}

#[inline(never)]
fn dive(depth: u32) -> u32 {
    if depth == 0 {
        capture();
        return 1;
    }
    std::hint::black_box(dive(depth - 1)) + 1
}

#[test]
fn recursion_and_threads() {
    assert_eq!(dive(0), 1);
    compare();
    dive(200);
    assert!(compare().len() > 200);
    std::thread::spawn(|| {
        dive(30);
        compare();
    })
    .join()
    .expect("the thread compares");
}

extern "C" fn handler(_: i32) {
    dive(3);
}

#[test]
fn out_of_a_signal_handler() {
    // SAFETY: a handler for a signal that this test raises in its own thread.
    unsafe {
        libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t);
        libc::raise(libc::SIGUSR2);
    }
    let frames = compare();
    assert_eq!(frames.iter().filter(|frame| frame.flags() & SIGNAL != 0).count(), 1);
}

#[test]
fn callbacks_through_libc() {
    extern "C" fn order(left: *const core::ffi::c_void, right: *const core::ffi::c_void) -> i32 {
        dive(2);
        // SAFETY: qsort hands out elements of the array.
        unsafe { i32::from(*left.cast::<u8>()) - i32::from(*right.cast::<u8>()) }
    }
    let mut bytes = *b"heaptape";
    // SAFETY: the array and its element size.
    unsafe { libc::qsort(bytes.as_mut_ptr().cast(), bytes.len(), 1, Some(order)) };
    compare();
    assert_eq!(&bytes, b"aaeehppt");
}

#[test]
fn garbage_registers_never_fault() {
    let mut frames = vec![EMPTY; 64];
    let stack: Vec<u64> = (0..4096).map(|word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (word % 64)).collect();
    let (low, end) = (stack.as_ptr() as u64, stack.as_ptr() as u64 + 8 * stack.len() as u64);
    for start in 0..stack.len() - 1 {
        let sp = low as usize + 8 * start;
        for bp in [0, 7, sp, sp + 64, end as usize - 8, usize::MAX - 7] {
            let count = walk::plain(walk::first(Caller { sp, bp }), &mut OwnStack { low: sp as u64, end }, &mut frames);
            assert!((1..=64).contains(&count));
        }
    }
}
