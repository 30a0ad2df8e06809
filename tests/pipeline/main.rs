//! The whole way, from outside: a program, the library in it, the command, the recording, the reports.
#![forbid(unsafe_code)]

mod allocators;
mod attach;
mod bootstrap;
mod browser;
mod brute_force;
mod daemon;
mod daemon_bounds;
mod daemon_restart;
mod diffs;
mod exec;
mod exports;
mod footprint;
mod forks;
mod gaps;
mod gates;
mod hooks_each_function;
mod hostile;
mod jumps;
mod kill_target;
mod leak_verdicts;
mod limits;
mod modules;
mod packs;
mod real_leaks;
mod real_programs;
mod realloc;
mod refusals;
mod same_output;
mod semantics;
mod signals;
mod stacks;
mod strangers;
mod threads;
mod tools;
mod unwinder;
