//! `events.journal.N`: the events of a chunk that is not committed yet, so that a killed recorder
//! loses none of them.
//!
//! A file holds the entries of one chunk, one after another from its start. Each entry adds bytes
//! to the chunk's trace and columns. An entry is `magic 4 | length u32 | crc32 u32`, little-endian,
//! then an [`Entry`] and the added bytes. The checksum covers all that follows it. When its chunk
//! is committed, a file is used again for a later chunk, and overwritten from the start. The bytes
//! after the last entry of the new chunk are entries of the old one, and do not count.
//!
//! Calls that were read and wait for others are in the entry too ([`Waiting`]), since they're lost with
//! the recorder otherwise.
//!
//! A reader takes the entries of all chunks after the last commit of the tape, and appends them as
//! chunks to what it reads ([`Splice`]). A tape with its [`super::End`] needs no journal.

use super::field::{Field, Text};
use super::frame::{FILE_HEADER_LEN, FRAME_HEADER_LEN};
use super::stream::{Source, Stream};
pub use super::waiting::Waiting;
use super::{
    Account, Accounts, COLUMN_ENTRIES, COLUMN_PREVIOUS, COLUMN_SITES, COLUMN_TICKS, COLUMN_UNMATCHED, COLUMN_WEIGHTS,
    Chunk, Codec, Column, Record, Step, Writer, codec,
};
use crate::recording::{JOURNAL, TAPE};
use crate::{Cursor, Format, mtrc, tape_record};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The bytes at the start of each entry.
pub const MAGIC: [u8; 4] = [0xb7, b'J', b'r', b'n'];
/// Number of bytes of an entry before its payload.
pub const HEAD: usize = 12;
/// Maximum number of files of one process: more than a recorder has chunks that are not committed.
pub const FILES: usize = 12;
/// The kinds of the columns, in the order in which an entry adds to them.
pub const KINDS: [u8; 6] =
    [COLUMN_ENTRIES, COLUMN_TICKS, COLUMN_SITES, COLUMN_WEIGHTS, COLUMN_UNMATCHED, COLUMN_PREVIOUS];
/// Number of texts to which an entry adds: the columns of the trace ([`mtrc::ColumnWriter`]), then
/// those of [`KINDS`].
pub const PARTS: usize = mtrc::COLUMNS + KINDS.len();
/// Maximum number of bytes of a file that are read. Writers make no file of a quarter of it.
const LONGEST: usize = 64 << 20;

tape_record! {
    /// The position up to which the ring of a thread was read. The next recorder starts there.
    Position {
        /// Number of the thread's slot.
        slot: u32,
        /// Number of the owner of the slot.
        owner: u32,
        /// Number of records before the position.
        tail: u64,
        /// The timestamp to which the timestamp of the next record is relative.
        timestamp: u64,
        /// Number of dropped events that the records before the position report.
        reported: u64,
        /// Number of events of the owner before the position, with dropped ones.
        counted: u64,
    }
}

tape_record! {
    /// The head of an entry in the journal.
    Entry {
        /// The chunk after this entry, without columns and checksum.
        chunk: Chunk,
        /// Number of the entry in its chunk, from 0.
        number: u32,
        /// Whether reading of the rings can continue from here. If not, the entry is valid only
        /// together with the entries of later chunks.
        is_whole: bool,
        /// The position up to which each ring was read.
        positions: Vec<Position>,
        /// Framed records that precede the chunk in the tape.
        records: Text,
        /// The accounting at this point; empty if it is not known.
        accounts: Vec<Account>,
        /// Number of bytes that the entry adds to each of the [`PARTS`].
        added: Vec<u32>,
    }
}

/// Returns the path of a journal file.
pub fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{JOURNAL}.{number}"))
}

/// Returns whether the folder of a process has journal files.
pub fn exists(folder: &Path) -> bool {
    (0..FILES).any(|number| path(folder, number).is_file())
}

/// Returns whether the folder of a process has a tape, or a journal from which one can be made.
pub fn has_tape(folder: &Path) -> bool {
    folder.join(TAPE).is_file() || exists(folder)
}

