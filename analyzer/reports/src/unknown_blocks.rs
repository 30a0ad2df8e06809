//! Why the resident memory of a process is not divided by use, and which blocks look like other
//! memory because they are not known.

use heaptape_analyzer::Process;
use heaptape_analyzer::report::bills::Part;
use heaptape_analyzer::report::segments::is_attached;
use heaptape_analyzer::text::Screen;
use heaptape_formats::date::Date;
use heaptape_formats::tape::Residency;
use serde::Serialize;
use std::io;

/// What is not known of the blocks of a process at a snapshot of its pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct UnknownBlocks {
    /// Why the memory is not divided by use.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_divided: Option<String>,
    /// Time from which its live blocks are known, if that is not its start, in nanoseconds since
    /// 1970. Blocks from before look like memory that never was a block's.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks_since_unix_ns: Option<u64>,
    /// Time from which freed blocks are known, in nanoseconds since 1970, if that is later. Pages
    /// whose blocks were freed before look like memory that never was a block's.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_since_unix_ns: Option<u64>,
}

/// Returns the time from which the blocks of a process are known, if that is not its start.
fn blocks_since(process: &Process) -> Option<u64> {
    let began = process.about.began_unix_ns;
    let attached = if began == 0 { process.clock.start_unix_ns } else { began };
    process.live_since_unix_ns().or(is_attached(process).then_some(attached))
}

impl UnknownBlocks {
    /// Returns what is not known at a snapshot.
    pub(super) fn of(process: &Process, snapshot: &Residency) -> UnknownBlocks {
        let division = process.division_at(snapshot.tick);
        let not_divided = match division {
            _ if process.knows_blocks() => None,
            Some(division) if division.lacks.0.is_empty() => None,
            Some(division) => Some(division.lacks.lossy().into_owned()),
            None if process.tape.is_sampled() => Some("blocks are sampled, so most of them are not known".into()),
            None => Some("its events were not kept, and its recorder has not divided this snapshot".into()),
        };
        let is_divided = not_divided.is_none();
        let since = division.map_or(0, |division| division.freed_since_tick);
        let unix_ns = |tick: u64| process.clock.start_unix_ns.saturating_add(process.clock.nanos(tick));
        UnknownBlocks {
            not_divided,
            blocks_since_unix_ns: blocks_since(process).filter(|_| is_divided),
            freed_since_unix_ns: (is_divided && since > process.clock.start_tick).then(|| unix_ns(since)),
        }
    }

    /// Corrects what a part is called where some of it may be blocks that are not known.
    pub(super) fn rename(&self, parts: &mut [Part]) {
        if let (Some(since), Some(part)) =
            (self.blocks_since_unix_ns, parts.iter_mut().find(|part| part.name == "never_block"))
        {
            let Date { hour, minute, .. } = Date::from_unix(since / 1_000_000_000);
            part.text = format!("memory of the process that was no block since {hour:02}:{minute:02} UTC");
        }
    }

    pub(super) fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let date = |unix_ns: u64| Date::from_unix(unix_ns / 1_000_000_000);
        if let Some(why) = &self.not_divided {
            screen.line(&format!("not divided by use: {why}"))?;
        }
        if let Some(since) = self.blocks_since_unix_ns {
            screen.line(&format!(
                "blocks from before {} are not known: they look like memory that never was a block, and beside known blocks like free memory",
                date(since)
            ))?;
        }
        if let Some(since) = self.freed_since_unix_ns {
            screen.line(&format!(
                "pages whose blocks were all freed before {} look like memory that never was a block",
                date(since)
            ))?;
        }
        Ok(())
    }
}
