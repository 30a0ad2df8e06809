//! Reader of the log of glibc's `mtrace`: each call with its caller, in order.

use super::layout::{Counts, Frame, Leak, LeakLog, Tool, hex, lines};
use crate::{Ending, Error, Format, Kind, Result};
use std::collections::HashMap;

/// A call of the log.
#[derive(Clone, Copy)]
enum Call {
    Alloc { caller: usize, address: u64, bytes: u64 },
    Free { address: u64 },
}

pub(super) fn read(bytes: &[u8]) -> Result<(LeakLog, Ending)> {
    let mut log = LeakLog { tool: Tool::Mtrace, processes: 1, ..LeakLog::default() };
    let (mut calls, mut callers) = (Vec::new(), HashMap::new());
    let (mut at, mut is_ended) = (0, false);
    for line in lines(bytes) {
        let start = at;
        at += line.len() as u64 + 1;
        is_ended |= &*line == "= End";
        let Some(rest) = line.strip_prefix("@ ") else { continue };
        let mut words = rest.rsplitn(4, ' ');
        let wrong = || Error {
            format: Format::LeakLog,
            offset: start,
            field: "call",
            kind: Kind::Text("not a call of mtrace".into()),
        };
        // `CALLER + ADDRESS SIZE`, `CALLER - ADDRESS`; a path may have spaces.
        let last = words.next().ok_or_else(wrong)?;
        let before = words.next().ok_or_else(wrong)?;
        // The last line of a log that is cut.
        if at > bytes.len() as u64 && !line.is_empty() && !bytes.ends_with(b"\n") {
            break;
        }
        let (sign, caller, address, size) = match before {
            "-" | "<" => (before, rest.rsplitn(3, ' ').nth(2), last, None),
            _ => (words.next().ok_or_else(wrong)?, words.next(), before, Some(last)),
        };
        let (caller, address) = (caller.ok_or_else(wrong)?, hex(address).ok_or_else(wrong)?);
        match (sign, size.and_then(hex)) {
            ("+" | ">", Some(bytes)) => {
                let next = log.leaks.len();
                let caller = *callers.entry(caller.to_string()).or_insert_with(|| {
                    log.leaks.push(Leak { stack: vec![frame(caller)], ..Leak::default() });
                    next
                });
                calls.push(Call::Alloc { caller, address, bytes });
            }
            ("-" | "<", None) => calls.push(Call::Free { address }),
            // A call that failed.
            ("!", _) => {}
            _ => return Err(wrong()),
        }
    }
    sum(&calls, &mut log);
    let cut = Ending::Truncated { offset: bytes.len() as u64, field: "call" };
    Ok((log, if is_ended || bytes.ends_with(b"\n") { Ending::Complete } else { cut }))
}

/// Replays the calls: first to find the peak, and then up to it.
fn sum(calls: &[Call], log: &mut LeakLog) {
    let (mut blocks, mut all) = (HashMap::new(), Counts::default());
    let (mut peak, mut peak_at) = (0, 0);
    for (number, call) in calls.iter().enumerate() {
        match *call {
            Call::Alloc { caller, address, bytes } => {
                if let Some((of, old)) = blocks.insert(address, (caller, bytes)) {
                    let leak: &mut Leak = &mut log.leaks[of];
                    leak.live.remove(old);
                    all.remove(old);
                }
                log.leaks[caller].live.add(bytes);
                log.leaks[caller].allocated.add(bytes);
                all.add(bytes);
            }
            Call::Free { address } => match blocks.remove(&address) {
                Some((of, bytes)) => {
                    log.leaks[of].live.remove(bytes);
                    all.remove(bytes);
                }
                None => log.unknown += 1,
            },
        }
        if all.bytes > peak {
            (peak, peak_at) = (all.bytes, number + 1);
        }
    }
    blocks.clear();
    for call in &calls[..peak_at] {
        match *call {
            Call::Alloc { caller, address, bytes } => drop(blocks.insert(address, (caller, bytes))),
            Call::Free { address } => drop(blocks.remove(&address)),
        }
    }
    blocks.values().for_each(|&(caller, bytes)| log.leaks[caller].peak.add(bytes));
}

/// Parses `./shop:(remember+0x12)[0x117f]`.
fn frame(caller: &str) -> Frame {
    let mut frame = Frame::default();
    let (rest, address) = caller.rsplit_once("[0x").unwrap_or((caller, ""));
    let address = address.strip_suffix(']').and_then(hex);
    let (module, named) = rest.split_once(":(").unwrap_or((rest.trim_end_matches(':'), ""));
    (frame.module, frame.offset) = (module.to_string(), address);
    frame.address = address.unwrap_or(0);
    frame.function = named.rsplit_once("+0x").map_or("", |(function, _)| function).to_string();
    frame
}
