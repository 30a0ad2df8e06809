//! The recorder of a command in a process of its own. The command itself starts the program, passes
//! signals on and waits; what holds the events is this one, which no terminal's signal reaches.
//! A killed command (by a time limit, a person, a script that cleans up) loses nothing:
//! the survivor process goes on until the last recorded process has ended, and ends the recording
//! as ever.

use crate::crash::{self, Destination, Role};
use crate::options::Options;
use crate::process;
use crate::recorder::Recorder;
use crate::session::End;
use crate::spawn;
use crate::store::Sums;
use crate::symbols::{self, Saver, Side, Work};
use crate::sys;
use crate::tree::{self, why_not};
use formats::recording::RESERVE;
use nix::errno::Errno;
use nix::sys::socket::{self, MsgFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::limits::ENV_SOCKET;

/// Most bytes of a message.
const MOST: usize = 64 << 10;
/// Errors that are told one by one.
const MOST_ERRORS: usize = 50;
/// Processes that still run and are named.
const MOST_NAMED: usize = 100;
/// How long the command waits for the names that the recording keeps.
const NAMES: Duration = Duration::from_millis(100);
/// How long nothing must run before a survivor process without its command ends: a process may be
/// on its way.
const QUIET: Duration = Duration::from_secs(1);
/// How often a program that has stopped, or processes that may be on their way, are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What command and survivor process say to each other.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// Keeper: it records, or why it cannot, with the system's number of the error.
    Ready(Option<(Option<i32>, String)>),
    /// Command: it stops, because the program with this pid has stopped.
    Stopped(u32),
    /// Command: it goes on.
    Resumed,
    /// Command: the program has ended with this status (as `wait` says it), and should it not be
    /// recorded, this is why. `wait` keeps the recording open until all recorded processes have
    /// ended.
    Ended { pid: u32, status: i32, program: PathBuf, why: Option<String>, wait: bool },
    /// Command: do not wait any longer.
    Enough,
    /// Command: the program could not be started.
    Never,
    /// Keeper: the recording is at its end.
    Done(Said),
}

/// What the survivor process says at the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    /// What could not be written.
    pub errors: Vec<String>,
    /// Emitted, recorded, lost, sampled out.
    sums: [u64; 4],
    /// Why the program itself is not in the recording.
    pub unrecorded: Option<String>,
    /// Recorded processes that were still running: pid and name.
    pub still_running: Vec<(u32, String)>,
}

impl Said {
    /// Events of all processes.
    pub fn sums(&self) -> Sums {
        let [emitted, recorded, lost, sampled_out] = self.sums;
        Sums { emitted, recorded, lost, sampled_out }
    }
}

/// The command's end.
#[derive(Debug)]
pub struct Survivor {
    channel: OwnedFd,
    /// The survivor process's process; `None` when it is a thread.
    process: Option<u32>,
}