/// Returns the parts of an entry: the columns of the trace, then those of [`KINDS`].
pub fn parts<'a>(trace: [&'a [u8]; mtrc::COLUMNS], columns: [&'a [u8]; KINDS.len()]) -> [&'a [u8]; PARTS] {
    let mut parts = trace.into_iter().chain(columns);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Appends one entry: its head, and the bytes that it adds to the columns.
pub fn write(entry: &mut Entry, added: [&[u8]; PARTS], out: &mut Vec<u8>) {
    entry.added.clear();
    entry.added.extend(added.iter().map(|bytes| bytes.len() as u32));
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 8]);
    entry.put(out);
    added.iter().for_each(|bytes| out.extend_from_slice(bytes));
    let length = (out.len() - start - HEAD) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32fast::hash(&out[start + HEAD..]);
    out[start + 8..start + HEAD].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the entry at the start of `bytes`, the bytes that it adds, and the rest; `None` if there
/// is no complete entry.
fn entry(bytes: &[u8]) -> Option<(Entry, &[u8], &[u8])> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (payload, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    if crc32fast::hash(payload) != u32::from_le_bytes(*sum) {
        return None;
    }
    let mut cursor = Cursor::new(Format::Tape, payload);
    let entry = Entry::get(&mut cursor, "Entry").ok()?;
    let added = cursor.rest();
    let sum = entry.added.iter().fold(0u64, |sum, bytes| sum + u64::from(*bytes));
    (entry.added.len() == PARTS && sum == added.len() as u64).then_some((entry, added, rest))
}

/// A chunk that is not committed: its entries, each with the bytes that it adds.
#[derive(Debug)]
pub struct Open {
    entries: Vec<(Entry, Vec<u8>)>,
}

impl Open {
    /// Reads the bytes of a journal file. Returns `None` if they have no entry.
    pub fn read(bytes: &[u8]) -> Option<Open> {
        let (mut rest, mut entries) = (bytes, Vec::<(Entry, Vec<u8>)>::new());
        while let Some((entry, added, next)) = entry(rest) {
            let chunk = entries.first().map_or(entry.chunk.number, |(first, _)| first.chunk.number);
            if entry.number as usize != entries.len() || entry.chunk.number != chunk {
                break;
            }
            entries.push((entry, added.to_vec()));
            rest = next;
        }
        (!entries.is_empty()).then_some(Open { entries })
    }

    fn number(&self) -> u32 {
        self.entries.first().map_or(0, |(entry, _)| entry.chunk.number)
    }

    /// Returns the framed records that come before the chunk.
    fn records(&self) -> impl Iterator<Item = &[u8]> {
        let all = self.entries.iter().flat_map(|(entry, _)| frames(&entry.records.0));
        all.filter(|frame| !Waiting::is_in(frame))
    }

    /// Returns the calls that waited when the last entry was written.
    fn waiting(&self) -> Option<Waiting> {
        let (last, _) = self.entries.last()?;
        frames(&last.records.0).find(|frame| Waiting::is_in(frame)).and_then(Waiting::read)
    }

    /// Returns the chunk, to be stored uncompressed at `offset` of the trace, and its bytes there;
    /// `None` if it is empty, or its columns do not stand for as many bytes as it says.
    fn chunk(&self, offset: u64) -> Option<(Chunk, Vec<u8>)> {
        let mut parts: [Vec<u8>; PARTS] = Default::default();
        for (entry, added) in &self.entries {
            let mut rest = &added[..];
            for (part, length) in parts.iter_mut().zip(&entry.added) {
                let (bytes, more) = rest.split_at_checked(*length as usize)?;
                part.extend_from_slice(bytes);
                rest = more;
            }
        }
        stored(&self.entries.last()?.0.chunk, &parts, offset)
    }
}

