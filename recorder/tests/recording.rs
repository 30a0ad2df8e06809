//! The recorder from hello to files, with a client that plays the traced process; what is read back
//! must equal the client's own model.

mod common;

use common::fake::{Process, Thread, connect, hello, say};
use common::{Random, TestRecorder};
use heaptape_formats::tape::{self, Codec, END_RUNNING, Entry};
use heaptape_recorder::os::Compression;
use heaptape_recorder::session::options::{Options, Overflow};
use heaptape_wire::{Op, Record};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

const ALLOCS: [Op; 11] = [
    Op::MALLOC,
    Op::CALLOC,
    Op::REALLOC,
    Op::REALLOCARRAY,
    Op::POSIX_MEMALIGN,
    Op::ALIGNED_ALLOC,
    Op::MEMALIGN,
    Op::VALLOC,
    Op::PVALLOC,
    Op::NEW,
    Op::NEW_ARRAY,
];
const FREES: [Op; 6] = [Op::FREE, Op::CFREE, Op::FREE_SIZED, Op::FREE_ALIGNED_SIZED, Op::DELETE, Op::DELETE_ARRAY];

/// (letter, index, address, size, entry, stack innermost first)
type Expected = (char, u64, u64, u64, u8, Vec<u64>);

/// Plays `steps` random calls on one thread, and returns what must be read back.
fn play(thread: &mut Thread, steps: u64, seed: u64) -> Vec<Expected> {
    let mut random = Random(seed);
    let process = thread.process.clone();
    process.module(0x1000, 0x9000, "/lib/libplay.so");
    let root = process.node(0, 0x1111, 0);
    let stacks: Vec<_> = (0..50u64)
        .map(|leaf| {
            (
                process.node(process.node(root, 0x2000 + leaf / 7, 0), 0x3000 + leaf, 0),
                vec![0x3000 + leaf, 0x2000 + leaf / 7, 0x1111],
            )
        })
        .collect();
    let (mut live, mut out, mut index) = (Vec::<(u64, u64)>::new(), Vec::new(), 0);
    let mut fresh = 0x10000u64;
    for _ in 0..steps {
        let (node, stack) = &stacks[random.roll(50) as usize];
        // Sometimes extended records: unaligned addresses, huge sizes.
        fresh += if random.roll(50) == 0 { 0x17 } else { 0x1000 };
        let size = if random.roll(100) == 0 { 1 << (20 + random.roll(20)) } else { random.roll(5000) };
        match random.roll(10) {
            0..5 => {
                let op = ALLOCS[random.roll(11) as usize];
                thread.event(op, *node, fresh, size);
                index += 1;
                out.push(('A', index, fresh, size, op.0, stack.clone()));
                live.push((index, fresh));
            }
            5..8 if !live.is_empty() => {
                let (index, address) = live.swap_remove(random.roll(live.len() as u64) as usize);
                let op = FREES[random.roll(6) as usize];
                thread.event(op, 0, address, 0);
                out.push(('F', index, 0, 0, op.0, Vec::new()));
            }
            8.. if !live.is_empty() => {
                let position = random.roll(live.len() as u64) as usize;
                let (index, address) = live[position];
                thread.event(Op::RESIZE_BEGIN, 0, address, 0);
                match random.roll(4) {
                    0 => drop(thread.event(Op::RESIZE_FAILED, 0, address, 0)),
                    1 => {
                        thread.event(Op::RESIZE_FREED, 0, address, 0);
                        live.swap_remove(position);
                        out.push(('F', index, 0, 0, 3, Vec::new()));
                    }
                    _ => {
                        let to = if random.roll(2) == 0 { address } else { fresh };
                        let op = if random.roll(2) == 0 { Op::RESIZE } else { Op::RESIZE_ARRAY };
                        thread.event(op, *node, to, size);
                        live[position].1 = to;
                        out.push(('R', index, to, size, op.0 - 9, stack.clone()));
                    }
                }
            }
            _ => {}
        }
    }
    out
}

fn compare(back: &common::back::Back, expected: &[Expected]) {
    assert_eq!(back.events.len(), expected.len());
    for (event, expected) in back.events.iter().zip(expected) {
        let found = (event.letter, event.index, event.address, event.size, event.entry as u8, back.stack(event.site));
        assert_eq!(&found, expected);
    }
}

