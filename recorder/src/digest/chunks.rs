//! The middle stage: a thread that passes the records from the drain to the recordings of their
//! processes, and write jobs to the store.

use crate::digest::process::{ProcessCommand, ProcessRecording};
use crate::heap::thread_number::ThreadNumber;
use crate::rings::batch::{Batch, InFlight};
use crate::rings::counts::EventCounts;
use crate::session::traced_process::{Session, SessionId};
use crate::store::trace::Chunk;
use crate::store::writer::WriteJob;
use crate::target::proc::SeenEnd;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which recordings write what is due.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of write jobs that wait for the end of their batch.
const MAX_HELD: usize = 3;
/// Maximum number of ended processes that are kept because a forked child may still name them as
/// its parent.
const MAX_ENDED: usize = 16;
/// How long such a process is kept.
const ENDED_TIME: Duration = Duration::from_secs(10);

/// A message from the drain. The messages of one session arrive in order.
#[derive(Debug)]
pub enum Message {
    Start(Arc<Session>),
    /// The child inherits the blocks that its parent had at the tick (0: now). All of the parent's
    /// events up to that tick were sent before.
    Inherit {
        child: SessionId,
        parent: SessionId,
        tick: u64,
    },
    /// The current blocks of the parent, undone up to the tick, are kept for a child that will
    /// inherit them.
    PrepareFork {
        parent: SessionId,
        tick: u64,
    },
    /// A new thread, or the name of a known one: number, tid, name, tick.
    Thread(SessionId, ThreadNumber, u32, Vec<u8>, u64),
    /// Records of a session, in order.
    Batch(SessionId, Batch),
    /// The event counts of threads in their control records, by number.
    Counts(SessionId, Vec<(ThreadNumber, EventCounts)>),
    /// A thread has ended, and all its records were sent before.
    ThreadEnded(SessionId, ThreadNumber, EventCounts),
    /// A note for the readers of the recording.
    Note(SessionId, String),
    Process(SessionId, ProcessCommand),
    /// The process is handed over to the next daemon.
    Leave(SessionId),
    /// The process has ended, and all its records were sent before.
    End(SessionId, SeenEnd),
}

#[derive(Debug)]
pub(crate) struct Queues {
    pub messages: Receiver<Message>,
    /// Emptied batches, returned to the drain.
    pub batches: Sender<Batch>,
    /// Counter of the records that the drain has sent.
    pub in_flight: InFlight,
    pub write_jobs: Sender<WriteJob>,
    /// Emptied chunks, returned by the store.
    pub chunks: Receiver<Chunk>,
}

/// The thread of the stage: runs until the drain is gone.
pub(crate) fn run(queues: &Queues) {
    let mut recordings: HashMap<SessionId, ProcessRecording> = HashMap::new();
    let mut ended: VecDeque<(Instant, ProcessRecording)> = VecDeque::new();
    let mut spare = || queues.chunks.try_recv().unwrap_or_default();
    let mut out = |write_job: WriteJob| drop(queues.write_jobs.send(write_job));
    let mut due = Instant::now() + TICK_INTERVAL;
    loop {
        let message = match queues.messages.recv_deadline(due) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match message {
            None => {}
            Some(Message::Start(session)) => {
                let mut recording = ProcessRecording::new(session);
                recording.open(&mut out);
                recording.resume(&mut spare, &mut out);
                recordings.insert(recording.id(), recording);
            }
            Some(Message::Inherit { child, parent, tick }) => {
                let gone = ended.iter_mut().map(|(_, recording)| recording).find(|recording| recording.id() == parent);
                let parent = recordings.get_mut(&parent).or(gone);
                let (blocks, mapped) =
                    parent.map(|parent| (parent.inheritance_at(tick), parent.mapped_at(tick))).unwrap_or_default();
                if let Some(recording) = recordings.get_mut(&child) {
                    recording.inherit(blocks);
                    recording.inherit_mappings(&mapped);
                }
            }
            Some(Message::PrepareFork { parent, tick }) => {
                with_recording(&mut recordings, parent, |recording| recording.store_inheritance(tick))
            }
            Some(Message::Thread(id, number, tid, name, tick)) => {
                with_recording(&mut recordings, id, |recording| recording.thread(number, tid, name, tick));
            }
            Some(Message::Batch(id, mut batch)) => {
                with_recording(&mut recordings, id, |recording| {
                    // A chunk that ends within the batch is stored once the journal has the rest
                    // of the batch: else the next recorder would read both the chunk and the
                    // records that it came from.
                    let mut held = Vec::new();
                    let mut hold = |write_job: WriteJob| {
                        held.push(write_job);
                        if held.len() > MAX_HELD {
                            held.drain(..1).for_each(&mut out);
                        }
                    };
                    recording.batch(&batch, &mut spare, &mut hold);
                    recording.keep(&batch.positions);
                    held.into_iter().for_each(&mut out);
                });
                queues.in_flight.received(batch.records.len());
                batch.clear();
                let _ = queues.batches.try_send(batch);
            }
            Some(Message::Counts(id, counts)) => {
                let each = |recording: &mut ProcessRecording| {
                    counts.iter().for_each(|(thread, counts)| recording.counts(*thread, *counts))
                };
                with_recording(&mut recordings, id, each);
            }
            Some(Message::ThreadEnded(id, thread, counts)) => {
                with_recording(&mut recordings, id, |recording| recording.thread_ended(thread, counts));
            }
            Some(Message::Note(id, text)) => with_recording(&mut recordings, id, |recording| recording.note(text)),
            Some(Message::Process(id, command)) => {
                if let Some(recording) = recordings.get_mut(&id) {
                    recording.execute(command, &mut spare, &mut out);
                }
            }
            Some(Message::Leave(id)) => with_recording(&mut recordings, id, ProcessRecording::hand_over),
            Some(Message::End(id, seen)) => {
                if let Some(mut recording) = recordings.remove(&id) {
                    recording.finish(seen, &mut spare, &mut out);
                    ended.push_back((Instant::now(), recording));
                    if ended.len() > MAX_ENDED {
                        ended.pop_front();
                    }
                }
            }
        }
        if Instant::now() >= due {
            recordings.values_mut().for_each(|recording| recording.tick(&mut spare, &mut out));
            ended.retain(|(when, _)| when.elapsed() < ENDED_TIME);
            due = Instant::now() + TICK_INTERVAL;
        }
    }
}

fn with_recording(
    recordings: &mut HashMap<SessionId, ProcessRecording>,
    id: SessionId,
    act: impl FnOnce(&mut ProcessRecording),
) {
    if let Some(recording) = recordings.get_mut(&id) {
        act(recording);
    }
}
