//! A keeper has the descriptors of a process before the process has its area, and another recorder
//! continues with them.

mod common;

use common::back;
use common::fake::{Process, Thread, connect, hello, mapped};
use heaptape_formats::recording::{RECORDING, Recording};
use heaptape_recorder::os::sys;
use heaptape_recorder::run::{KILLED, Recorder};
use heaptape_recorder::session::keeper::{self, CommandLink, FILES, Held, Request, Store};
use heaptape_recorder::session::listener::INITIAL_NAME;
use heaptape_recorder::session::options::Options;
use heaptape_wire::Op;
use heaptape_wire::hello::REPLY_BYTES;
use nix::sys::socket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

fn send(channel: &OwnedFd, request: &Request, files: &[BorrowedFd<'_>]) -> bool {
    let request = serde_json::to_vec(request).expect("JSON");
    sys::send_files_with(sys::fd(channel), &request, files, false).is_ok()
}

/// Receives all that a recorder has sent, and returns the processes that its keeper has.
fn receive(channel: &OwnedFd, mut store: Store) -> Vec<Held<()>> {
    while sys::is_readable(sys::fd(channel)) {
        let mut bytes = [0; 256];
        let (count, files) = sys::receive_files::<FILES>(sys::fd(channel), &mut bytes).expect("a request");
        store.obey(serde_json::from_slice(&bytes[..count]).expect("JSON"), files);
    }
    store.into_held()
}

/// Returns another recorder's view of what the keeper has of a process.
fn again(held: &Held<()>) -> Held<()> {
    let file = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().expect("a descriptor");
    let files = vec![file(&held.area), file(&held.process), file(&held.entry.about)];
    keeper::held(held.entry.key.clone(), files).expect("a process")
}

/// Returns the command's end of a channel, and the recorder's.
fn channel() -> (OwnedFd, OwnedFd) {
    let flags = socket::SockFlag::SOCK_CLOEXEC;
    socket::socketpair(socket::AddressFamily::Unix, socket::SockType::SeqPacket, None, flags).expect("a pair")
}

fn serve_until(recorder: &mut Recorder, mut is_done: impl FnMut(&Recorder) -> bool) {
    let start = Instant::now();
    while !is_done(recorder) {
        assert!(start.elapsed() < Duration::from_secs(20), "the recorder does not get there");
        recorder.serve(&[], Duration::from_millis(5)).expect("serves");
    }
}

#[test]
fn process_whose_recorder_is_killed_during_the_attach_is_recorded_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dir, path) = (folder.path().join("recording"), folder.path().join("socket"));
    std::fs::create_dir(&dir).expect("a folder");
    let (ours, theirs) = channel();
    let mut killed = Recorder::start(&dir, &path, Options::default(), vec!["fake".into()]).expect("a recorder");
    killed.connect_command(CommandLink { channel: theirs, send });
    let mut attach = || {
        let client = connect(&path);
        socket::send(client.as_raw_fd(), &hello().encode(), socket::MsgFlags::empty()).expect("sends");
        serve_until(&mut killed, |_| sys::is_readable(sys::fd(&client)));
        assert!(sys::is_readable(sys::fd(&ours)), "the keeper has the area before the process has it");
        let (_, area) = sys::receive_with(sys::fd(&client), &mut [0; REPLY_BYTES]).expect("a reply");
        // Both wait until the recorder is killed.
        (receive(&ours, Store::default()).pop().expect("a process"), area.expect("an area"), client)
    };
    let (held, area, _first) = attach();
    let (never_attached, _, _second) = attach();
    // As if killed: nothing that it does later is seen.
    std::mem::forget(killed);

    let other = tempfile::tempdir().expect("a folder");
    let socket = other.path().join("socket");
    let mut recorder = Recorder::resume(&dir, &socket, Options::default()).expect("resumes");
    recorder.take_over(held);
    recorder.take_over(never_attached);
    serve_until(&mut recorder, |recorder| recorder.is_busy());
    assert!(recorder.processes().is_empty(), "no process uses its area");
    let process = Arc::new(Process { mapping: mapped(&area) });
    let mut thread = Thread::claim(&process);
    assert!(thread.event(Op::MALLOC, 0, 0x1000, 24));
    process.mapping.header().attached.store(1, Release);
    serve_until(&mut recorder, |recorder| !recorder.processes().is_empty());
    let outcome = recorder.finish();
    let last = outcome.recording.processes.last().expect("a process");
    assert_eq!(back::read(&dir.join(&last.folder)).totals().allocs, 1);
    let named: Vec<&str> = outcome.recording.not_traced.iter().map(|process| &*process.why).collect();
    assert_eq!(named, [KILLED]);
}

/// Each recorder is killed before it writes `recording.json` in its turn. The next one lists the
/// part of the one before, and not only its own.
#[test]
fn parts_of_recorders_that_are_killed_at_once_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dir, path) = (folder.path().join("recording"), folder.path().join("listens"));
    std::fs::create_dir(&dir).expect("a folder");
    let (ours, theirs) = channel();
    let mut first = Recorder::start(&dir, &path, Options::default(), vec!["fake".into()]).expect("a recorder");
    first.connect_command(CommandLink { channel: theirs, send });
    let client = connect(&path);
    socket::send(client.as_raw_fd(), &hello().encode(), socket::MsgFlags::empty()).expect("sends");
    serve_until(&mut first, |_| sys::is_readable(sys::fd(&client)));
    let (_, area) = sys::receive_with(sys::fd(&client), &mut [0; REPLY_BYTES]).expect("a reply");
    let process = Process { mapping: mapped(&area.expect("an area")) };
    std::mem::forget(first);
    process.mapping.header().attached.store(1, Release);
    let held = receive(&ours, Store::default()).pop().expect("a process");
    let mut parts = vec![held.about.info.folder.clone()];
    for _ in 0..3 {
        let (_ours, theirs) = channel();
        let mut next = Recorder::resume(&dir, &path, Options::default()).expect("resumes");
        next.connect_command(CommandLink { channel: theirs, send });
        next.take_over(again(&held));
        std::mem::forget(next);
        let held = again(&held);
        let listed: Recording =
            serde_json::from_slice(&std::fs::read(dir.join(RECORDING)).expect("recording.json")).expect("JSON");
        let listed: Vec<String> = listed.processes.into_iter().map(|info| info.folder).collect();
        assert_eq!(listed, parts);
        parts.push(held.about.info.folder.clone());
    }
    assert_eq!(parts.len(), 4);
}

/// The socket of a recorder that was killed before others could find it keeps no other from
/// listening.
#[test]
fn recorder_starts_beside_the_socket_of_a_killed_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dir, path) = (folder.path().join("recording"), folder.path().join("listens"));
    std::fs::create_dir(&dir).expect("a folder");
    drop(UnixListener::bind(folder.path().join(INITIAL_NAME)).expect("a socket"));
    let recorder = Recorder::start(&dir, &path, Options::default(), vec!["fake".into()]).expect("a recorder");
    assert!(path.exists() && !folder.path().join(INITIAL_NAME).exists());
    drop(recorder);
}
