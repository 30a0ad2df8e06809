//! Recordings whose live bytes have a known shape over the run, and the verdict of `heaptape leaks`
//! on each, also as its conditions and the page of the HTML export see it. They are written with
//! exact times: no machine is too busy for them. `tests/pipeline/leak_shapes.rs` records a few of
//! these shapes from programs.

use crate::made;
#[path = "../../tests/src/random.rs"]
mod random;

use heaptape_analyzer::export;
use heaptape_analyzer::report::{Query, View, leaks};
use heaptape_analyzer::text::Style;
use heaptape_formats::tape;
use heaptape_reports::threshold;
use made::Step;
use random::Random;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

/// Number of steps of a run.
const STEPS: u64 = 200;
/// Size of most blocks.
const SIZE: u64 = 400;
/// What a call of the allocator takes, in nanoseconds.
const CALL_NS: u64 = 200;

/// The sites: what is kept from the start, blocks that are freed at once, and those of the shape.
const BASE: u32 = 2;
const NOISE: u32 = 3;
const SHAPE: u32 = 4;
/// The same line as of [`SHAPE`], called by another function.
const OTHER: u32 = 6;
/// The same line, called by as many other functions as there are steps.
const WAYS: u32 = 10;

/// How time passes in a run.
#[derive(Clone, Copy)]
struct Pace {
    name: &'static str,
    milliseconds: u64,
    /// Whether the program allocates and frees all the while. Otherwise it sleeps.
    is_busy: bool,
    /// Time of the process before its first allocation, in nanoseconds.
    before_ns: u64,
    /// Time from its last event until the recorder noticed the end.
    noticed_after_ns: u64,
    /// Most steps that the machine delays the program by. It catches up then.
    late_steps: u64,
}

const MS: u64 = 1_000_000;

#[rustfmt::skip]
const PACES: &[Pace] = &[
    Pace { name: "sleepy", milliseconds: 1200, is_busy: false, before_ns: MS, noticed_after_ns: 5 * MS, late_steps: 0 },
    Pace { name: "busy", milliseconds: 1200, is_busy: true, before_ns: MS, noticed_after_ns: 5 * MS, late_steps: 0 },
    Pace { name: "delayed", milliseconds: 1200, is_busy: false, before_ns: 20 * MS, noticed_after_ns: 14 * MS, late_steps: 3 },
    Pace { name: "long", milliseconds: 20_000, is_busy: false, before_ns: 9 * MS, noticed_after_ns: 9 * MS, late_steps: 1 },
    Pace { name: "hour", milliseconds: 3_600_000, is_busy: true, before_ns: 9 * MS, noticed_after_ns: 9 * MS, late_steps: 0 },
];
/// Runs of 100 ms: growth is not certain, but nothing else is called growth either.
#[rustfmt::skip]
const SHORT_PACES: &[Pace] = &[
    Pace { name: "short sleepy", milliseconds: 100, is_busy: false, before_ns: MS, noticed_after_ns: 2 * MS, late_steps: 0 },
    Pace { name: "short busy", milliseconds: 100, is_busy: true, before_ns: MS, noticed_after_ns: 2 * MS, late_steps: 0 },
    Pace { name: "short delayed", milliseconds: 100, is_busy: false, before_ns: 15 * MS, noticed_after_ns: 9 * MS, late_steps: 3 },
];

/// The life of a program.
struct Life {
    pace: Pace,
    events: Vec<Step>,
    now: u64,
    /// When the next step begins by the program's plan.
    next: u64,
    blocks: u64,
    held: VecDeque<u64>,
    machine: Random,
}

impl Life {
    fn new(pace: Pace) -> Life {
        let now = 100 + pace.before_ns;
        let mut life =
            Life { pace, events: Vec::new(), now, next: now, blocks: 0, held: VecDeque::new(), machine: Random(7919) };
        life.alloc(BASE, 256 << 10);
        life
    }

