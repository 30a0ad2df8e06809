//! Generates cases from seeds. A case must be deterministic in a bare run; [`Around`] states which
//! steps that forbids in which surroundings.

use super::{Case, Step};

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, limit: i64) -> i64 {
        (self.next() % limit.unsigned_abs().max(1)).cast_signed()
    }

    fn between(&mut self, least: i64, most: i64) -> i64 {
        least + self.below(most - least + 1)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }

    fn chance(&mut self, percent: i64) -> bool {
        self.below(100) < percent
    }
}

/// Which steps a process may make in a sandbox, or after a fork without libc.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Every step is possible.
    All,
    /// No threads, signals or new programs.
    Quiet,
    /// Allocator calls, with memory from the kernel.
    Allocations,
    /// Allocator calls on memory that is mapped already.
    Pairs,
}

/// The surroundings of a step.
#[derive(Clone, Copy)]
struct Around {
    depth: u32,
    /// Other threads run the same steps.
    is_concurrent: bool,
    /// The child of a fork by one of several threads: locks of other threads stay locked.
    is_orphan: bool,
    /// A timer interrupts the steps.
    is_storm: bool,
    is_handler: bool,
    /// The thread is the first of its process, which the kernel prefers for signals to the process.
    is_main: bool,
    /// The process may harm itself: it is a child.
    is_child: bool,
    /// The process ends after this list, so it may enter a sandbox.
    is_last: bool,
    /// The process has another root, where the library is not. The loader says so when `system`, `popen`, or a
    /// system call that nobody sees starts a program (docs/recorded.md).
    is_rooted: bool,
    is_signal_safe: bool,
    left: Left,
    /// Number of times that the step runs.
    copies: i64,
}

/// The first number of the step that changes the root.
const CHROOT: i64 = 13;

struct Generator {
    random: Random,
    threads_left: i64,
    processes_left: i64,
    steps_left: i64,
    /// A process may have few descriptors from here on.
    is_limited: bool,
}

/// Signals that the steps block, ignore and send.
const SIGNALS: [i64; 8] = [1, 10, 12, 13, 15, 17, 28, 40];

pub fn generate(seed: u64) -> Case {
    let mut random = Random(seed);
    let is_signal_safe = random.chance(20);
    let steps_left = random.between(4, 40);
    let mut generator = Generator { random, threads_left: 60, processes_left: 14, steps_left, is_limited: false };
    let around = Around {
        depth: 0,
        is_concurrent: false,
        is_orphan: false,
        is_storm: false,
        is_handler: false,
        is_main: true,
        is_child: false,
        is_last: false,
        is_rooted: false,
        is_signal_safe,
        left: Left::All,
        copies: 1,
    };
    let mut steps = generator.list(around, 40);
    generator.ending(around, &mut steps);
    let ignored = generator.random.chance(25).then(|| generator.random.one(&[1, 2, 10, 13, 13, 15, 17]));
    Case { is_signal_safe, ignored, steps }
}