fn say(channel: &OwnedFd, word: &Word) {
    if let Ok(bytes) = serde_json::to_vec(word) {
        let _ = socket::send(channel.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
    }
}

/// The next word; `None` when the other side is gone.
fn hear(channel: &OwnedFd) -> Option<Word> {
    let mut bytes = vec![0; MOST];
    loop {
        match socket::recv(channel.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            Ok(count) if count > 0 => return serde_json::from_slice(&bytes[..count]).ok(),
            _ => return None,
        }
    }
}

impl Survivor {
    /// Starts recording. `apart`: in a process of its own, for a caller that has one thread; else
    /// in a thread. Such a process closes the `inherited` descriptors, which are the program's.
    /// Then names are kept, if `work` says how they are looked up.
    pub fn start(
        dir: &Path,
        socket: &Path,
        options: Options,
        command: Vec<String>,
        (apart, work): (bool, Option<Work>),
        inherited: &[i32],
    ) -> io::Result<Survivor> {
        let flags = socket::SockFlag::SOCK_CLOEXEC;
        let pair = socket::socketpair(socket::AddressFamily::Unix, socket::SockType::SeqPacket, None, flags);
        let (channel, survivors) = pair.map_err(sys::io)?;
        let (dir, socket) = (dir.to_owned(), socket.to_owned());
        let mut survivor = Survivor { channel, process: None };
        if apart {
            let pid = std::process::id();
            survivor.process = sys::fork().map_err(sys::io)?;
            if survivor.process.is_none() {
                crash::set_role(Role::Survivor);
                crash::forward_faults(false);
                crash::unblock_faults();
                let _ = nix::unistd::setsid();
                spawn::close_inherited(inherited, false);
                drop(survivor);
                let saver = match work.map(|work| (work, symbols::split())) {
                    Some((work, Ok(Side::Helper(helper)))) => {
                        drop(survivors);
                        helper.run(work);
                        std::process::exit(0);
                    }
                    Some((_, Ok(Side::Recorder(saver)))) => Some(Arc::new(saver)),
                    Some((_, Err(_))) | None => None,
                };
                keep(&survivors, &dir, &socket, options, command, (Some(pid), saver));
                std::process::exit(0);
            }
            // Its end is heard of only when nobody else holds its side.
            drop(survivors);
        } else {
            let body = move || keep(&survivors, &dir, &socket, options, command, (None, None));
            crash::spawn("keeper", body)?;
        }
        match hear(&survivor.channel) {
            Some(Word::Ready(None)) => Ok(survivor),
            Some(Word::Ready(Some((Some(number), _)))) => Err(io::Error::from_raw_os_error(number)),
            Some(Word::Ready(Some((None, error)))) => Err(io::Error::other(error)),
            _ => Err(io::Error::other("the recorder ended before it began")),
        }
    }

    /// Its process, if it has one of its own.
    pub fn pid(&self) -> Option<u32> {
        self.process
    }

    /// The command stops, since the program has; the survivor process continues it when the program
    /// goes on.
    pub fn stopped(&self, program: u32) {
        say(&self.channel, &Word::Stopped(program));
    }

    /// The command goes on.
    pub fn resumed(&self) {
        say(&self.channel, &Word::Resumed);
    }

    /// The program could not be started.
    pub fn never_mind(self) {
        say(&self.channel, &Word::Never);
        while hear(&self.channel).is_some() {}
    }

    /// The program has ended.
    pub fn ended(&self, pid: u32, status: i32, program: &Path, why: Option<String>, wait: bool) {
        say(&self.channel, &Word::Ended { pid, status, program: program.to_owned(), why, wait });
    }

    /// Processes that outlive the program are not waited for any longer.
    pub fn enough(&self) {
        say(&self.channel, &Word::Enough);
    }

    /// Becomes readable when the recording is at its end, or the survivor process was killed.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        sys::fd(&self.channel)
    }

    /// Waits for the end of the recording; `None`: the survivor process was killed.
    pub fn finish(&self) -> Option<Said> {
        loop {
            match hear(&self.channel)? {
                Word::Done(said) => return Some(said),
                _ => continue,
            }
        }
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        if let Some(process) = self.process.and_then(|process| i32::try_from(process).ok()) {
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(process), None);
        }
    }
}

