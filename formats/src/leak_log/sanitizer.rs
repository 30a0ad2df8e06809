//! Reader of reports of LeakSanitizer.

use super::layout::{Counts, Frame, Leak, LeakLog, MAX_FRAMES, Tool, hex, lines, number, place};
use crate::{Ending, Error, Format, Kind, Result};

pub(super) fn read(bytes: &[u8]) -> Result<(LeakLog, Ending)> {
    let mut log = LeakLog { tool: Tool::Sanitizer, ..LeakLog::default() };
    let (mut is_open, mut is_summed, mut at) = (false, false, 0);
    let mut other = None;
    for line in lines(bytes) {
        at += line.len() as u64 + 1;
        let text = line.trim();
        if let Some(leak) = leak(text) {
            log.leaks.push(leak);
            is_open = true;
        } else if let (true, Some(frame), Some(leak)) = (is_open, frame(text), log.leaks.last_mut()) {
            leak.stack.extend(Some(frame).filter(|_| leak.stack.len() < MAX_FRAMES));
        } else if text.contains("LeakSanitizer: detected memory leaks") {
            log.processes += 1;
            log.pid = pid(text).unwrap_or(0);
            is_summed = false;
        } else if let Some(why) = other_end(text) {
            other.get_or_insert((at - line.len() as u64 - 1, why));
        } else if text.starts_with("SUMMARY: ") {
            is_summed = true;
            is_open = false;
        } else if text.is_empty() {
            is_open = false;
        }
    }
    // Such a program ends before its leaks are looked for: no leak in the report says nothing.
    if let (Some((offset, what)), 0, true) = (other, log.processes, log.leaks.is_empty()) {
        return Err(Error { format: Format::LeakLog, offset, field: "report", kind: Kind::Text(what) });
    }
    let ending = if is_summed || log.processes == 0 {
        Ending::Complete
    } else {
        Ending::Truncated { offset: at.min(bytes.len() as u64), field: "SUMMARY" }
    };
    Ok((log, ending))
}

/// Returns why there are no leaks in a report of something else.
fn other_end(line: &str) -> Option<String> {
    if let Some((_, error)) = line.split_once("ERROR: AddressSanitizer: ") {
        let error: String = error.split_whitespace().next().unwrap_or_default().escape_default().collect();
        return Some(format!(
            "about {error}, not about leaks: AddressSanitizer ended the program before it looked for them"
        ));
    }
    let is_failed = line.contains("LeakSanitizer has encountered a fatal error");
    is_failed.then(|| "LeakSanitizer failed and looked for no leaks, as under a debugger".to_string())
}

/// Parses the number in `==412==ERROR`.
fn pid(line: &str) -> Option<u32> {
    line.strip_prefix("==")?.split_once("==")?.0.parse().ok()
}

/// Parses `Direct leak of 70 byte(s) in 10 object(s) allocated from:`.
fn leak(line: &str) -> Option<Leak> {
    let (kind, rest) = line.split_once(" leak of ")?;
    let (bytes, rest) = rest.split_once(" byte(s) in ")?;
    let blocks = rest.split_once(" object(s)")?.0;
    let live = Counts { blocks: number(blocks)?, bytes: number(bytes)? };
    // Colors come before the word where the report went to a terminal.
    let kind = kind.rsplit(|letter: char| !letter.is_ascii_alphabetic()).next()?.to_string();
    Some(Leak { kind, live, allocated: live, ..Leak::default() })
}

/// Parses `#1 0x55d0c1a6a1b6 in remember /src/shop.c:5`. The address is in the call.
fn frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix('#')?;
    let (_, rest) = rest.split_once(' ')?;
    let (address, rest) = rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
    let mut frame = Frame { address: hex(address)?.wrapping_add(1), ..Frame::default() };
    let mut rest = rest.trim();
    if let Some((before, id)) = rest.split_once(" (BuildId: ") {
        frame.build_id = bytes_of(id.trim_end_matches(')'));
        rest = before.trim_end();
    }
    let module = rest.rfind('(').filter(|_| rest.ends_with(')')).filter(|at| rest[*at..].contains("+0x"));
    if let Some(at) = module {
        let (path, offset) = rest[at + 1..rest.len() - 1].rsplit_once("+0x")?;
        frame.module = path.to_string();
        frame.offset = hex(offset).map(|offset| offset.wrapping_add(1));
        rest = rest[..at].trim_end();
    }
    if let Some(named) = rest.strip_prefix("in ") {
        // A name has spaces, and a path may have some: the path begins with a slash or a dot, or is
        // the last word.
        let path = [" /", " ../", " ./"].iter().filter_map(|start| named.find(start)).min();
        let path = path.or_else(|| named.rfind(' ').filter(|_| frame.module.is_empty() && named.contains(':')));
        let (function, at) = named.split_at(path.unwrap_or(named.len()));
        let function = function.trim();
        frame.function = function.strip_prefix("__interceptor_").unwrap_or(function).to_string();
        (frame.file, frame.line) = place(at.trim());
    }
    Some(frame)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map_while(byte).collect()
}