impl Generator {
    fn list(&mut self, around: Around, most: i64) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut around = around;
        for _ in 0..self.random.between(1, most) {
            self.steps_left -= 1;
            if self.steps_left < 0 && !steps.is_empty() {
                break;
            }
            self.step(&mut around, &mut steps);
            around.is_rooted |= steps.iter().any(|step| step.any(&|step| step.is("system", CHROOT)));
        }
        steps
    }

    /// Returns the step by which a process ends, if it does not end by itself.
    fn ending(&mut self, around: Around, steps: &mut Vec<Step>) {
        if around.left == Left::All && self.random.chance(30) {
            if self.random.chance(20) && self.takes_process(around) {
                let body = self.inside_program(around);
                steps.push(Step::block("exec", &[7, self.random.one(&[0, 2])], body));
            }
            steps.push(Step::leaf("end", &[self.random.below(9)]));
        }
    }

    fn takes_process(&mut self, around: Around) -> bool {
        let is_taken = self.processes_left >= around.copies && around.depth < 5;
        if is_taken {
            self.processes_left -= around.copies;
        }
        is_taken
    }

    fn size(&mut self) -> i64 {
        match self.random.below(10) {
            0 => self.random.one(&[0, 1, 8, 24, 4095, 4096, 4097]),
            1 => self.random.between(100_000, 300_000),
            2 => self.random.between(1_000_000, 3_000_000),
            _ => self.random.between(1, 2000),
        }
    }

    fn allocation(&mut self, steps: &mut Vec<Step>) {
        let slot = self.random.below(8);
        let size = self.size();
        let align = 1 << self.random.between(3, 13);
        let few = self.random.between(0, 50);
        steps.push(match self.random.below(16) {
            0 | 1 => Step::leaf("malloc", &[slot, size]),
            2 => Step::leaf("calloc", &[slot, few, self.random.between(0, 5000)]),
            3 | 4 => Step::leaf("realloc", &[slot, if self.random.chance(20) { 0 } else { size }]),
            5 => Step::leaf("reallocarray", &[slot, few, self.random.one(&[0, 3, 1000, i64::MAX / 7])]),
            6 => Step::leaf("aligned", &[slot, size, align]),
            7 => Step::leaf("memalign", &[slot, size, align]),
            8 => Step::leaf(self.random.one(&["valloc", "pvalloc"]), &[slot, size.min(100_000)]),
            9 => Step::leaf("posix", &[slot, size, self.random.one(&[align, 3, 0, 24])]),
            10 => Step::leaf(self.random.one(&["huge", "overflow"]), &[slot, self.random.below(20)]),
            11 | 12 => Step::leaf("free", &[slot]),
            _ => self.pairs(2000),
        });
    }

    fn pairs(&mut self, most: i64) -> Step {
        let (count, size) = (self.random.between(1, most), self.random.between(8, 600));
        match self.random.below(4) {
            0 => Step::leaf("deep", &[self.random.between(1, 300), count.min(200)]),
            1 => Step::leaf("stacks", &[self.random.between(1, 10)]),
            _ => Step::leaf("pairs", &[count, size]),
        }
    }

    fn step(&mut self, around: &mut Around, steps: &mut Vec<Step>) {
        if around.left == Left::Pairs {
            return steps.push(Step::leaf("pairs", &[self.random.between(1, 500), self.random.between(8, 100)]));
        }
        if around.left == Left::Allocations || self.random.chance(35) {
            return self.allocation(steps);
        }
        if self.random.chance(45) && around.depth < 5 {
            return self.block(*around, steps);
        }
        let is_alone = !around.is_concurrent;
        let has_libc = !around.is_orphan && around.left == Left::All;
        match self.random.below(14) {
            0 | 1 => {
                steps.push(Step::leaf("float", &[self.random.one(&[0, 1, 1, 2, 3, 4, 5, 6]), self.random.below(4)]))
            }
            2 if has_libc => self.plugin(steps),
            3 if has_libc => self.libc(*around, steps),
            // Which descriptors such a child has depends on what other threads had open.
            4 if is_alone && !around.is_storm && !around.is_orphan => self.descriptors(*around, steps),
            5 if is_alone && around.left == Left::All => self.signals(steps),
            6 if is_alone && !around.is_storm => self.system(around, steps),
            7 if around.left == Left::All => steps.push(Step::leaf("fault", &[self.random.below(2)])),
            8 if is_alone && !around.is_storm && !around.is_orphan => steps.push(Step::leaf("look", &[])),
            9 if has_libc && is_alone => {
                let what = self.random.one(&["atfork", "atexit", "key"]);
                steps.push(Step::leaf(what, &[100]));
            }
            10 if has_libc && !around.is_storm => {
                let is_async = around.is_signal_safe && self.random.chance(50);
                steps.push(Step::leaf("cancel", &[self.random.between(1, 6), is_async.into()]));
            }
            11 if around.is_main && has_libc && !around.is_storm && !around.is_handler => {
                let forks = self.random.between(1, 5);
                if around.is_signal_safe && self.random.chance(60) {
                    steps.push(Step::leaf("jumps", &[self.random.between(1, 60)]));
                } else {
                    steps.push(Step::leaf("rawforks", &[forks]));
                }
            }
            12 | 13 if has_libc && is_alone && !around.is_storm && !around.is_handler => self.world(*around, steps),
            _ => self.allocation(steps),
        }
    }

    /// Returns a step that is a small world: a stack, threads, a file system, a lock, a timeout.
    fn world(&mut self, around: Around, steps: &mut Vec<Step>) {
        steps.push(match self.random.below(8) {
            0..=2 => {
                Step::leaf("small", &[self.random.below(if around.is_rooted { 6 } else { 7 }), self.random.below(3)])
            }
            3 => Step::leaf("churn", &[self.random.between(1, 400)]),
            4 => Step::leaf("mount", &[self.random.below(4)]),
            5 | 6 => Step::leaf("lock", &[self.random.below(5)]),
            _ => Step::leaf("timeout", &[self.random.below(8)]),
        });
    }

    fn plugin(&mut self, steps: &mut Vec<Step>) {
        // Plugins with their own operators are not closed: heaptape unloads them and a bare
        // run does not, as docs/recorded.md says.
        match self.random.below(5) {
            0 => steps.push(Step::leaf("dlopen", &[self.random.below(4), self.random.below(2)])),
            1 => steps.push(Step::leaf("dlclose", &[0])),
            _ => {
                let which = self.random.below(4);
                steps.push(Step::leaf("plugin", &[which, self.random.below(9), self.random.between(1, 60)]));
            }
        }
    }

    fn libc(&mut self, around: Around, steps: &mut Vec<Step>) {
        // A child would see a file that another thread has open.
        let shared = [0, 1, 3];
        let alone = [2, 10, 4, 5, 6, 7, 8, 9, 12, 13, 14, 14, 14];
        let which = if around.is_concurrent || self.random.chance(40) {
            self.random.one(&shared)
        } else {
            self.random.one(&alone)
        };
        if matches!(which, 12 | 13) && (around.is_rooted || !self.takes_process(around)) {
            return;
        }
        steps.push(Step::leaf("libc", &[which, self.random.below(6)]));
    }

    fn descriptors(&mut self, around: Around, steps: &mut Vec<Step>) {
        let low = self.random.below(9);
        steps.push(match self.random.below(10) {
            0 | 1 => Step::leaf("fd", &[0, low]),
            2 => Step::leaf("fd", &[1, low]),
            3 => Step::leaf("fd", &[2, low, self.random.below(20)]),
            4 => Step::leaf("fd", &[3, low]),
            5 => Step::leaf("fd", &[4, low, low + self.random.below(1000)]),
            // The numbers of a pipe depend on what other threads have open.
            6 if !around.is_concurrent => Step::leaf("fd", &[5]),
            7 => Step::leaf("fd", &[7, low, low + 3]),
            8 if around.is_child => Step::leaf("fd", &[4, 0, 1 << 20]),
            _ => Step::leaf("fd", &[6]),
        });
    }

    fn signals(&mut self, steps: &mut Vec<Step>) {
        let signal = self.random.one(&SIGNALS);
        let step = match self.random.below(9) {
            5 => [5, self.random.between(1, 2)],
            which => [which, signal],
        };
        steps.push(Step::leaf("signal", &step));
    }

    /// Returns lasting changes of the process. Changes that would break later children are made in
    /// children.
    fn system(&mut self, around: &mut Around, steps: &mut Vec<Step>) {
        let number = self.random.below(8);
        if self.random.chance(40) {
            let limit = match self.random.below(8) {
                0 => [0, self.random.between(5, 40)],
                1 => [1, self.random.between(1 << 20, 8 << 20)],
                2 => [2, self.random.one(&[0, 100_000])],
                3 => [3, self.random.one(&[0, 64 << 10, 8 << 20, 64 << 20])],
                4 if around.is_child => [4, self.random.one(&[0, 4096])],
                5 => [6, 1000],
                6 => [7, self.random.between(200, 2000)],
                7 => [8, self.random.between(1000, 4000)],
                _ => [5, number],
            };
            // The allocator for signal handlers takes more address space than these limits leave.
            // Nothing can then be mapped in a child of a fork inside of a hook, unless the limit
            // can be raised for that moment.
            let is_hard = self.random.below(2) * i64::from(limit[0] != 8 || !around.is_signal_safe);
            self.is_limited |= limit[0] == 0;
            return steps.push(Step::leaf("limit", &[limit[0], limit[1], is_hard]));
        }
        let harmless = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 15];
        // Other threads may call `system` meanwhile.
        let harsh = [10, 12, if around.is_concurrent { 12 } else { CHROOT }];
        let which = if around.is_child && self.random.chance(30) {
            self.random.one(&harsh)
        } else {
            self.random.one(&harmless)
        };
        steps.push(Step::leaf("system", &[which, number]));
        if around.is_last && around.left == Left::All && self.random.chance(60) {
            let kind = self.random.below(9);
            if kind == 0 {
                // Memory that is allocated before no more is available.
                steps.push(Step::leaf("pairs", &[100, 600]));
            }
            steps.push(Step::leaf("sandbox", &[kind]));
            around.left = match kind {
                0 => Left::Pairs,
                1 => Left::Allocations,
                2 | 3 | 5 => Left::Quiet,
                _ => Left::All,
            };
        }
    }

    fn block(&mut self, around: Around, steps: &mut Vec<Step>) {
        let inner = Around { depth: around.depth + 1, is_last: false, ..around };
        match self.random.below(12) {
            0 | 1 if around.left == Left::All => {
                let count = self.random.between(1, 5);
                if self.threads_left < count * around.copies {
                    return;
                }
                self.threads_left -= count * around.copies;
                let copies = around.copies * count;
                let kilobytes = self.random.one(&[0, 0, 64, 256]);
                if count == 2 && !around.is_concurrent && !around.is_storm && self.random.chance(50) {
                    return self.beside(Around { copies: around.copies, ..inner }, steps);
                }
                let is_concurrent = around.is_concurrent || count > 1;
                let body = self.list(Around { is_concurrent, is_main: false, is_handler: false, copies, ..inner }, 6);
                steps.push(Step::block("threads", &[count, kilobytes], body));
            }
            2..=4 if around.left != Left::Allocations => {
                if !self.takes_process(around) {
                    return;
                }
                let is_plain = around.is_concurrent || around.is_orphan || around.is_storm || around.left != Left::All;
                let kind = if is_plain { 0 } else { self.random.one(&[0, 0, 0, 1, 2, 3]) };
                let is_orphan = around.is_orphan || around.is_concurrent;
                let left = if kind == 0 { around.left } else { Left::Quiet };
                let inner = Around {
                    is_concurrent: false,
                    is_orphan,
                    is_storm: false,
                    is_main: true,
                    is_child: true,
                    is_last: true,
                    left,
                    ..inner
                };
                let mut body = self.list(inner, 8);
                // A child of a fork without libc, or with locks of other threads, does not end by
                // exit.
                let is_exit = kind == 0 && !is_orphan && self.random.chance(30);
                if kind == 0 && !is_orphan {
                    self.ending(
                        Around {
                            left: if body.iter().any(|s| s.name == "sandbox") { Left::Quiet } else { left },
                            ..inner
                        },
                        &mut body,
                    );
                }
                steps.push(Step::block("fork", &[kind, is_exit.into(), is_orphan.into()], body));
            }
            5 | 6 if around.left == Left::All => {
                if !self.takes_process(around) {
                    return;
                }
                let environment = self.random.one(&[0, 0, 0, 0, 1, 2, 3, 4, 6]);
                let kind = match self.random.one(&[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]) {
                    8..=10 if around.is_rooted => 0,
                    kind => kind,
                };
                let body = self.inside_program(inner);
                steps.push(Step::block("exec", &[kind, environment], body));
            }
            7 | 8 => {
                let count = self.random.between(1, 3);
                let copies = around.copies * count;
                let body = self.list(Around { copies, ..inner }, 5);
                steps.push(Step::block("coroutines", &[count], body));
            }
            9 if around.left == Left::All => {
                let body = self.list(Around { is_handler: true, ..inner }, 5);
                let kind = self.random.below(4);
                // A signal in a coroutine begins the alternate stack anew, over the handler's frames.
                let overwrites = body.iter().any(|step| step.any(&|step| step.name == "coroutines"));
                steps.push(Step::block("handler", &[if overwrites { kind & 2 } else { kind }], body));
            }
            10 if around.left == Left::All && !around.is_concurrent && !around.is_storm && !around.is_handler => {
                let kind = i64::from(around.is_signal_safe && self.random.chance(70));
                let body = self.list(Around { is_storm: true, ..inner }, 8);
                steps.push(Step::block("storm", &[kind, self.random.between(100, 400)], body));
            }
            11 if around.left == Left::All && !around.is_concurrent && !around.is_storm && !around.is_handler => {
                if !self.takes_process(around) {
                    return;
                }
                let kind = self.random.below(if around.is_rooted { 5 } else { 10 });
                let body = self.inside_program(inner);
                // A thread that ends before it is cancelled gets no signal: getpid and tgkill may be made or not.
                const CALLS: i64 = 18;
                const OF_CANCEL: [i64; 2] = [5, 16];
                let has_cancel = body.iter().any(|step| step.any(&|step| step.name == "cancel"));
                let call = self.random.below(CALLS);
                let call = if OF_CANCEL.contains(&call) && has_cancel { call - 1 } else { call };
                steps.push(Step::block("guard", &[kind, call], body));
            }
            _ => self.allocation(steps),
        }
    }

    /// Returns two threads: one starts programs while the other inspects the descriptors. With few of
    /// them each would see what the other one has.
    fn beside(&mut self, around: Around, steps: &mut Vec<Step>) {
        if self.is_limited || !self.takes_process(around) {
            return;
        }
        let kind = self.random.below(7);
        let starts = vec![Step::block("exec", &[kind, 5], Vec::new())];
        let mut looks = Vec::new();
        for _ in 0..self.random.between(2, 6) {
            self.descriptors(Around { is_child: false, ..around }, &mut looks);
            looks.push(Step::leaf("pairs", &[self.random.between(10, 300), 20]));
        }
        steps.push(Step::block(
            "threads",
            &[2, 0],
            vec![Step::block("only", &[0], starts), Step::block("only", &[1], looks)],
        ));
    }

    /// Returns the steps of a program that a case starts.
    fn inside_program(&mut self, around: Around) -> Vec<Step> {
        let around = Around {
            depth: around.depth + 1,
            is_concurrent: false,
            is_orphan: false,
            is_storm: false,
            is_handler: false,
            is_main: true,
            is_child: true,
            is_last: true,
            ..around
        };
        let mut body = self.list(around, 6);
        let is_shut = body.iter().any(|step| step.name == "sandbox");
        if !is_shut {
            self.ending(around, &mut body);
        }
        body
    }
}
