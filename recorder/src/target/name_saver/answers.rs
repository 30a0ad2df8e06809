//! What was looked up before. A script or a build starts the same program again and again, and each
//! of its processes asks for the same addresses of the same files. Reading the debug information of
//! the C library alone takes 20 ms, so an answer is kept for a while, and copied.

use super::{Group, Received, path_of};
use crate::target::kept_file::Version;
use formats::recording::SYMBOLS;
use formats::tape::SymbolQuery;
use formats::tape::field::Field;
use nix::sys::stat::fstat;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum size of a question, and of an answer, in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of answers: 64 MiB at most, a hundredth of that as a rule.
const MAX_ANSWERS: usize = 128;
/// For how long an answer is used. Debug information may be installed meanwhile.
const MAX_AGE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Answers {
    known: FxHashMap<Vec<u8>, Answer>,
}

#[derive(Debug)]
struct Answer {
    bytes: Vec<u8>,
    since: Instant,
}

impl Answers {
    /// Answers a job whose question was answered before; otherwise returns it.
    pub(super) fn answer(&mut self, job: Received) -> Option<Received> {
        let is_new = |answer: &&Answer| answer.since.elapsed() < MAX_AGE;
        let Some(known) = question(&job).and_then(|question| self.known.get(&question)).filter(is_new) else {
            return Some(job);
        };
        job.write(&known.bytes);
        job.unlock();
        None
    }

    /// Adds a job to a batch: to the group with the same question, if there is one.
    pub(super) fn add(batch: &mut Vec<Group>, job: Received) {
        let asked = question(&job);
        let is_same = |group: &&mut Group| asked.is_some() && group.first().and_then(question) == asked;
        match batch.iter_mut().find(is_same) {
            Some(group) => group.push(job),
            None => batch.push(vec![job]),
        }
    }

    /// Keeps the answer that was written for a group.
    pub(super) fn keep(&mut self, group: &Group) {
        let Some((job, question)) = group.first().and_then(|job| Some((job, question(job)?))) else { return };
        let written = job.folders.first().and_then(|(folder, _)| File::open(path_of(folder).join(SYMBOLS)).ok());
        let mut bytes = Vec::new();
        let read = written.and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok());
        if read.is_none_or(|read| read == 0 || read as u64 > MAX_BYTES) {
            return;
        }
        if self.known.len() >= MAX_ANSWERS {
            let oldest = self.known.iter().min_by_key(|(_, answer)| answer.since).map(|(question, _)| question.clone());
            oldest.map(|oldest| self.known.remove(&oldest));
        }
        self.known.insert(question, Answer { bytes, since: Instant::now() });
    }
}

/// Returns what a job asks, so that equal bytes have equal answers; `None` if that is not certain,
/// because a file is not open.
fn question(job: &Received) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for query in &job.request.queries {
        if query.file == 0 && query.path.0.starts_with(b"/") {
            return None;
        }
        // The time says whether a file at the path is that of the module. An open one is.
        SymbolQuery { since_unix_ns: 0, file: 0, debug_file: 0, ..query.clone() }.put(&mut bytes);
        for number in [query.file, query.debug_file] {
            let file = (number as usize).checked_sub(1).and_then(|index| job.files.get(index));
            file.map_or([0; 4], identity).iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        }
        if bytes.len() as u64 > MAX_BYTES {
            return None;
        }
    }
    Some(bytes)
}

/// Returns what changes with the content of a file.
fn identity(file: &OwnedFd) -> [u64; 4] {
    let status = fstat(file).map(|status| (status.st_dev, status.st_ino));
    let Version { bytes, renamed, .. } = Version::of(file).unwrap_or_default();
    status.map_or([0; 4], |(device, inode)| [device, inode, bytes, renamed])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::name_saver::Request;
    use formats::recording::SYMBOLS_LOCK;
    use std::path::Path;

    /// A job of a process that started at this time, about this address of a file.
    fn job(folder: &Path, file: &Path, since_unix_ns: u64, address: u64) -> Received {
        let path = file.to_str().unwrap_or_default().into();
        let addresses = vec![address];
        let query = SymbolQuery { path, since_unix_ns, file: 1, addresses, ..SymbolQuery::default() };
        let open = |path: &Path| OwnedFd::from(File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}")));
        std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(folder.join(SYMBOLS_LOCK), "").unwrap_or_else(|error| panic!("{error}"));
        Received {
            request: Request { folders: 1, queries: vec![query], ..Request::default() },
            folders: vec![(open(folder), open(&folder.join(SYMBOLS_LOCK)))],
            files: vec![open(file)],
        }
    }

    #[test]
    fn a_question_is_answered_again_while_its_files_are_the_same() {
        let temporary = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let at = |name: &str| temporary.path().join(name);
        std::fs::write(at("program"), "one").unwrap_or_else(|error| panic!("{error}"));
        let mut batch = Vec::new();
        for (folder, since, address) in [("first", 1, 16), ("second", 2, 16), ("third", 3, 32)] {
            Answers::add(&mut batch, job(&at(folder), &at("program"), since, address));
        }
        assert_eq!(batch.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1], "one question for two processes");
        let mut answers = Answers::default();
        batch[0].iter().for_each(|job| job.write(b"names"));
        answers.keep(&batch[0]);
        // Nothing was written for the third one: its helper has crashed.
        answers.keep(&batch[1]);
        assert!(answers.answer(job(&at("fourth"), &at("program"), 4, 16)).is_none());
        assert_eq!(std::fs::read(at("fourth").join(SYMBOLS)).ok().as_deref(), Some(&b"names"[..]));
        assert!(!at("fourth").join(SYMBOLS_LOCK).exists(), "readers wait no longer");
        assert!(answers.answer(job(&at("fifth"), &at("program"), 5, 32)).is_some());
        std::fs::write(at("program"), "other").unwrap_or_else(|error| panic!("{error}"));
        assert!(answers.answer(job(&at("sixth"), &at("program"), 6, 16)).is_some(), "the file was changed");
        let mut unopened = job(&at("seventh"), &at("program"), 7, 16);
        unopened.request.queries[0].file = 0;
        assert_eq!(question(&unopened), None, "a file that is not open may be another one by now");
    }
}
