//! A command has the descriptors of a process before the process has its area, and another
//! recorder continues with them.

mod common;

use common::back;
use common::fake::{Process, Thread, connect, hello, mapped};
use heaptape_recorder::handover::{About, CommandLink, Handover, Held};
use heaptape_recorder::options::Options;
use heaptape_recorder::recorder::{KILLED, Recorder};
use heaptape_recorder::sys;
use heaptape_wire::Op;
use heaptape_wire::hello::REPLY_BYTES;
use nix::sys::socket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

fn send(channel: &OwnedFd, handover: &Handover) -> bool {
    let Handover::Begun(held) = handover else { return true };
    let about = serde_json::to_vec(&held.about).expect("JSON");
    sys::send_files_with(sys::fd(channel), &about, &[sys::fd(&held.area), sys::fd(&held.process)], false).is_ok()
}

fn receive(channel: &OwnedFd) -> Held {
    let mut bytes = vec![0; 1 << 16];
    let (count, files) = sys::receive_files(sys::fd(channel), &mut bytes).expect("a handover");
    let about: About = serde_json::from_slice(&bytes[..count]).expect("JSON");
    let [area, process] = <[OwnedFd; 2]>::try_from(files).expect("two descriptors");
    Held { about, area, process }
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
    let (ours, theirs) = socket::socketpair(
        socket::AddressFamily::Unix,
        socket::SockType::SeqPacket,
        None,
        socket::SockFlag::SOCK_CLOEXEC,
    )
    .expect("a pair");
    let mut killed = Recorder::start(&dir, &path, Options::default(), vec!["fake".into()]).expect("a recorder");
    killed.connect_command(CommandLink { channel: theirs, send });
    let mut attach = || {
        let client = connect(&path);
        socket::send(client.as_raw_fd(), &hello().encode(), socket::MsgFlags::empty()).expect("sends");
        serve_until(&mut killed, |_| sys::is_readable(sys::fd(&client)));
        assert!(sys::is_readable(sys::fd(&ours)), "the command has the area before the process has it");
        let (_, area) = sys::receive_with(sys::fd(&client), &mut [0; REPLY_BYTES]).expect("a reply");
        (receive(&ours), area.expect("an area"))
    };
    let (held, area) = attach();
    let (never_attached, _) = attach();
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
