//! `heaptape diff --since`: what changed in a program that the daemon serves, since a time or a
//! mark.

use super::live;
use crate::control::Control;
use anyhow::{anyhow, bail};
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_analyzer::text::clean;
use heaptape_daemon::protocol::Request;
use heaptape_formats::date::Date;
use heaptape_formats::quantity::Time;
use heaptape_formats::recording::Mark;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The two epochs that are compared, and the processes in them.
pub(super) struct Sides {
    /// The epoch whose end is nearest to the time.
    pub old: PathBuf,
    /// The epoch of the present.
    pub new: PathBuf,
    /// Traces of these processes in epochs before the old one. A trace has only the events of its
    /// epoch.
    pub before_old: Vec<PathBuf>,
    /// Those in epochs before the new one.
    pub before_new: Vec<PathBuf>,
    /// The processes that ran at the end of each.
    pub processes: ProcessFilter,
}

/// Finds the epochs for a time before now, such as `24h`, or the name of a mark. `which` is the
/// name, pid or label of processes.
///
/// # Errors
/// When no daemon answers, when it serves no such process, when there is no such mark, or when no
/// epoch has ended.
pub(super) fn find(which: &str, since: &str, control: Option<PathBuf>) -> anyhow::Result<Sides> {
    let control = Control::at(control);
    let (state, chosen) = live::chosen(which, &control)?;
    let [first, ..] = &chosen[..] else { return Err(live::unknown(which)) };
    let user = state.join(first.uid.to_string());
    let marks = epochs::marks(&state)?;
    let wanted = point(since, &marks, SystemTime::now())?;
    control.ask(&Request::Flush)?;
    let Some((old, ended)) = epochs::ending_nearest(&user, wanted)? else {
        bail!(
            "no epoch has ended, so there is nothing to compare with; `heaptape daemon mark NAME` and `heaptape daemon epoch` end one"
        )
    };
    if let Some(process) = chosen.iter().find(|process| process.live_since_unix_ns.is_some_and(|since| since > ended)) {
        // Both sides would be sums of different things: what it allocated before is on one of them.
        let known = Date::from_unix(process.live_since_unix_ns.unwrap_or(0) / 1_000_000_000);
        let name = clean(&process.name);
        bail!(
            "what {name} ({}) holds is known since {known} only (the daemon was killed, or the mode changed), and the epoch to compare with ended before; name a later time, or set a mark now",
            process.pid
        );
    }
    let new = epochs::newest(&user)?.filter(|new| *new != old);
    let new = new.ok_or_else(|| anyhow!("no epoch has begun since then"))?;
    let process = which.parse::<u32>().ok().map(|pid| pid.to_string());
    let program = process.is_none().then(|| {
        let is_name = chosen.iter().all(|process| process.name != first.name);
        if is_name { which.to_owned() } else { first.name.clone() }
    });
    let (user, pid) = (Some(first.uid), which.parse().ok());
    let query = EpochQuery { user, pid, program: program.clone(), ..EpochQuery::default() };
    let traces = epochs::traces(&state, &query)?;
    let before = |epoch: &Path| -> Vec<PathBuf> {
        traces.iter().filter(|folder| folder.parent().is_some_and(|of| of < epoch)).cloned().collect()
    };
    let (before_old, before_new) = (before(&old), before(&new));
    eprintln!("heaptape: compared with {}: {}", Date::from_unix(ended / 1_000_000_000), old.display());
    Ok(Sides {
        old,
        new,
        before_old,
        before_new,
        processes: ProcessFilter { process, program, running: true, ..ProcessFilter::default() },
    })
}

/// Returns the point in time that is meant, in nanoseconds since 1970.
fn point(since: &str, marks: &[Mark], now: SystemTime) -> anyhow::Result<u64> {
    if let Some(mark) = marks.iter().rfind(|mark| mark.name == since) {
        return Ok(mark.unix_ns);
    }
    let Ok(Time(ago)) = since.parse::<Time>() else {
        let known: Vec<&str> = marks.iter().map(|mark| mark.name.as_str()).collect();
        let known = if known.is_empty() { "there is none".into() } else { format!("there are {}", known.join(", ")) };
        bail!("invalid --since '{since}': must be a time such as 24h, or a mark ({known})")
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(u64::try_from(now.saturating_sub(ago).as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn since_is_a_mark_or_a_time() {
        let mark = |name: &str, unix_ns| Mark { name: name.into(), unix_ns };
        let marks = [mark("deploy-1", 5), mark("deploy-2", 7), mark("deploy-1", 9)];
        let now = UNIX_EPOCH + Duration::from_secs(100_000);
        assert_eq!(point("deploy-1", &marks, now).ok(), Some(9), "the last one of this name");
        assert_eq!(point("24h", &marks, now).ok(), Some(13_600_000_000_000));
        assert_eq!(point("40d", &marks, now).ok(), Some(0));
        let error = point("deploy-3", &marks, now).expect_err("there is no such mark").to_string();
        assert!(error.contains("there are deploy-1, deploy-2, deploy-1"), "{error}");
    }
}
