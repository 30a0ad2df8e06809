//! Reader of memcheck's XML. It is written by valgrind alone, line by line, so only its own
//! elements are known: no attributes, no nesting of the same element.

use super::layout::{Counts, Frame, Leak, LeakLog, MAX_FRAMES, Tool, hex, number};
use super::memcheck;
use crate::Ending;

pub(super) fn read(bytes: &[u8]) -> (LeakLog, Ending) {
    let text = String::from_utf8_lossy(bytes);
    let mut log = LeakLog { tool: Tool::MemcheckXml, processes: 1, ..LeakLog::default() };
    log.pid = element(&text, "pid").and_then(number).and_then(|pid| pid.try_into().ok()).unwrap_or(0);
    let words = element(&text, "argv").into_iter().flat_map(|argv| {
        let words = elements(argv, "exe").chain(elements(argv, "arg"));
        words.map(plain).collect::<Vec<_>>()
    });
    log.command = words.collect::<Vec<_>>().join(" ");
    for error in elements(&text, "error") {
        let Some(kind) = element(error, "kind").and_then(|kind| kind.strip_prefix("Leak_")) else { continue };
        let what = element(error, "xwhat").unwrap_or_default();
        // The sum has what is reached from the blocks, too.
        let leak = element(what, "text").map(plain).and_then(|text| memcheck::leak(&text)).or_else(|| {
            let count = |name| element(what, name).and_then(number);
            let live = Counts { blocks: count("leakedblocks")?, bytes: count("leakedbytes")? };
            Some(Leak { kind: kind.to_string(), live, allocated: live, ..Leak::default() })
        });
        let Some(mut leak) = leak else { continue };
        let stack = element(error, "stack").unwrap_or_default();
        leak.stack = elements(stack, "frame").take(MAX_FRAMES).map(frame).collect();
        log.leaks.push(leak);
    }
    let is_whole = text.contains("</valgrindoutput>");
    let cut = Ending::Truncated { offset: bytes.len() as u64, field: "valgrindoutput" };
    (log, if is_whole { Ending::Complete } else { cut })
}

fn frame(text: &str) -> Frame {
    let part = |name| element(text, name).map(plain).unwrap_or_default();
    let folder = part("dir");
    let file = part("file");
    Frame {
        address: element(text, "ip").and_then(hex).unwrap_or(0),
        function: part("fn"),
        file: if folder.is_empty() || file.is_empty() { file } else { format!("{folder}/{file}") },
        line: element(text, "line").and_then(number).unwrap_or(0),
        module: part("obj"),
        ..Frame::default()
    }
}

/// Returns the content of the first element with this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    elements(text, name).next()
}

/// Returns the contents of the elements with this name.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (content, after) = after.split_once(&close)?;
        rest = after;
        Some(content.trim())
    })
}

/// Replaces what XML cannot have as it is.
fn plain(text: &str) -> String {
    let all = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    all.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}