fn one_thread(options: Options, steps: u64) -> common::back::Back {
    let mut recorder = TestRecorder::new(options);
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    let expected = play(&mut thread, steps, 0x1234_5678 + steps);
    let emitted = thread.emitted;
    let (outcome, mut processes) = recorder.finish();
    assert_eq!(outcome.errors, Vec::<String>::new());
    let back = processes.remove(0);
    compare(&back, &expected);
    back.check_invariants();
    let account = tape::Account { thread: 1, emitted, recorded: emitted, lost: 0, sampled_out: 0 };
    assert_eq!(back.accounts.get(&1), (emitted > 0).then_some(&account));
    assert_eq!(back.end.as_ref().map(|end| end.reason), Some(END_RUNNING));
    assert_eq!(back.modules.len(), 1);
    assert_eq!(outcome.sums.emitted, outcome.sums.recorded);
    back
}

#[test]
fn every_event_of_one_thread_comes_back() {
    for steps in [0, 1, 10, 3_000] {
        let back = one_thread(Options::default(), steps);
        // Small: mpatrol's own reader can read the file.
        assert!(back.chunks.iter().all(|chunk| chunk.codec == Codec::Plain as u8));
    }
}

#[test]
fn a_long_one_is_compressed_in_every_way() {
    for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd, Codec::Columns] {
        let compression = Compression { codec, level: 0 };
        let back = one_thread(Options { compression, ..Options::default() }, 400_000);
        assert!(back.chunks.len() > 2 && back.chunks.iter().all(|chunk| chunk.codec == codec as u8));
    }
}