/// Returns a chunk with these parts, to be stored uncompressed at `offset` of the trace, and its
/// bytes there; `None` if it is empty, or its columns do not stand for as many bytes as it says.
fn stored(chunk: &Chunk, parts: &[Vec<u8>; PARTS], offset: u64) -> Option<(Chunk, Vec<u8>)> {
    if parts.iter().all(Vec::is_empty) {
        return None;
    }
    let mut chunk = chunk.clone();
    let (trace, columns) = parts.split_first_chunk::<{ mtrc::COLUMNS }>()?;
    let (mut joined, mut plain) = (Vec::new(), Vec::new());
    mtrc::join(trace.each_ref().map(Vec::as_slice), &mut joined);
    mtrc::restore(&joined, usize::try_from(chunk.plain_length).ok()?, &mut plain).ok()?;
    (chunk.codec, chunk.stored_offset) = (Codec::Plain as u8, offset);
    (chunk.stored_length, chunk.plain_length) = (plain.len() as u64, plain.len() as u64);
    chunk.checksum = codec::checksum(&plain);
    let columns = KINDS.into_iter().zip(columns).filter(|(kind, plain)| *kind == COLUMN_PREVIOUS || !plain.is_empty());
    let column = |(kind, plain): (u8, &Vec<u8>)| {
        let (codec, plain_length) = (Codec::Plain as u8, plain.len() as u32);
        Column { kind, codec, plain_length, stored: Text(plain.clone()) }
    };
    chunk.columns = columns.map(column).collect();
    Some((chunk, plain))
}

/// Splits framed records of a tape.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = bytes.get(8..12)?.first_chunk::<4>()?;
        let (frame, rest) = bytes.split_at_checked(FRAME_HEADER_LEN + u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(frame)
    })
}

/// Returns the chunks of the journal files of a process, in order. To be read before the tape:
/// chunks that are committed meanwhile are then in the tape.
pub fn open_chunks(folder: &Path) -> Vec<Open> {
    let mut chunks = Vec::new();
    for number in 0..FILES {
        let Ok(file) = crate::regular::open(&path(folder, number)) else { continue };
        let mut bytes = Vec::new();
        if file.read_up_to(0, LONGEST, &mut bytes).is_ok() {
            chunks.extend(Open::read(&bytes));
        }
    }
    chunks.sort_by_key(Open::number);
    // Remove entries that are valid only together with later ones, which are missing.
    while let Some(last) = chunks.last_mut() {
        while last.entries.last().is_some_and(|(entry, _)| !entry.is_whole) {
            last.entries.pop();
        }
        if !last.entries.is_empty() {
            break;
        }
        chunks.pop();
    }
    chunks
}

/// Returns how far the rings of a process had been read when the last entry was written.
pub fn positions(folder: &Path) -> Vec<Position> {
    let chunks = open_chunks(folder);
    chunks.last().and_then(|open| open.entries.last()).map_or(Vec::new(), |(entry, _)| entry.positions.clone())
}

/// A file, and bytes that replace its content from an offset on.
#[derive(Debug)]
pub struct Splice<F = File> {
    file: Option<F>,
    /// Offset of the bytes, and the bytes; `None` if there is only the file.
    more: Option<(u64, Vec<u8>)>,
}

impl<F: Source> Splice<F> {
    /// Returns a file without other bytes.
    pub const fn file(file: F) -> Splice<F> {
        Splice { file: Some(file), more: None }
    }

    /// Returns a file with other bytes from `at` on. A file that ends before `at` stays alone, so
    /// that a hostile offset makes no long file.
    pub fn new(file: Option<F>, at: u64, more: Vec<u8>) -> Splice<F> {
        let length = file.as_ref().and_then(|file| file.length().ok()).unwrap_or(0);
        Splice { file, more: (at <= length).then_some((at, more)) }
    }
}

impl<F: Source> Source for Splice<F> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match (&self.more, &self.file) {
            (Some((at, more)), _) if offset >= *at => more[..].read_at(offset - at, into),
            (Some((at, _)), Some(file)) => {
                let most = usize::try_from(at - offset).unwrap_or(usize::MAX).min(into.len());
                Source::read_at(file, offset, &mut into[..most])
            }
            (None, Some(file)) => Source::read_at(file, offset, into),
            (_, None) => Ok(0),
        }
    }

    fn length(&self) -> io::Result<u64> {
        match (&self.more, &self.file) {
            (Some((at, more)), _) => Ok(at.saturating_add(more.len() as u64)),
            (None, Some(file)) => file.length(),
            (None, None) => Ok(0),
        }
    }
}

