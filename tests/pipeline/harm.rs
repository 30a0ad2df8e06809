//! Generated programs see no difference between a bare run and a recorded one.

use heaptape_tests::harm::{Case, Hunt, Linkage, Summary, Way};
use heaptape_tests::wait::PATIENCE;
use heaptape_tests::{is_full, torture};
use std::time::{Duration, SystemTime};

/// Cases that differed once, each made small.
const ONCE_DIFFERENT: &[&str] = &[
    // Sampling computed with the program's floating-point state.
    "float:1:0 pairs:2000:500 pairs:2000:500",
    // Operators of one plugin served another.
    "plugin:2:0:5 plugin:3:0:5",
    // An ignored signal had its default disposition in the program.
    "ignoring:13 look",
    // A thread that had begun on a coroutine's stack called gettid inside a sandbox.
    "coroutines:1{ plugin:3:0:1 } sandbox:1 memalign:0:8:256",
    // The resize of an inherited block of 0 bytes counted as a free of an unknown address.
    "realloc:4:0 fork:0:0:0{ reallocarray:4:43:1000 }",
    // A child of a fork inside a hook could not map pages below a limit of private memory.
    "signal-safe memalign:5:4095:32 limit:7:863:1 rawforks:5",
    // A signal frame that a later signal overwrote led to the stack of a coroutine that was gone.
    "fault:1 handler:3{ coroutines:1{ free:7 pairs:1806:599 fault:0 stacks:8 } float:1:0 look \
     threads:2:0{ only:0{ exec:6:5{ } } only:1{ fd:6 pairs:263:20 fd:3:4 pairs:149:20 fd:1:2 pairs:209:20 \
     fd:7:8:11 pairs:285:20 } } }",
    // A forked child that may not be recorded in its sandbox called getpid.
    "malloc:1:1 fork:0:0:1{ sandbox:1 realloc:6:1 }",
    // The library's shared memory in place of private memory was taken for the program's.
    "signal-safe valloc:7:1404 limit:7:1847:0 fork:0:0:0{ }",
    // A child of a fork inside a hook could not map pages where its address space was above the
    // limit.
    "signal-safe limit:8:2797:0 rawforks:5",
    // Stacks of handlers on a coroutine took longer to capture than it took until the next signal.
    "signal-safe storm:1:149{ coroutines:2{ deep:63:200 } }",
    "signal-safe storm:1:107{ coroutines:3{ deep:299:200 } }",
    // A handler of pthread_atfork made the state idle that the child kept, in one of twenty forks.
    "signal-safe atfork:100 coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ } \
     coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ } \
     coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ } \
     coroutines:1{ jumps:45 } exec:4:0{ } coroutines:1{ jumps:45 } exec:4:0{ }",
    // The loader complained that the library was not there in another root.
    "system:13:1 exec:1:5{ }",
    // It did so after a start by descriptor, whose path is unknown there, and by libc's `syscall`.
    "system:13:1 exec:4:5{ }",
    "system:13:1 exec:11:5{ }",
    // The first event in a filter comes in a handler on an alternate stack: nothing was known of what that
    // had interrupted, the main thread's own stack.
    "signal-safe guard:0:13{ handler:3{ memalign:6:1540:4096 } }",
    // One that changed its name and ended by quick_exit was said to have executed another program.
    "system:0:5 end:3",
    // A program that started while another thread attached was said to be unrecorded.
    "threads:5:0{ fork:0:0:1{ threads:2:0{ only:0{ exec:3:5{ } } pairs:1:1 } } }",
];

