//! The file of operations: what a process did with its heap, in order.
//!
//! The file is only passed from one process of this version to another. All numbers are
//! little-endian. A header of 32 bytes is followed by the operations of 16 bytes each, and by the
//! number of the last operation of each thread (8 bytes each).

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of the header: magic, number of operations, number of slots, number of threads, unused.
pub const HEADER_BYTES: usize = 32;
pub(crate) const OPERATION_BYTES: usize = 16;
const MAGIC: &[u8; 8] = b"HTPLAY\0\x02";

/// What an operation does with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocates a block of any contents.
    Allocate,
    /// Allocates a block of zeros.
    AllocateZeroed,
    /// Allocates a block with the alignment of the operation.
    AllocateAligned,
    /// Reallocates the block of the slot.
    Resize,
    /// Frees the block of the slot.
    Free,
    /// Limits what the next operation writes to its block to this number of bytes.
    LimitWrites,
}

impl Action {
    const ALL: [Action; 6] = [
        Action::Allocate,
        Action::AllocateZeroed,
        Action::AllocateAligned,
        Action::Resize,
        Action::Free,
        Action::LimitWrites,
    ];
}

/// One call of an allocation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What is done with the slot.
    pub action: Action,
    /// Binary logarithm of the alignment, for [`Action::AllocateAligned`].
    pub alignment: u8,
    /// Number of the thread, from 0; below 2^16.
    pub thread: u16,
    /// Number of the slot that holds the block. Slots are used again.
    pub slot: u32,
    /// Size in bytes; 0 for [`Action::Free`].
    pub size: u64,
}

impl Operation {
    /// Returns the operation in the form of the file.
    pub fn encode(&self) -> [u8; OPERATION_BYTES] {
        let mut bytes = [0; OPERATION_BYTES];
        bytes[0] = self.action as u8;
        bytes[1] = self.alignment;
        bytes[2..4].copy_from_slice(&self.thread.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Returns the operation that these bytes hold, or `None` if there is no such action.
    pub fn decode(bytes: &[u8; OPERATION_BYTES]) -> Option<Operation> {
        let [action, alignment, t0, t1, s0, s1, s2, s3, size @ ..] = *bytes;
        Some(Operation {
            action: *Action::ALL.get(usize::from(action))?,
            alignment,
            thread: u16::from_le_bytes([t0, t1]),
            slot: u32::from_le_bytes([s0, s1, s2, s3]),
            size: u64::from_le_bytes(size),
        })
    }
}

/// Sums that a file begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number of operations in the file.
    pub operations: u64,
    /// Number of slots that are used.
    pub slots: u32,
    /// Number of threads that are used.
    pub threads: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.operations.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.slots.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.threads.to_le_bytes());
        bytes
    }

    /// Returns the header that these bytes hold, or `None` if they are of another file.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let number = |at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        (bytes[..8] == *MAGIC).then(|| Header {
            operations: number(8, 8),
            slots: number(16, 4) as u32,
            threads: number(20, 4) as u32,
        })
    }

    /// Returns the position of the table of last operations in the file.
    pub(crate) const fn last_operations_offset(&self) -> u64 {
        HEADER_BYTES as u64 + self.operations.saturating_mul(OPERATION_BYTES as u64)
    }
}

/// Writes a file of operations.
#[derive(Debug)]
pub struct Writer<W: Write + Seek> {
    out: W,
    header: Header,
    last_operations: Vec<u64>,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file of operations.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(&[0; HEADER_BYTES])?;
        Ok(Writer { out, header: Header::default(), last_operations: Vec::new() })
    }

    /// Appends an operation to the file.
    pub fn push(&mut self, operation: Operation) -> io::Result<()> {
        let thread = usize::from(operation.thread);
        if self.last_operations.len() <= thread {
            self.last_operations.resize(thread + 1, 0);
        }
        self.last_operations[thread] = self.header.operations;
        self.header.operations += 1;
        self.header.slots = self.header.slots.max(operation.slot + 1);
        self.out.write_all(&operation.encode())
    }

    /// Ends the file and returns what was counted.
    pub fn finish(mut self) -> io::Result<Header> {
        for last in &self.last_operations {
            self.out.write_all(&last.to_le_bytes())?;
        }
        self.header.threads = self.last_operations.len() as u32;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&self.header.encode())?;
        self.out.flush()?;
        Ok(self.header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn operations_are_read_as_they_were_written() {
        let operations =
            Action::ALL.map(|action| Operation { action, alignment: 12, thread: 65_535, slot: 70_000, size: u64::MAX });
        let mut file = Cursor::new(Vec::new());
        let mut writer = Writer::new(&mut file).expect("memory");
        operations.iter().for_each(|operation| writer.push(*operation).expect("memory"));
        let header = writer.finish().expect("memory");
        assert_eq!(header, Header { operations: 6, slots: 70_001, threads: 65_536 });
        let bytes = file.into_inner();
        assert_eq!(bytes[..HEADER_BYTES].try_into().ok().and_then(Header::decode), Some(header));
        let body = &bytes[HEADER_BYTES..header.last_operations_offset() as usize];
        let (found, rest) = body.as_chunks::<OPERATION_BYTES>();
        assert!(rest.is_empty());
        assert_eq!(found.iter().filter_map(Operation::decode).collect::<Vec<_>>(), operations);
        assert_eq!(bytes[bytes.len() - 8..], 5u64.to_le_bytes());
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Operation::decode(&[6; OPERATION_BYTES]), None);
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
    }
}
