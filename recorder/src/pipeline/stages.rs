//! The stages of the recorder, started and stopped together: one drain, and a digest with its store
//! for every four CPUs.

use crate::digest::chunks::{self, Queues};
use crate::os::clock::{self, Clock};
use crate::os::crash;
use crate::pipeline::drain::{self, Command, Outputs};
use crate::pipeline::residency;
use crate::rings::batch::InFlight;
use crate::session::traced_process::SessionId;
use crate::store::writer::{self, Callback, Stored};
use crate::target::cgroup;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// Capacity of the queue between drain and digest, in batches.
const BATCHES: usize = 32;
/// Capacity of the queue between digest and store, in write jobs.
const WRITE_JOBS: usize = 4;

/// The running threads and their queues.
#[derive(Debug)]
pub struct Stages {
    /// Number of digests, each with its store.
    pub workers: usize,
    pub commands: Sender<Command>,
    /// Receiver of what the stores have written.
    pub stored: Receiver<Stored>,
    pages: Sender<residency::Request>,
    threads: Vec<JoinHandle<()>>,
}

impl Stages {
    /// Starts the threads of all stages.
    ///
    /// # Errors
    /// The error of a thread that could not be started.
    pub fn start(clock: Clock) -> io::Result<Stages> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (cores / 4).clamp(1, 4);
        let (commands, commands_in) = unbounded();
        let (batches_out, batches_in) = bounded(2 * BATCHES);
        let (stored_out, stored) = unbounded();
        let in_flight = InFlight::new(cgroup::memory_limit(std::process::id()));
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let (messages_out, messages) = bounded(BATCHES);
            let (write_jobs, write_jobs_in) = bounded(WRITE_JOBS);
            let (chunks_out, chunks) = bounded(2 * WRITE_JOBS);
            let batches = batches_out.clone();
            let stored = stored_out.clone();
            let digest = Queues { messages, batches, in_flight: in_flight.clone(), write_jobs, chunks };
            threads.push(spawn(&format!("digest-{worker}"), move || chunks::run(&digest))?);
            threads.push(spawn(&format!("store-{worker}"), move || writer::run(&write_jobs_in, &chunks_out, &stored))?);
            queues.push(messages_out);
        }
        let (residency, requests) = unbounded();
        let digests = queues.clone();
        threads.push(spawn("residency", move || residency::run(&requests, &digests))?);
        let pages = residency.clone();
        let outputs = Outputs { workers: queues, residency };
        threads.push(spawn("drain", move || drain::run(clock, &commands_in, outputs, batches_in, in_flight))?);
        Ok(Stages { workers, commands, stored, pages, threads })
    }

    /// Returns a sender to the thread that reads the pages of the processes. The stages stop only
    /// when it is dropped.
    pub fn pages(&self) -> Sender<residency::Request> {
        self.pages.clone()
    }

    /// Reads the pages of a process, and then calls `then`.
    pub fn read_pages(&self, id: SessionId, cause: u8, then: Callback) {
        let _ = self.commands.send(Command::ReadPages(residency::Request::Take { id, cause, then }));
    }

    /// Reads the pages of a process that is about to end, and then closes the socket on which it
    /// waits.
    pub(crate) fn read_pages_at_exit(&self, pid: u32, socket: OwnedFd) {
        let _ = self.pages.send(residency::Request::Exit { pid, socket });
    }

    /// Stops all stages: without a sender of commands the drain ends what is left, and each stage
    /// after it does the same.
    pub fn stop(&mut self) {
        self.commands = unbounded().0;
        self.pages = unbounded().0;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread_name = name.to_owned();
    let body = move || {
        body();
        tracing::debug!("{thread_name}: {:.3} s of CPU time", clock::thread_time().as_secs_f64());
    };
    crash::spawn(name, body)
}