    fn alloc_by(&mut self, thread: u32, site: u32, size: u64) -> u64 {
        self.blocks += 1;
        self.now += CALL_NS;
        self.events.push(Step::Alloc { index: self.blocks, size, site, thread, tick: self.now });
        self.blocks
    }

    fn alloc(&mut self, site: u32, size: u64) -> u64 {
        self.alloc_by(1, site, size)
    }

    /// Allocates a block of the shape in a stack of this step only.
    fn alloc_by_way(&mut self, step: u64, size: u64) -> u64 {
        self.alloc(WAYS + 2 * (step % STEPS) as u32 + 1, size)
    }

    fn free(&mut self, index: u64) {
        self.now += CALL_NS;
        self.events.push(Step::Free { index, thread: 1, tick: self.now });
    }

    /// Allocates blocks of the shape, and holds them.
    fn put(&mut self, count: u64) {
        for _ in 0..count {
            let block = self.alloc(SHAPE, SIZE);
            self.held.push_back(block);
        }
    }

    /// Frees the oldest blocks that are held.
    fn take(&mut self, count: u64) {
        for _ in 0..count {
            let Some(block) = self.held.pop_front() else { return };
            self.free(block);
        }
    }

    fn drop_all(&mut self) {
        self.take(u64::MAX);
    }

    fn noise(&mut self, count: u64) {
        for at in 0..count {
            let block = self.alloc(NOISE, 24 + (at & 7) * 16);
            self.free(block);
        }
    }

    /// Lasts until the next step.
    fn step(&mut self) {
        let step_ns = self.pace.milliseconds * MS / STEPS;
        if self.pace.is_busy {
            self.noise(30);
            for _ in 0..8 {
                self.now += step_ns / 10;
                self.noise(1);
            }
        }
        self.next += step_ns;
        let late = self.machine.below(self.pace.late_steps * step_ns);
        self.now = self.now.max(self.next + late);
    }

    fn pass(&mut self, steps: u64) {
        (0..steps).for_each(|_| self.step());
    }

    /// Lasts for some milliseconds more.
    fn linger(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds * 4 {
            self.now += MS / 4;
            self.noise(if self.pace.is_busy { 3 } else { 0 });
        }
    }
}

fn table(life: &mut Life) {
    life.put(2000);
}

/// Adds blocks through the first steps of the run.
fn climb(life: &mut Life, until: u64) {
    for at in 0..STEPS {
        life.put(if at < until { 10 } else { 0 });
        life.step();
    }
}

/// A queue: a number of blocks comes each step, of which a number is taken.
fn serve(life: &mut Life, until: u64, put: u64, take: u64) {
    for at in 0..STEPS {
        life.put(if at < until { put } else { 0 });
        life.take(take);
        life.step();
    }
}

/// A cache with room for a number of entries, of which random ones are replaced.
fn look_up(life: &mut Life, each: u64, room: u64) {
    let (mut entries, mut keys) = (Vec::new(), Random(12345));
    for _ in 0..STEPS {
        for _ in 0..each {
            let at = keys.below(room) as usize;
            let size = SIZE - 100 + keys.below(200);
            if (entries.len() as u64) < room {
                entries.push(life.alloc(SHAPE, size));
            } else {
                life.free(entries[at]);
                entries[at] = life.alloc(SHAPE, size);
            }
        }
        life.step();
    }
}

/// A hash table of 1,000 keys that is full after two fifths of the run. From then on, values are
/// replaced now and then.
fn table_full(life: &mut Life) {
    let mut values: Vec<u64> = Vec::new();
    for step in 0..STEPS as usize {
        for _ in 0..13 {
            if values.len() < 1000 {
                values.push(life.alloc(SHAPE, SIZE));
            }
        }
        for at in 0..3 {
            let at = (step * 7 + at * 311) % values.len();
            life.free(values[at]);
            values[at] = life.alloc(SHAPE, SIZE);
        }
        life.step();
    }
}