/// The cases of the first seeds. The full form goes on for an hour, most of it with seeds from the
/// clock, which are printed.
#[test]
fn generated_programs_behave_alike_bare_and_recorded() {
    let (cases, fixed, clock) = if is_full() { (u64::MAX, 600, 3_000) } else { (24, PATIENCE.as_secs(), 0) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let hunt = Hunt::new();
    let mut summary = Summary::default();
    hunt.run(1, cases, Duration::from_secs(fixed), &mut summary);
    println!("seeds of the clock from {now}");
    hunt.run(now, cases, Duration::from_secs(clock), &mut summary);
    println!("{summary}");
    assert!(summary.found.is_empty(), "seeds from 1 and from {now}: {summary}");
    assert!(summary.runs > 0 && summary.unsteady.len() as u64 * 10 <= summary.cases.max(20), "{summary}");
    let fault = hunt.epoch_fault();
    assert!(fault.is_none(), "{}", fault.unwrap_or_default());
    torture::passed(59, "generated programs without a difference", summary.cases);
}

/// Cases for programs that are linked otherwise: what other tests have for ordinary programs only,
/// and exceptional ends. No handler jumps out of what it interrupts: out of jemalloc that crashes
/// bare programs too (3 of 300).
const FOR_ALL: &[&str] = &[
    "look threads:2:0{ storm:0:200{ pairs:300:200 } } fd:1:2 signal:2:10 memalign:2:923:256 fork:0:0:0{ float:1:0 \
     exec:2:0{ look malloc:4:50 end:3 } } rawforks:1 realloc:4:0 cancel:2:0 huge:1:10 exec:7:0{ look end:6 }",
    "ignoring:13 limit:7:4000:0 coroutines:2{ aligned:3:4097:64 deep:40:9 } handler:1{ malloc:7:100 } libc:1:5 \
     sandbox:1 pairs:50:100",
];

/// The same with programs that are linked with another allocator, and with static ones. The full
/// form tries cases of seeds with each of them for two minutes.
#[test]
fn programs_with_other_allocators_behave_alike_bare_and_recorded() {
    let mut tried = 0;
    for linkage in Linkage::others() {
        let hunt = Hunt::linked(linkage);
        let mut summary = Summary::default();
        // The short form takes the second case for one of each kind.
        let is_whole = is_full() || matches!(linkage.name, "harm_jemalloc" | "harm_static");
        for (seed, text) in FOR_ALL.iter().enumerate().take(if is_whole { FOR_ALL.len() } else { 1 }) {
            let case = Case::parse(text).expect("a case");
            if linkage.allows(&case) {
                hunt.case(seed as u64, &case, &mut summary);
            }
        }
        if is_full() {
            hunt.run(1, u64::MAX, Duration::from_secs(120), &mut summary);
        }
        println!("{}: {summary}", linkage.name);
        assert!(summary.found.is_empty(), "{}: {summary}", linkage.name);
        let unsteady = (summary.unsteady.len() as u64, summary.cases.max(10));
        assert!(unsteady.0 * 10 <= unsteady.1, "{}: {:?}", linkage.name, summary.unsteady);
        tried += summary.cases;
    }
    torture::passed(59, "cases of programs with other allocators, without a difference", tried);
}

#[test]
fn fixed_cases_behave_alike_bare_and_recorded() {
    let hunt = Hunt::new();
    let mut summary = Summary::default();
    for text in ONCE_DIFFERENT {
        hunt.replay(&Case::parse(text).expect("a case"), &mut summary);
    }
    assert!(summary.found.is_empty(), "{summary}");
}

/// The comparison finds each kind of harm that another library does on purpose.
#[test]
fn planted_harm_of_each_kind_is_found() {
    let kinds = [
        "descriptor",
        "handler",
        "disposition",
        "mask",
        "limit",
        "timer",
        "mapping",
        "environment",
        "output",
        "errno",
        "flags",
        "alignment",
        "crash",
    ];
    for kind in kinds {
        let mut summary = Summary::default();
        Hunt::only(Way::Planted(kind)).run(1, 200, PATIENCE, &mut summary);
        let found = summary.found.first().unwrap_or_else(|| panic!("{kind} is not found: {summary}"));
        assert!(!found.what.is_empty(), "{found}");
    }
    torture::passed(59, "detected kinds of planted harm", kinds.len() as u64);
}
