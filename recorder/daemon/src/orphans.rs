//! Processes that an earlier daemon recorded and did not pass on: where it was killed together with
//! its fd store, as the runtimes of containers do. They have its area mapped and write to it, and
//! nobody reads it. The library attaches once, at the start of a program, so we open the area
//! through the process's mappings, and go on.
//!
//! Such a mapping says no more than a hello does: any process may map such a file. The area is
//! checked like every other one, and counts against the budgets of the process's user.

use super::config::Config;
use heaptape_recorder::os::aside::{self, Owner};
use heaptape_recorder::os::{crash, sys};
use heaptape_recorder::target::maps;
use heaptape_recorder::target::proc::{self, Process};
use nix::sys::stat::fstat;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Memory of an area that a process has mapped at least. A forked child without an area of its own
/// keeps a page of its parent's.
const MIN_MAPPED: u64 = 64 << 10;

/// A process whose area nobody reads.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub owner: Owner,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// Descriptor that becomes readable when the process ends.
    pub end: OwnedFd,
    /// Its area, or why it cannot be opened.
    pub area: io::Result<OwnedFd>,
    pub process: Process,
    /// The mode and the label that it requests.
    pub mode: Option<String>,
    pub label: Option<String>,
}

/// The search, which looks at all processes.
#[derive(Debug)]
pub(crate) struct Orphans(Receiver<Orphan>);

/// An area in the mappings of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Area {
    inode: u64,
    /// The addresses of its first page: a name in `map_files`.
    range: String,
    /// Bytes of it that are mapped.
    bytes: u64,
}

/// What the mappings of a process say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mapped {
    areas: Vec<Area>,
    /// Whether the library is there: otherwise the process is a recorder.
    has_library: bool,
}

impl Mapped {
    fn parse(text: &str) -> Mapped {
        let mut mapped = Mapped::default();
        for line in text.lines().filter_map(maps::parse) {
            let is_area = line.name == "/memfd:heaptape (deleted)" && line.is_shared() && line.is_writable();
            mapped.has_library |= line.is_executable() && maps::is_library(line.name);
            if !is_area {
                continue;
            }
            let bytes = line.end - line.start;
            let known = mapped.areas.iter().position(|area| area.inode == line.inode);
            let index = known.unwrap_or_else(|| {
                mapped.areas.push(Area { inode: line.inode, range: String::new(), bytes: 0 });
                mapped.areas.len() - 1
            });
            let area = &mut mapped.areas[index];
            area.bytes = area.bytes.saturating_add(bytes);
            if line.offset == 0 {
                area.range = line.range.to_owned();
            }
        }
        mapped
    }

    /// Returns the area that a program uses itself.
    fn own(&self) -> Option<&Area> {
        let whole = self.areas.iter().filter(|area| !area.range.is_empty() && area.bytes >= MIN_MAPPED);
        whole.max_by_key(|area| area.bytes)
    }
}

fn open_area(pid: u32, area: &Area) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/map_files/{}", area.range))?;
    let file = OwnedFd::from(file);
    match fstat(&file)?.st_ino == area.inode {
        true => Ok(file),
        false => Err(io::Error::other("its memory changed meanwhile")),
    }
}

impl Orphan {
    /// Opens the area of a process, if it was recorded through this socket. Without an environment,
    /// which services overwrite with their titles, that is not known.
    fn find(owner: Owner, area: &Area, socket: &str) -> Option<Orphan> {
        let pid = owner.pid;
        // Before anything is read of it, so that all of it is of this process.
        let end = sys::process(pid).ok()?;
        let [of, mode, label]: [Option<String>; 3] =
            proc::variable(pid, &["HEAPTAPE_SOCKET", "HEAPTAPE_MODE", "HEAPTAPE_LABEL"]).try_into().ok()?;
        if of.is_some_and(|of| of != socket) {
            return None;
        }
        let (process, hello_pid) = (Process::read(pid), proc::inner_pid(pid).unwrap_or(pid));
        let area = open_area(pid, area);
        (!sys::is_readable(sys::fd(&end))).then_some(Orphan { owner, hello_pid, end, area, process, mode, label })
    }
}

impl Orphans {
    /// Starts the search. `known` are the processes that this daemon has taken over.
    pub(crate) fn search(config: &Config, known: HashSet<u32>) -> io::Result<Orphans> {
        let (socket, serves_all) = (config.socket.display().to_string(), config.serves_all);
        let (sender, found) = channel();
        crash::spawn("orphans", move || search(&socket, serves_all, &known, &sender))?;
        Ok(Orphans(found))
    }

    /// Returns the next process that was found.
    pub(crate) fn next(&self) -> Option<Orphan> {
        self.0.try_recv().ok()
    }
}

fn search(socket: &str, serves_all: bool, known: &HashSet<u32>, sender: &Sender<Orphan>) {
    let own_user = nix::unistd::geteuid().as_raw();
    let (mut programs, mut read): (Vec<(Owner, Area)>, HashSet<u64>) = (Vec::new(), HashSet::new());
    for pid in proc::pids() {
        let Some(uid) = proc::effective_user(pid) else { continue };
        let owner = Owner { pid, uid };
        let mapped = Mapped::parse(&String::from_utf8_lossy(&maps::read_aside(owner)));
        if !mapped.has_library {
            // A recorder, or a helper of one.
            read.extend(mapped.areas.iter().map(|area| area.inode));
        } else if let Some(area) = mapped.own().filter(|_| serves_all || uid == own_user) {
            programs.push((owner, area.clone()));
        }
    }
    let orphans =
        programs.into_iter().filter(|(owner, area)| !known.contains(&owner.pid) && !read.contains(&area.inode));
    for (owner, area) in orphans {
        let socket = socket.to_owned();
        let found = aside::call(owner, move || Orphan::find(owner, &area, &socket)).unwrap_or_default();
        if found.is_some_and(|found| sender.send(found).is_err()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_of_a_program_is_found_and_those_of_recorders_are_told_apart() {
        let area = "\
7fa224144000-7fa224165000 rw-s 01420000 00:01 788865                     /memfd:heaptape (deleted)
7fa22470c000-7fa22470d000 rw-s 00000000 00:01 788865                     /memfd:heaptape (deleted)
7fa22480c000-7fa22480d000 rw-s 00000000 00:01 788866                     /memfd:heaptape (deleted)
7fa22490c000-7fa22490d000 r--s 00000000 00:01 788867                     /memfd:heaptape (deleted)
";
        let library = "7fa225264000-7fa225288000 r-xp 00008000 fe:00 827579 /var/cache/heaptape/libheaptape-1.so\n";
        let recorder = Mapped::parse(area);
        assert!(!recorder.has_library);
        let inodes: Vec<u64> = recorder.areas.iter().map(|area| area.inode).collect();
        assert_eq!(inodes, [788_865, 788_866]);
        let program = Mapped::parse(&format!("{area}{library}"));
        let own = program.own().expect("an area");
        assert!(program.has_library);
        assert_eq!((own.inode, &*own.range), (788_865, "7fa22470c000-7fa22470d000"));
    }
}