/// What a tape needs to be complete up to the last journal entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Offset of the records in the tape.
    pub tape_at: u64,
    /// The framed records to append.
    pub tape: Vec<u8>,
    /// Offset of the bytes in the trace.
    pub trace_at: u64,
    /// The uncompressed bytes to append to the trace.
    pub trace: Vec<u8>,
}

impl Missing {
    /// Compares the open chunks of a process with its tape, if it has one. Returns `None` if the
    /// tape lacks nothing. A file that is shorter than a tape's header is of a recorder that was
    /// killed before it wrote one.
    ///
    /// # Errors
    /// Returns an error if the tape cannot be read or is not a tape.
    pub fn of(tape: Option<&dyn Source>, chunks: &[Open]) -> crate::Result<Option<Missing>> {
        if chunks.is_empty() {
            return Ok(None);
        }
        let mut missing = Missing::default();
        let (mut last, mut known) = (0, HashSet::new());
        let is_short = |tape: &&dyn Source| tape.length().is_ok_and(|length| length < FILE_HEADER_LEN as u64);
        match tape.filter(|tape| !is_short(tape)) {
            None => Writer::file_header(&mut missing.tape),
            Some(tape) => {
                let mut stream = Stream::new(tape)?;
                missing.tape_at = stream.offset();
                loop {
                    match stream.step()? {
                        Step::Record(_, Record::End(_)) => return Ok(None),
                        Step::Record(_, Record::Chunk(chunk)) => {
                            last = chunk.number;
                            missing.trace_at = chunk.stored_offset.saturating_add(chunk.stored_length);
                            known.clear();
                        }
                        Step::Record(
                            _,
                            record @ (Record::Process(_)
                            | Record::Loss(_)
                            | Record::Note(_)
                            | Record::Mark(_)
                            | Record::Mappings(_)),
                        ) => {
                            let mut frame = Vec::new();
                            Writer::default().record(&record, &mut frame);
                            known.insert(frame);
                        }
                        Step::Record(..) | Step::Unknown(..) => {}
                        Step::Damage(..) => continue,
                        Step::End(_) => break,
                    }
                    missing.tape_at = stream.offset();
                }
            }
        }
        let chunks: Vec<&Open> = chunks.iter().filter(|open| open.number() > last).collect();
        let Some((newest, (entry, _))) = chunks.last().and_then(|open| Some((open, open.entries.last()?))) else {
            return Ok(None);
        };
        let mut writer = Writer::default();
        let mut accounts = &entry.accounts;
        for open in &chunks {
            // The recorder may have written them when it was killed before it committed the chunk.
            open.records().filter(|frame| !known.contains(*frame)).for_each(|frame| missing.tape.extend(frame));
            if let Some((chunk, plain)) = open.chunk(missing.trace_at.saturating_add(missing.trace.len() as u64)) {
                last = chunk.number;
                writer.record(&Record::Chunk(chunk), &mut missing.tape);
                missing.trace.extend(plain);
            }
        }
        let waiting = newest.waiting();
        if let Some(waiting) = &waiting
            && let Ok(parts) = <&[Text; PARTS]>::try_from(&waiting.parts[..])
            && let parts = parts.each_ref().map(|part| part.0.clone())
            && let Some((mut chunk, plain)) =
                stored(&waiting.chunk, &parts, missing.trace_at.saturating_add(missing.trace.len() as u64))
        {
            // The open chunk, if it is still empty, or the one after it.
            chunk.number = newest.number().max(last.saturating_add(1));
            writer.record(&Record::Chunk(chunk), &mut missing.tape);
            missing.trace.extend(plain);
            accounts = &waiting.accounts;
        }
        if !accounts.is_empty() {
            let accounts = accounts.clone();
            writer.record(&Record::Accounts(Accounts { accounts }), &mut missing.tape);
        }
        Ok(Some(missing))
    }
}

#[cfg(test)]
mod tests;