/// A leak of one in twenty blocks, among others that are in use for some steps.
fn churn(life: &mut Life) {
    for at in 0..STEPS * 40 {
        let block = life.alloc(SHAPE, SIZE);
        if at % 20 != 7 {
            life.held.push_back(block);
        }
        if at % 40 == 39 {
            life.take((life.held.len() as u64).saturating_sub(300));
            life.step();
        }
    }
    life.drop_all();
}

fn wave(life: &mut Life) {
    for at in 0..STEPS {
        life.put(10);
        life.step();
        if at % 45 == 40 {
            life.drop_all();
        }
    }
}

fn spikes(life: &mut Life) {
    for _ in 0..100 {
        life.alloc(SHAPE, SIZE);
    }
    for at in 0..STEPS {
        life.put(if at % 20 == 13 { 1000 } else { 0 });
        life.step();
        life.drop_all();
    }
}

fn drained_slowly(life: &mut Life) {
    for at in 0..STEPS {
        life.put(if at < 120 { 10 } else { 0 });
        life.take(if at < 120 { 0 } else { 15 });
        life.step();
    }
}

fn workers(life: &mut Life) {
    for _ in 0..STEPS {
        for thread in 2..6 {
            for _ in 0..3 {
                life.alloc_by(thread, SHAPE, SIZE);
            }
        }
        life.step();
    }
}

/// A block of each of many stacks, which is freed some steps later, or never with 0.
fn scattered(life: &mut Life, until: u64, live_steps: u64) {
    for at in 0..STEPS {
        if at < until {
            let block = life.alloc_by_way(at, SIZE);
            life.held.push_back(block);
        }
        life.take(u64::from(live_steps > 0 && at >= live_steps));
        life.step();
    }
}

/// A table that one stack fills, and another one replaces by and by.
fn handed_over(life: &mut Life) {
    for at in 0..STEPS {
        for _ in 0..10 {
            let block = life.alloc(if at < 100 { SHAPE } else { OTHER }, SIZE);
            life.held.push_back(block);
        }
        life.take(if at < 100 { 0 } else { 10 });
        life.step();
    }
}