#[test]
fn a_trace_that_outgrows_the_plain_file_moves_into_a_compressed_one() {
    let mut recorder = TestRecorder::new(Options::default());
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    let mut expected = Vec::new();
    let dir = recorder.dir();
    let folder = dir.join(format!("{}.", std::process::id()));
    let file = |name: &str| {
        let found = std::fs::read_dir(&dir).expect("a folder").flatten().map(|entry| entry.path());
        let mine = |path: &std::path::PathBuf| path.to_string_lossy().starts_with(&*folder.to_string_lossy());
        found.filter(mine).any(|path| path.join(name).exists())
    };
    for round in 0..2 {
        let base = expected.iter().filter(|event: &&Expected| event.0 == 'A').count() as u64;
        let steps = if round == 0 { 20_000 } else { 120_000 };
        let more = play(&mut thread, steps, 99 + round);
        expected.extend(
            more.into_iter().map(|(letter, index, address, size, entry, stack)| {
                (letter, index + base, address, size, entry, stack)
            }),
        );
        // Frees what is left, so that the next round starts with nothing live.
        let mut live = HashMap::new();
        for (letter, index, address, ..) in &expected {
            match letter {
                'F' => drop(live.remove(index)),
                _ => drop(live.insert(*index, *address)),
            }
        }
        let mut left: Vec<_> = live.into_iter().collect();
        left.sort_unstable();
        for (index, address) in left {
            thread.event(Op::FREE, 0, address, 0);
            expected.push(('F', index, 0, 0, 20, Vec::new()));
        }
        let (name, begun) = (if round == 0 { "trace.mtrc" } else { "trace.mtrc.columns" }, Instant::now());
        while !file(name) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{name} does not appear");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let (_, processes) = recorder.finish();
    compare(&processes[0], &expected);
    processes[0].check_invariants();
    assert!(
        processes[0].chunks.len() > 1 && processes[0].chunks.iter().all(|chunk| chunk.codec == Codec::Columns as u8)
    );
    assert!(!file("trace.mtrc"));
}

#[test]
fn threads_that_hand_blocks_over_make_a_legal_trace() {
    const BLOCKS: u64 = 60_000;
    let mut recorder = TestRecorder::new(Options { ring_bytes: 64 << 10, ..Options::default() });
    let process = Process::attach(&recorder.socket(), hello());
    // Each thread allocates addresses that it gets from the one before, and hands them on; all
    // addresses are used again and again.
    let (first, mut next) = std::sync::mpsc::sync_channel::<u64>(16);
    let mut threads = Vec::new();
    for _ in 0..4 {
        let (out, following) = std::sync::mpsc::sync_channel::<u64>(16);
        let mine = std::mem::replace(&mut next, following);
        let process = process.clone();
        threads.push(std::thread::spawn(move || {
            let mut thread = Thread::claim(&process);
            let node = process.node(0, 0x77, 0);
            for (count, address) in mine.into_iter().enumerate() {
                // The block that the thread before allocated is freed here, and its address taken
                // again.
                thread.event(Op::FREE, 0, address, 0);
                thread.event(Op::NEW, node, address, count as u64 % 100);
                if count % 3 == 0 {
                    thread.event(Op::RESIZE_BEGIN, 0, address, 0);
                    thread.event(Op::RESIZE, node, address, 7);
                }
                if out.send(address).is_err() {
                    break;
                }
            }
            thread.emitted
        }));
    }
    let mut main = Thread::claim(&process);
    for count in 0..BLOCKS {
        let address = 0x1000 + 16 * (count % 8);
        if count >= 8 {
            let back = next.recv().expect("comes round");
            assert_eq!(back, address);
            main.event(Op::FREE, 0, back, 0);
        }
        main.event(Op::MALLOC, 0, address, 5);
        first.send(address).expect("the other thread receives it");
    }
    drop(first);
    let rest: Vec<u64> = next.iter().collect();
    let emitted: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<u64>() + main.emitted;
    let (_, processes) = recorder.finish();
    let back = &processes[0];
    back.check_invariants();
    assert_eq!(back.totals().allocs + back.totals().resizes + back.totals().frees, emitted);
    assert_eq!((back.totals().unknown_frees, back.totals().implied_frees), (0, 0));
    let mut live: Vec<u64> = back.live().into_keys().collect();
    let mut rest = rest;
    live.sort_unstable();
    rest.sort_unstable();
    assert_eq!(live, rest);
    assert_eq!(back.threads.iter().map(|thread| thread.number).collect::<std::collections::HashSet<_>>().len(), 5);
}

/// Timestamps come from the traced process, which can be wrong or hostile.
#[test]
fn a_timestamp_from_the_future_is_not_believed() {
    let mut recorder = TestRecorder::new(Options::default());
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    thread.event(Op::MALLOC, 0, 16, 1);
    thread.put(Record::timestamp(process.now() + (1 << 50)));
    for address in 2..=100u64 {
        thread.event(Op::MALLOC, 0, address * 16, 1);
    }
    let (_, processes) = recorder.finish();
    let ticks: Vec<u64> = processes[0].events.iter().map(|event| event.tick).collect();
    assert_eq!(ticks.len(), 100);
    assert!(ticks[99] - ticks[0] < 1 << 49, "{ticks:?}");
}

#[test]
fn dropped_events_are_counted_and_reported() {
    let mut recorder = TestRecorder::new(Options { ring_bytes: 4096, overflow: Overflow::Drop, ..Options::default() });
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    thread.drops = true;
    let mut published = Vec::new();
    for address in 1..=100_000u64 {
        if thread.event(Op::MALLOC, 0, address * 16, 1) {
            published.push(address * 16);
        }
        if address % 20_000 == 0 {
            std::thread::sleep(Duration::from_millis(15));
        }
    }
    assert!(thread.lost > 1000, "the ring is too large for this test");
    let (outcome, processes) = recorder.finish();
    let back = &processes[0];
    back.check_invariants();
    assert_eq!(back.events.iter().map(|event| event.address).collect::<Vec<_>>(), published);
    let account = &back.accounts[&1];
    assert_eq!((account.emitted, account.recorded, account.lost), (100_000, published.len() as u64, thread.lost));
    assert_eq!(account.emitted, account.recorded + account.lost);
    assert_eq!(back.losses.iter().map(|loss| loss.events).sum::<u64>(), thread.lost);
    assert!(back.losses.iter().all(|loss| loss.from_tick <= loss.to_tick && loss.thread == 1));
    assert_eq!(outcome.sums.lost, thread.lost);
}

#[test]
fn slots_of_threads_that_ended_are_used_again() {
    let mut recorder = TestRecorder::new(Options { ring_bytes: 4096, ..Options::default() });
    let process = Process::attach(&recorder.socket(), hello());
    let rounds = 60u64;
    for round in 0..rounds {
        let threads: Vec<_> = (0..8u64)
            .map(|number| {
                let process = process.clone();
                std::thread::spawn(move || {
                    let mut thread = Thread::claim(&process);
                    for block in 0..20 {
                        thread.event(Op::MALLOC, 0, 0x1000_0000 * (number + 1) + 0x10000 * round + 16 * block, 3);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        std::thread::sleep(Duration::from_millis(25));
    }
    let used = process.mapping.slots_used();
    let (_, processes) = recorder.finish();
    let back = &processes[0];
    back.check_invariants();
    assert_eq!(back.events.len() as u64, rounds * 8 * 20);
    assert!(u64::from(used) < rounds * 8 / 2, "{used} slots for {} threads", rounds * 8);
    assert_eq!(back.accounts.len() as u64, rounds * 8);
    assert!(back.accounts.values().all(|account| account.emitted == 20 && account.recorded == 20));
}

#[test]
fn a_hostile_ring_is_closed_and_the_others_go_on() {
    type Attack = fn(&mut Thread);
    let attacks: [Attack; 6] = [
        |thread| thread.control().producer.0.head.store(u64::MAX, Relaxed),
        |thread| thread.control().producer.0.head.store(0, Relaxed),
        |thread| {
            (0..9).for_each(|_| thread.put(Record::default()));
            thread.publish();
        },
        |thread| {
            (0..9).for_each(|_| thread.put(Record::timestamp(1)));
            thread.publish();
        },
        |thread| {
            thread.put(Record { head: u64::MAX, body: u64::MAX });
            thread.publish();
        },
        // Timestamps from the future, nodes that do not exist, frees of unknown addresses: invalid
        // data, but no corrupt ring.
        |thread| {
            thread.put(Record::timestamp(u64::MAX));
            thread.publish();
            for _ in 0..100 {
                thread.event(Op::FREE, 0, 0, 0);
                thread.event(Op::RESIZE, u32::MAX >> 4, u64::MAX, u64::MAX >> 6);
                thread.event(Op::RESIZE_FAILED, 0, 0, 0);
                thread.event(Op::RESIZE_BEGIN, 0, u64::MAX, 0);
            }
        },
    ];
    for (number, attack) in attacks.into_iter().enumerate() {
        let mut recorder = TestRecorder::new(Options::default());
        let process = Process::attach(&recorder.socket(), hello());
        let (mut bad, mut good) = (Thread::claim(&process), Thread::claim(&process));
        for block in 1..100 {
            bad.event(Op::MALLOC, 0, 16 * block, 1);
            good.event(Op::MALLOC, 0, 0x10000 + 16 * block, 1);
        }
        let begun = Instant::now();
        while bad.control().consumer.0.tail.load(Acquire) < bad.head {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        attack(&mut bad);
        std::thread::sleep(Duration::from_millis(30));
        for block in 100..70_000 {
            good.event(Op::MALLOC, 0, 0x10000 + 16 * block, 1);
        }
        let (outcome, processes) = recorder.finish();
        assert_eq!(outcome.errors, Vec::<String>::new());
        let back = &processes[0];
        let good: Vec<_> =
            back.events.iter().filter(|event| event.address >= 0x10000 && event.address < 1 << 40).collect();
        assert_eq!(good.len(), 69_999, "attack {number}");
        assert_eq!(back.notes.iter().any(|note| note.contains("not read any further")), number < 5, "{:?}", back.notes);
        assert!(back.events.iter().filter(|event| event.address < 0x10000 && event.letter == 'A').count() >= 99);
    }
}

#[test]
fn whoever_says_no_hello_is_sent_away_and_holds_nobody_up() {
    let mut recorder = TestRecorder::new(Options::default());
    let silent: Vec<_> = (0..20).map(|_| connect(&recorder.socket())).collect();
    for bytes in [&b"x"[..], &[0; 64], &[0xff; 65], &[7; 9000]] {
        let (reply, file) = say(&connect(&recorder.socket()), bytes);
        assert!(file.is_none());
        assert_ne!(reply.map(|reply| reply.status), Some(0));
    }
    // A page size that does not fit the layout, and an address space without space for the area.
    let invalid_hello = hello();
    for invalid_hello in [
        heaptape_wire::hello::Hello { page_size: 65536, ..invalid_hello },
        heaptape_wire::hello::Hello { address_space: 0, ..invalid_hello },
    ] {
        let (reply, _) = say(&connect(&recorder.socket()), &invalid_hello.encode());
        assert!(reply.is_some());
    }
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    thread.event(Op::MALLOC, 0, 16, 1);
    let begun = Instant::now();
    // The silent connections are closed after a second: reading returns the end of the stream.
    let mut byte = [0];
    let (count, _) = heaptape_recorder::os::sys::receive_with(heaptape_recorder::os::sys::fd(&silent[0]), &mut byte)
        .unwrap_or((0, None));
    assert!(count == 0 && begun.elapsed() < Duration::from_secs(5));
    let (_, processes) = recorder.finish();
    assert_eq!(processes.last().map(|back| back.events.len()), Some(1));
}

/// A library of the release before, and one of the release after.
#[test]
fn libraries_one_minor_version_apart_are_recorded() {
    let (this, larger) = (heaptape_wire::WIRE_MINOR, heaptape_wire::MINOR_FIRST_RING);
    for (minor, ring_kib) in [(0, 1024), (larger - 1, 1024), (larger, 2048), (this, 2048), (this + 1, 2048)] {
        let mut recorder = TestRecorder::new(Options::default());
        let process = Process::attach(&recorder.socket(), heaptape_wire::hello::Hello { minor, ..hello() });
        let ring = heaptape_wire::Layout::new(process.mapping.params()).ring(0);
        assert_eq!(ring.map(|(_, bytes)| bytes >> 10), Some(ring_kib), "minor {minor}");
        Thread::claim(&process).event(Op::MALLOC, 0, 16, 1);
        let (_, processes) = recorder.finish();
        assert_eq!(processes.last().map(|back| back.events.len()), Some(1), "minor {minor}");
    }
}

#[test]
fn an_announced_record_holds_the_others_up_until_it_comes() {
    let mut recorder = TestRecorder::new(Options::default());
    let process = Process::attach(&recorder.socket(), hello());
    let (mut slow, mut fast) = (Thread::claim(&process), Thread::claim(&process));
    fast.event(Op::MALLOC, 0, 16, 1);
    slow.event(Op::MALLOC, 0, 32, 1);
    // The slow thread takes the timestamp of a free of the fast one's block, and is kept from
    // publishing it.
    slow.control().producer.0.reservation.store(slow.head + 1, Relaxed);
    let timestamp = process.now();
    fast.event(Op::MALLOC, 0, 48, 1);
    std::thread::sleep(Duration::from_millis(50));
    fast.event(Op::MALLOC, 0, 64, 1);
    slow.put(Record::timestamp(timestamp));
    slow.put(heaptape_wire::Event { op: Op::FREE, stack: 0, address: 16, size: 0 }.compact(0));
    slow.publish();
    slow.control().producer.0.emitted.store(2, Relaxed);
    // And an event that is never published: after a second the others are recorded without it.
    slow.control().producer.0.reservation.store(slow.head + 1, Relaxed);
    fast.event(Op::MALLOC, 0, 80, 1);
    std::thread::sleep(Duration::from_millis(1500));
    let (_, processes) = recorder.finish();
    let order: Vec<_> = processes[0].events.iter().map(|event| (event.letter, event.address)).collect();
    assert_eq!(order, [('A', 16), ('A', 32), ('F', 0), ('A', 48), ('A', 64), ('A', 80)]);
    processes[0].check_invariants();
}

#[test]
fn stacks_of_frees_and_weights_of_samples_come_back() {
    let mut recorder = TestRecorder::new(Options { free_stacks: true, sample_bytes: 4096, ..Options::default() });
    let process = Process::attach(&recorder.socket(), hello());
    let mut thread = Thread::claim(&process);
    let (here, there) = (process.node(0, 0x10, 0), process.node(0, 0x20, 0));
    thread.event(Op::MALLOC, here, 16, 100);
    thread.event(Op::FREE, there, 16, 0);
    thread.control().producer.0.sampled_out.store(40, Relaxed);
    thread.control().producer.0.emitted.store(2, Relaxed);
    let (_, processes) = recorder.finish();
    let events = &processes[0].events;
    // 100 bytes are sampled with the chance 1 - exp(-100 / 4096).
    let weight = (100.0 / (1.0 - (-100.0 / 4096.0f64).exp())).round() as u64;
    assert_eq!((events[0].weight, processes[0].stack(events[0].site)), (weight, vec![0x10]));
    assert_eq!((events[1].entry, processes[0].stack(events[1].site)), (Entry::Free, vec![0x20]));
    let account = &processes[0].accounts[&1];
    assert_eq!((account.emitted, account.recorded, account.sampled_out), (42, 2, 40));
}