/// The survivor process's life. `command_pid` is the command's process, if that is another one.
fn keep(
    channel: &OwnedFd,
    dir: &Path,
    socket: &Path,
    options: Options,
    command: Vec<String>,
    (command_pid, saver): (Option<u32>, Option<Arc<Saver>>),
) {
    let mut recorder = match Recorder::start(dir, socket, options, command) {
        Ok(recorder) => recorder,
        Err(error) => return say(channel, &Word::Ready(Some((error.raw_os_error(), error.to_string())))),
    };
    saver.iter().for_each(|saver| recorder.save_names(Arc::clone(saver)));
    let lock = Lock::hold(dir);
    let crash_report = command_pid.map(|_| Destination::of(dir));
    say(channel, &Word::Ready(None));
    let (mut is_alone, mut quiet, mut said) = (false, Instant::now(), Said::default());
    let (mut failed, mut stopped, mut waits) = (None, None, false);
    let variable = [ENV_SOCKET.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat();
    loop {
        crash::panic_if_requested();
        let none: [BorrowedFd<'_>; 0] = [];
        let one = [sys::fd(channel)];
        let looks = stopped.is_some() || (waits && !recorder.is_busy());
        let most = if looks { LOOK } else { Duration::from_secs(1) };
        let ready = recorder.serve(if is_alone { &none } else { &one }, most);
        if let Err(error) = &ready {
            // Whatever fails here (a full disk above all), the program runs on.
            failed.get_or_insert_with(|| format!("{}: {error}", dir.display()));
            std::thread::sleep(Duration::from_millis(20));
        }
        if recorder.is_busy() {
            quiet = Instant::now();
        }
        if let Some(program) = stopped.filter(|_| !is_alone)
            && !process::is_stopped(program)
            && let Some(command) = command_pid.filter(|command| process::is_stopped(*command))
        {
            spawn::send_to(command, nix::libc::SIGCONT);
        }
        if is_alone {
            if quiet.elapsed() >= QUIET {
                break;
            }
            continue;
        }
        // A process that was forked a moment ago has not said hello yet.
        if waits && !recorder.is_busy() && (quiet.elapsed() >= QUIET || !process::exists_with(&variable)) {
            break;
        }
        let has_word = ready.map_or(true, |ready| ready.first() == Some(&true)) && sys::is_readable(sys::fd(channel));
        if !has_word {
            continue;
        }
        match hear(channel) {
            Some(Word::Stopped(program)) => stopped = Some(program),
            Some(Word::Resumed) => stopped = None,
            Some(Word::Ended { pid, status, program, why, wait }) => {
                said.unrecorded = ended(&mut recorder, pid, status, &program, why);
                if !wait {
                    break;
                }
                (waits, quiet) = (true, Instant::now());
            }
            Some(Word::Never | Word::Enough) => break,
            Some(_) => {}
            None => (is_alone, quiet) = (true, Instant::now()),
        }
    }
    let outcome = recorder.finish();
    drop((lock, crash_report));
    said.still_running = outcome.still_running.into_iter().take(MOST_NAMED).collect();
    said.errors = outcome.errors.into_iter().chain(failed).take(MOST_ERRORS).collect();
    said.sums = [outcome.sums.emitted, outcome.sums.recorded, outcome.sums.lost, outcome.sums.sampled_out];
    if is_alone {
        // Nobody else clears up.
        socket.parent().map(std::fs::remove_dir);
    }
    say(channel, &Word::Done(said));
    // Names that take longer come later: the helper goes on alone.
    saver.iter().for_each(|saver| saver.finish(NAMES));
}

/// The program has ended; gives why it was not recorded, if so.
fn ended(recorder: &mut Recorder, pid: u32, status: i32, program: &Path, why: Option<String>) -> Option<String> {
    let _ = recorder.serve(&[], Duration::ZERO);
    recorder.process_ended(pid, End::of_status(status));
    if recorder.images().iter().any(|image| image.pid == pid) {
        return None;
    }
    let why = why.or_else(|| why_not(program)).unwrap_or_else(|| tree::NOT_LOADED.into());
    if recorder.knows_untraced(pid) {
        return None;
    }
    recorder.not_traced(pid, program.to_string_lossy().into_owned(), why.clone());
    Some(why)
}

/// Says that a recording has its recorder: held on the file that keeps room for the last words.
#[derive(Debug)]
struct Lock {
    _file: File,
}

impl Lock {
    fn hold(dir: &Path) -> Option<Lock> {
        let file = File::open(dir.join(RESERVE)).ok()?;
        file.try_lock().ok()?;
        Some(Lock { _file: file })
    }
}

/// Waits until a recording's recorder, if it has one, has ended it.
pub fn wait_for_end(dir: &Path) -> io::Result<()> {
    match File::open(dir.join(RESERVE)) {
        Ok(file) => file.lock_shared(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