/// Name of a shape, what the program does, and the verdicts: empty if nothing is reported.
type Shape = (&'static str, fn(&mut Life), &'static str);

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    // Loaded at once, and in use to the end: it did not grow, whoever frees it.
    ("table_kept", |l| { table(l); l.pass(STEPS) }, "one-time"),
    ("table_freed", |l| { table(l); l.pass(STEPS); l.drop_all() }, ""),
    ("table_late", |l| { l.pass(170); table(l); l.pass(30) }, "one-time"),
    ("table_twice", |l| { table(l); l.pass(185); table(l); l.pass(15); l.drop_all() }, ""),
    ("ramp20", |l| climb(l, 40), "one-time"),
    ("ramp40", |l| climb(l, 80), "one-time"),
    ("ramp60", |l| climb(l, 120), "one-time"),
    ("ramp95", |l| climb(l, 190), "growing"),
    ("ramp", |l| climb(l, STEPS), "growing"),
    ("ramp_freed", |l| { climb(l, STEPS); l.drop_all() }, "freed-at-exit"),
    ("ramp40_freed", |l| { climb(l, 80); l.drop_all() }, ""),
    ("ramp_drained", |l| { climb(l, STEPS); l.drop_all(); l.pass(STEPS / 5) }, ""),
    // Ten milliseconds are no time: who frees so late frees at the exit.
    ("ramp_drained_last", |l| { climb(l, STEPS); l.drop_all(); l.linger(10) }, "freed-at-exit"),
    ("wave", wave, "young-at-end"),
    ("spikes", spikes, "one-time"),
    // Queues that are never emptied: from one in a hundred that stays to one in four.
    ("backlog99", |l| serve(l, STEPS, 100, 99), "growing"),
    ("backlog19", |l| serve(l, STEPS, 20, 19), "growing"),
    ("backlog9", |l| serve(l, STEPS, 40, 36), "growing"),
    ("backlog3", |l| serve(l, STEPS, 40, 30), "growing"),
    ("drained", |l| serve(l, 60, 40, 20), ""),
    ("drained_slowly", drained_slowly, ""),
    ("steady", |l| { l.put(200); serve(l, STEPS, 20, 20) }, "bounded-cache"),
    ("cache5", |l| look_up(l, 20, 200), "bounded-cache"),
    ("cache40", |l| look_up(l, 20, 1600), "bounded-cache"),
    ("cache60", |l| look_up(l, 20, 2400), "bounded-cache"),
    ("table_full", table_full, "bounded-cache"),
    // The same, freed at the exit.
    ("backlog99_freed", |l| { serve(l, STEPS, 100, 99); l.drop_all() }, "freed-at-exit"),
    ("deque_freed", |l| { serve(l, STEPS, 40, 38); l.drop_all() }, "freed-at-exit"),
    ("backlog3_freed", |l| { serve(l, STEPS, 40, 30); l.drop_all() }, "freed-at-exit"),
    ("steady_freed", |l| { l.put(200); serve(l, STEPS, 20, 20); l.drop_all() }, ""),
    ("drained_freed", |l| { serve(l, 60, 40, 20); l.drop_all() }, ""),
    ("wave_freed", |l| { wave(l); l.drop_all() }, ""),
    ("full_freed", |l| { serve(l, 120, 20, 0); l.drop_all() }, ""),
    ("handed_over_freed", |l| { handed_over(l); l.drop_all() }, ""),
    // A block of each of many stacks of one line.
    ("scattered", |l| scattered(l, STEPS, 0), "growing"),
    ("scattered_start", |l| scattered(l, 60, 0), "one-time"),
    ("scattered_queue", |l| scattered(l, STEPS, 50), "one-time"),
    ("scattered_beside_table", |l| { l.alloc(SHAPE, 1 << 20); scattered(l, STEPS, 0) }, "growing and one-time"),
    // Little together: every program keeps such blocks.
    ("scattered_little", |l| (0..STEPS).for_each(|at| { l.alloc_by_way(at, 100); l.step() }), "one-time"),
    ("scattered_freed", |l| { scattered(l, STEPS, 0); l.drop_all() }, "freed-at-exit"),
    ("churn", churn, "growing"),
    ("workers", workers, "growing"),
];

/// What happened in the last hundredths of a second of a short run is not known: its end may have
/// been noticed late.
const TOO_SHORT: [&str; 3] = ["ramp60", "ramp_drained", "ramp_drained_last"];

/// Runs a shape, and returns the folder of its recording.
fn recorded(shape: fn(&mut Life), pace: Pace) -> (tempfile::TempDir, std::path::PathBuf) {
    let mut life = Life::new(pace);
    shape(&mut life);
    let site = |line: u32, parent| tape::Site { parent, address: 0x1000 * u64::from(line), flags: 0 };
    let mut sites = vec![site(1, 0), site(BASE, 1), site(NOISE, 1), site(SHAPE, 1), site(5, 1), site(SHAPE, 5)];
    sites.extend((7..WAYS).map(|line| site(line, 1)));
    sites.extend((0..STEPS as u32).flat_map(|way| [site(1000 + way, 1), site(SHAPE, WAYS + 2 * way)]));
    let end_after = life.now + pace.noticed_after_ns - life.events.last().unwrap().tick();
    let options = made::Options { chunk_events: 5000, sites, end_after, ..made::Options::default() };
    made::recording(&life.events, &options)
}

