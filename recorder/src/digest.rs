//! The middle stage: a thread that takes what the drain found through the images' digests, and
//! hands pieces to the store.

use crate::batch::{Batch, InFlight};
use crate::image::{Counts, Image, Tell};
use crate::session::{End, Session, SessionId};
use crate::store::Piece;
use crate::trace::Chunk;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often images are asked what is due.
const TICK: Duration = Duration::from_millis(100);
/// Ended images that a forked child may still name as its parent, and how long they are kept for
/// it.
const ENDED: usize = 16;
const ENDED_TIME: Duration = Duration::from_secs(10);

/// What the drain tells. For one session everything comes in order.
#[derive(Debug)]
pub enum Message {
    /// A session begins.
    Start(Arc<Session>),
    /// The child gets what its parent had at the tick (0: now). All of the parent's events up to it
    /// came before.
    Inherit {
        /// The child.
        child: SessionId,
        /// The parent.
        parent: SessionId,
        /// When it forked.
        tick: u64,
    },
    /// What the parent has now, undone up to the tick, is kept for a child that will ask for that
    /// tick.
    Bequeath {
        /// The parent.
        parent: SessionId,
        /// When it forked.
        tick: u64,
    },
    /// A thread was first seen, or its name became known: number, tid, name, tick.
    Thread(SessionId, u32, u32, Vec<u8>, u64),
    /// Ordered records.
    Batch(SessionId, Batch),
    /// What the control words say of threads by number.
    Counts(SessionId, Vec<(u32, Counts)>),
    /// A thread has ended and all its records came before.
    ThreadEnded(SessionId, u32, Counts),
    /// Something that readers should know.
    Note(SessionId, String),
    /// Something to do.
    Tell(SessionId, Tell),
    /// The next daemon goes on with it.
    Leave(SessionId),
    /// All records came before.
    End(SessionId, End),
}

/// The ends of the stage's queues.
#[derive(Debug)]
pub struct Queues {
    /// From the drain.
    pub messages: Receiver<Message>,
    /// Emptied batches back to the drain.
    pub batches: Sender<Batch>,
    /// What the drain has sent.
    pub in_flight: InFlight,
    /// To the store.
    pub pieces: Sender<Piece>,
    /// Emptied chunks from the store.
    pub chunks: Receiver<Chunk>,
}

/// The stage's thread: runs until the drain is gone.
pub fn run(queues: &Queues) {
    let mut images: HashMap<SessionId, Image> = HashMap::new();
    let mut ended: VecDeque<(Instant, Image)> = VecDeque::new();
    let mut spare = || queues.chunks.try_recv().unwrap_or_default();
    let mut out = |piece: Piece| drop(queues.pieces.send(piece));
    let mut due = Instant::now() + TICK;
    loop {
        let message = match queues.messages.recv_deadline(due) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match message {
            None => {}
            Some(Message::Start(session)) => {
                let mut image = Image::new(session);
                image.open(&mut out);
                image.resume(&mut spare, &mut out);
                images.insert(image.id(), image);
            }
            Some(Message::Inherit { child, parent, tick }) => {
                let gone = ended.iter_mut().map(|(_, image)| image).find(|image| image.id() == parent);
                let left = images.get_mut(&parent).or(gone).map(|parent| parent.bequeath(tick));
                if let Some(image) = images.get_mut(&child) {
                    image.inherit(left.unwrap_or_default());
                }
            }
            Some(Message::Bequeath { parent, tick }) => with(&mut images, parent, |image| image.keep_legacy(tick)),
            Some(Message::Thread(id, number, tid, name, tick)) => {
                with(&mut images, id, |image| image.thread(number, tid, name, tick));
            }
            Some(Message::Batch(id, mut batch)) => {
                with(&mut images, id, |image| image.batch(&batch, &mut spare, &mut out));
                queues.in_flight.taken(batch.records.len());
                batch.clear();
                let _ = queues.batches.try_send(batch);
            }
            Some(Message::Counts(id, counts)) => {
                let each =
                    |image: &mut Image| counts.iter().for_each(|(thread, counts)| image.counts(*thread, *counts));
                with(&mut images, id, each);
            }
            Some(Message::ThreadEnded(id, thread, counts)) => {
                with(&mut images, id, |image| image.thread_ended(thread, counts));
            }
            Some(Message::Note(id, text)) => with(&mut images, id, |image| image.note(text)),
            Some(Message::Tell(id, tell)) => {
                if let Some(image) = images.get_mut(&id) {
                    image.tell(tell, &mut spare, &mut out);
                }
            }
            Some(Message::Leave(id)) => with(&mut images, id, Image::leave),
            Some(Message::End(id, end)) => {
                if let Some(mut image) = images.remove(&id) {
                    image.finish(end, &mut spare, &mut out);
                    ended.push_back((Instant::now(), image));
                    if ended.len() > ENDED {
                        ended.pop_front();
                    }
                }
            }
        }
        if Instant::now() >= due {
            images.values_mut().for_each(|image| image.tick(&mut spare, &mut out));
            ended.retain(|(when, _)| when.elapsed() < ENDED_TIME);
            due = Instant::now() + TICK;
        }
    }
}

fn with(images: &mut HashMap<SessionId, Image>, id: SessionId, act: impl FnOnce(&mut Image)) {
    if let Some(image) = images.get_mut(&id) {
        act(image);
    }
}
