//! Reader of what bcc's `memleak` prints. Each interval lists what is not freed yet, so the last
//! whole one counts.

use super::layout::{Counts, Frame, Leak, LeakLog, MAX_FRAMES, Tool, hex, lines, number};
use crate::Ending;

pub(super) fn read(bytes: &[u8]) -> (LeakLog, Ending) {
    let mut log = LeakLog { tool: Tool::Memleak, processes: 1, ..LeakLog::default() };
    for line in lines(bytes) {
        let text = line.trim();
        if let Some(pid) = text.strip_prefix("Attaching to pid ") {
            log.pid = pid.split(',').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        } else if text.contains(" stacks with outstanding allocations:") {
            log.intervals += 1;
            log.leaks.clear();
        } else if let Some(live) = counts(text) {
            log.leaks.push(Leak { live, allocated: live, ..Leak::default() });
        } else if let (Some(leak), Some(frame)) = (log.leaks.last_mut(), frame(&line)) {
            leak.stack.extend(Some(frame).filter(|_| leak.stack.len() < MAX_FRAMES));
        }
    }
    (log, Ending::Complete)
}

/// Parses `80 bytes in 5 allocations from stack`.
fn counts(text: &str) -> Option<Counts> {
    let (bytes, rest) = text.split_once(" bytes in ")?;
    let (blocks, _) = rest.split_once(" allocations from stack")?;
    Some(Counts { blocks: number(blocks)?, bytes: number(bytes)? })
}

/// Parses `0x000055d0c1a6a1b6 remember+0x6d [shop]`, where the address may be missing.
fn frame(line: &str) -> Option<Frame> {
    let text = line.strip_prefix("\t\t").or_else(|| line.strip_prefix("        "))?.trim();
    let (address, rest) = match text.split_once(char::is_whitespace) {
        Some((address, rest)) if address.starts_with("0x") => (hex(address)?, rest.trim()),
        _ => (0, text),
    };
    let (named, module) = match rest.rfind('[').filter(|_| rest.ends_with(']')) {
        Some(at) => (rest[..at].trim(), &rest[at + 1..rest.len() - 1]),
        None => (rest, ""),
    };
    let function = named.rsplit_once("+0x").map_or(named, |(function, _)| function);
    let function = if function == "[unknown]" { "" } else { function };
    Some(Frame { address, function: function.to_string(), module: module.to_string(), ..Frame::default() })
}
