//! The whole way, from outside: a program, the library in it, the command, the recording, the reports.
#![forbid(unsafe_code)]

mod allocators;
mod attach;
mod bootstrap;
mod daemon;
mod daemon_bounds;
mod daemon_restart;
mod exec;
mod footprint;
mod forks;
mod gaps;
mod hooks_each_function;
mod jumps;
mod kill_target;
mod limits;
mod modules;
mod real_programs;
mod realloc;
mod refusals;
mod same_output;
mod semantics;
mod signals;
mod stacks;
mod threads;
mod tools;
