//! Reader of what valgrind's memcheck prints.

use super::layout::{Counts, Frame, Leak, LeakLog, MAX_FRAMES, Tool, hex, lines, number, place};
use crate::Ending;
use std::collections::BTreeMap;

/// What is read of one process.
#[derive(Default)]
struct Part {
    /// The leak whose stack follows.
    open: Option<Leak>,
    is_ended: bool,
}

pub(super) fn read(bytes: &[u8]) -> (LeakLog, Ending) {
    let mut log = LeakLog { tool: Tool::Memcheck, ..LeakLog::default() };
    let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
    for line in lines(bytes) {
        let Some((pid, text)) = of_process(&line) else { continue };
        let part = parts.entry(pid).or_default();
        let text = text.trim();
        if let Some(command) = text.strip_prefix("Command: ")
            && log.command.is_empty()
        {
            (log.command, log.pid) = (command.to_string(), pid);
        } else if let Some(live) = text.strip_prefix("in use at exit: ").and_then(counts) {
            log.live = Some(log.live.unwrap_or_default().and(live));
            part.is_ended = true;
        } else if let Some((allocated, frees)) = text.strip_prefix("total heap usage: ").and_then(usage) {
            let (sum, before) = log.allocated.unwrap_or_default();
            log.allocated = Some((sum.and(allocated), before.saturating_add(frees)));
        } else if let Some(leak) = leak(text) {
            log.leaks.extend(part.open.replace(leak));
        } else if let (Some(leak), Some(frame)) = (&mut part.open, frame(text)) {
            leak.stack.extend(Some(frame).filter(|_| leak.stack.len() < MAX_FRAMES));
        } else {
            log.leaks.extend(part.open.take());
        }
    }
    log.processes = parts.len();
    log.leaks.extend(parts.values_mut().filter_map(|part| part.open.take()));
    let is_whole = parts.values().all(|part| part.is_ended);
    let cut = Ending::Truncated { offset: bytes.len() as u64, field: "HEAP SUMMARY" };
    (log, if is_whole { Ending::Complete } else { cut })
}

/// Splits `==5594== text`, after what the program may have printed on the same line.
fn of_process(line: &str) -> Option<(u32, &str)> {
    let rest = line.strip_prefix("==").or_else(|| line.strip_prefix("--"))?;
    let (pid, text) = rest.split_once("==").or_else(|| rest.split_once("--"))?;
    // With --time-stamp=yes it is 00:00:00:00.268 5594.
    Some((pid.rsplit(' ').next()?.parse().ok()?, text))
}

/// Parses `4,149,967 bytes in 33,333 blocks`.
fn counts(text: &str) -> Option<Counts> {
    let (bytes, rest) = text.split_once(" bytes in ")?;
    Some(Counts { bytes: number(bytes)?, blocks: number(rest.split(' ').next()?)? })
}

/// Parses `50,002 allocs, 16,669 frees, 6,325,010 bytes allocated`.
fn usage(text: &str) -> Option<(Counts, u64)> {
    let (blocks, rest) = text.split_once(" allocs, ")?;
    let (frees, rest) = rest.split_once(" frees, ")?;
    let bytes = rest.strip_suffix(" bytes allocated")?;
    Some((Counts { blocks: number(blocks)?, bytes: number(bytes)? }, number(frees)?))
}

/// Parses `100 bytes in 10 blocks are definitely lost in loss record 1 of 2`, where the first
/// number may be `1,016 (16 direct, 1,000 indirect)`: what is reached from it has records of its
/// own.
pub(super) fn leak(text: &str) -> Option<Leak> {
    let (rest, _) = text.split_once(" in loss record ")?;
    let (bytes, rest) = rest.split_once(" bytes in ")?;
    let direct = bytes.split_once('(').and_then(|(_, direct)| direct.split_once(" direct"));
    let bytes = number(direct.map_or(bytes, |(direct, _)| direct))?;
    let (blocks, kind) = rest.split_once(" blocks are ")?;
    let live = Counts { blocks: number(blocks)?, bytes };
    Some(Leak { kind: kind.to_string(), live, allocated: live, ..Leak::default() })
}

/// Parses `by 0x1091B3: remember (shop.c:5)` or `by 0x4A: ??? (in /usr/bin/shop)`.
fn frame(text: &str) -> Option<Frame> {
    let rest = text.strip_prefix("at ").or_else(|| text.strip_prefix("by "))?;
    let (address, rest) = rest.split_once(": ")?;
    let mut frame = Frame { address: hex(address)?, ..Frame::default() };
    let (function, at) = match rest.rfind(" (").filter(|_| rest.ends_with(')')) {
        Some(at) => (&rest[..at], &rest[at + 2..rest.len() - 1]),
        None => (rest, ""),
    };
    frame.function = if function == "???" { String::new() } else { function.to_string() };
    match at.strip_prefix("in ") {
        Some(module) => frame.module = module.to_string(),
        None => (frame.file, frame.line) = place(at),
    }
    Some(frame)
}
