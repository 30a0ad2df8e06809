//! Prints a profile with one record per line.

use super::layout::is_space;
use super::lines::LineIter;
use super::reader::{Profile, read_at};
use super::remarks::Remarks;
use std::io::{Result, Write};

/// Prints header lines, chunks, samples, and the faults of the file as `error` lines, and returns
/// the faults. Totals are computed from the chunks. Unprintable bytes are shown as `\xNN`.
///
/// # Errors
/// Returns an error if writing fails.
pub fn dump(bytes: &[u8], stride: Option<u32>, out: &mut impl Write) -> Result<Remarks> {
    let faults = match read_at(bytes, stride) {
        Ok(profile) => {
            dump_lines(profile.header.lines(), out)?;
            dump_body(&profile, out)?;
            profile.faults
        }
        Err(error) => {
            dump_lines(LineIter::new(bytes), out)?;
            let mut faults = Remarks::default();
            faults.push(|| error);
            faults
        }
    };
    for fault in faults.iter() {
        writeln!(out, "error {fault}")?;
    }
    Ok(faults)
}

/// Prints the lines up to the terminator, or up to the first that is not text, because in a file
/// without terminator the body follows.
fn dump_lines(lines: LineIter<'_>, out: &mut impl Write) -> Result<()> {
    for line in lines.take_while(|line| !line.is_terminator()) {
        let word = line.word();
        if !word.iter().all(|byte| byte.is_ascii_graphic() || *byte >= 0x80 || is_space(*byte)) {
            break;
        }
        write!(out, "{} ", line.class().name())?;
        print(word, out)?;
        out.write_all(b" ")?;
        print(line.value(), out)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn dump_body(profile: &Profile<'_>, out: &mut impl Write) -> Result<()> {
    let aligned = if profile.header.is_aligned() { "yes" } else { "no" };
    writeln!(out, "header_bytes {} aligned {aligned}", profile.header.len())?;
    if !profile.is_documented() {
        return writeln!(out, "undocumented_bytes {}", profile.body().len());
    }
    writeln!(out, "chunks {}", profile.chunks)?;
    for chunk in profile.chunks() {
        let (nonzero, samples) = chunk.totals();
        writeln!(out, "chunk offset {} number {} nonzero {nonzero} samples {samples}", chunk.offset, chunk.number)?;
    }
    writeln!(out, "total_offsets {} total_samples {}", profile.total_offsets, profile.total_samples)?;
    for (address, count) in profile.samples() {
        writeln!(out, "{address:#x} {count}")?;
    }
    Ok(())
}

fn print(bytes: &[u8], out: &mut impl Write) -> Result<()> {
    for &byte in bytes {
        match byte {
            b'\t' | b' '..=b'~' => out.write_all(&[byte])?,
            _ => write!(out, "\\x{byte:02x}")?,
        }
    }
    Ok(())
}