/// Returns the answer of `heaptape leaks --json`.
fn leaks_json(path: &Path) -> Value {
    let query = Query::of(path, View::json(0));
    let mut json = Vec::new();
    leaks::run(&query, &leaks::Options::default(), &mut json, Style::PLAIN).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// Returns the verdicts on the stacks of a line, or the trend if there is too little to tell.
fn verdicts(answer: &Value, line: u32) -> BTreeSet<String> {
    let rows = ["leaks", "freed_at_exit"].into_iter().flat_map(|list| answer[list].as_array().unwrap());
    let title = format!("{:#x}", 0x1000 * line);
    let own = rows.filter(|row| row["stack"][0]["function"] == title.as_str());
    let of = |row: &Value| match row["verdict"].as_str().unwrap() {
        "too-little" => format!("too little: {}", row["evidence"]["trend"].as_str().unwrap_or_default()),
        verdict => verdict.to_string(),
    };
    own.map(of).collect()
}

/// Returns whether one of the conditions on growth fails.
fn fails(path: &Path) -> bool {
    let query = Query::of(path, View::text(0));
    let conditions = ["leaked.growing > 0", "freed-at-exit > 0"].map(|condition| condition.parse().unwrap());
    threshold::evaluate(&conditions, &query, &leaks::Options::default(), None).unwrap().failed()
}

/// Returns the verdicts with bytes of the page, and of `heaptape leaks --json`. The page lists at
/// most 200 leaks.
fn page_and_report(path: &Path, answer: &Value) -> [BTreeSet<(String, u64)>; 2] {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("page.html");
    let exporter = export::exporter("html").unwrap();
    export::run(exporter, &[path.to_path_buf()], &export::Options::default(), Some(&file), false).unwrap();
    let held = export::html::read(&std::fs::read_to_string(file).unwrap()).unwrap();
    let row = |leak: &Value, grown: &str| {
        let bytes = |name: &str| leak[name].as_u64().unwrap_or(0);
        (leak["verdict"].to_string(), bytes("bytes").max(bytes(grown)))
    };
    let reported = ["leaks", "freed_at_exit"].into_iter().flat_map(|list| answer[list].as_array().unwrap());
    [
        held.page["leaks"].as_array().unwrap().iter().map(|leak| row(leak, "grown")).collect(),
        reported.map(|leak| row(leak, "grown_bytes")).collect(),
    ]
}

/// Judges shapes in runs of some paces, at once. `expect` turns the verdict of a long run into that
/// of these.
fn judge(paces: &'static [Pace], expect: fn(&str) -> String) {
    let judge_shape = |&(name, shape, expected): &Shape, pace: &Pace| {
        let expected: BTreeSet<String> = expected.split_terminator(" and ").map(expect).collect();
        let (_folder, path) = recorded(shape, *pace);
        let answer = leaks_json(&path);
        let found = verdicts(&answer, SHAPE);
        let fails = fails(&path);
        let is_failure = expected.contains("growing") || expected.contains("freed-at-exit");
        let is_right = found == expected && fails == is_failure;
        let text = format!("{name} {}: expected {expected:?}, found {found:?}, fails: {fails}", pace.name);
        (!is_right).then_some(text)
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let of = |pace: &'static Pace| {
            let is_known = |shape: &&Shape| pace.milliseconds >= 1000 || !TOO_SHORT.contains(&shape.0);
            scope.spawn(move || SHAPES.iter().filter(is_known).filter_map(|shape| judge_shape(shape, pace)).collect())
        };
        let paces: Vec<_> = paces.iter().map(of).collect();
        paces.into_iter().flat_map(|pace| -> Vec<String> { pace.join().unwrap() }).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn verdicts_match_the_shape() {
    judge(PACES, str::to_string);
}

#[test]
fn short_runs_have_the_same_verdicts_and_no_certain_growth() {
    judge(SHORT_PACES, |expected| expected.replace("growing", "too little: growing"));
}

#[test]
fn page_and_report_agree_on_all_shapes() {
    for &(name, shape, _) in SHAPES {
        let (_folder, path) = recorded(shape, PACES[0]);
        let [page, report] = page_and_report(&path, &leaks_json(&path));
        assert_eq!(page, report, "{name}");
    }
}
