//! What a process holds, by verdict, with the call sites that are most suspect: for the metrics of
//! the daemon.

use heaptape_analyzer::model::verdict::Verdict;
use heaptape_analyzer::report::frames::call_site;
use heaptape_analyzer::report::{Error, Query, leaks};
use heaptape_analyzer::stack_ids;
use heaptape_analyzer::symbols::{Detail, Origin, Symbolizer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Verdicts that are reported also if nothing has them, so that their series do not end.
const ALWAYS: [Verdict; 2] = [Verdict::Growing, Verdict::Slow];

/// A call site with blocks that were never freed.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Number of the stack, which is the same in all processes of a build and in the tables of the
    /// fleet.
    pub stack: i64,
    /// Name of the innermost function of the program.
    pub function: String,
    /// Number of live bytes.
    pub bytes: u64,
    /// Live bytes with the weight of their verdict, by which suspects are compared.
    pub weight: u64,
}

/// The live blocks of processes, judged as by `heaptape leaks`.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    /// Live bytes by the name that the verdict has in JSON.
    pub bytes: BTreeMap<String, u64>,
    /// The most suspect call sites, worst first.
    pub sites: Vec<Suspect>,
}

/// Returns the name of a verdict in JSON.
fn key(verdict: Verdict) -> String {
    let value = serde_json::to_value(verdict).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Judges the segments of one process. Returns at most `max_sites` call sites.
///
/// # Errors
/// Returns an error when they cannot be read, or when their sums do not count frees.
pub fn find(paths: &[PathBuf], max_sites: usize) -> Result<Suspects, Error> {
    let recordings = heaptape_analyzer::open_all(paths)?;
    let mut symbols = Symbolizer::from(Detail::Quick, Origin::default());
    let found = leaks::find(&recordings, &Query::default(), &leaks::Options::default(), &mut symbols)?;
    let mut suspects = Suspects { bytes: ALWAYS.map(|verdict| (key(verdict), 0)).into(), sites: Vec::new() };
    for leak in &found.leaks {
        let sum = suspects.bytes.entry(key(leak.verdict)).or_default();
        *sum = sum.saturating_add(leak.bytes);
    }
    for leak in found.leaks.iter().filter(|leak| leak.kept.is_none()).take(max_sites) {
        let ids = stack_ids::of(leak.process.stacks());
        let site = call_site(&mut symbols, leak.process.stacks(), leak.site, 1);
        suspects.sites.push(Suspect {
            stack: ids.get(leak.site as usize).map_or(0, |ids| ids.1),
            function: site.names.into_iter().next().unwrap_or_default(),
            bytes: leak.bytes,
            weight: leak.bytes.saturating_mul(leak.verdict.weight()),
        });
    }
    Ok(suspects)
}
