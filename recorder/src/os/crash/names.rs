//! The second step of a report: this program, started again by the crashed process, names the
//! functions of its frames. It is the same file, so an offset in a module denotes the same code.

use super::report::{FRAME, Lines, Modules, hex};
use nix::sys::resource::{Resource, setrlimit};
use std::fs::File;
use std::io::{Read, Write};

/// First argument of a process that names frames; the descriptors to write to follow.
pub const OPTION: &str = "--name-crash-frames";
/// Maximum number of bytes that are read, and that are written.
const MAX_BYTES: u64 = 64 << 10;
/// Limit of the CPU time, in seconds.
const MAX_CPU_SECONDS: u64 = 20;

/// Names the frames of a report on standard input, if this process was started for that.
pub fn run_if_requested() -> bool {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(OPTION) {
        return false;
    }
    let _ = setrlimit(Resource::RLIMIT_CPU, MAX_CPU_SECONDS, MAX_CPU_SECONDS);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let (mut report, mut maps) = (Vec::new(), Vec::new());
    let _ = std::io::stdin().lock().take(MAX_BYTES).read_to_end(&mut report);
    let _ = File::open("/proc/self/maps").and_then(|mut file| file.read_to_end(&mut maps));
    let (mut lines, mut modules) = (Lines::new(), Box::new(Modules::new()));
    lines.read(&maps, &mut modules);
    let mut text = "functions:\n".to_owned();
    for line in String::from_utf8_lossy(&report).lines().filter(|line| line.starts_with(FRAME)) {
        let left = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX).saturating_sub(text.len());
        let named = names(line, &modules);
        if named.len() > left {
            break;
        }
        text += &named;
    }
    text += "end of the report\n";
    for number in arguments.filter_map(|number| number.parse::<u32>().ok()) {
        if number == 2 {
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
            continue;
        }
        if let Ok(mut file) = File::options().append(true).open(format!("/proc/self/fd/{number}")) {
            let _ = file.write_all(text.as_bytes());
            let _ = file.sync_data();
        }
    }
    true
}

/// Returns the functions of one frame, innermost first, one per line: there are several where code
/// was inlined.
fn names(line: &str, modules: &Modules) -> String {
    let mut text = String::new();
    let mut fields = line[FRAME.len()..].splitn(3, ' ');
    let (number, address) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let module = fields.next().and_then(|module| module.rsplit_once("+0x"));
    let here = module.and_then(|(path, offset)| modules.base(path.as_bytes())?.checked_add(hex(offset.as_bytes())?));
    if let Some(here) = here.and_then(|here| usize::try_from(here).ok()) {
        backtrace::resolve(std::ptr::without_provenance_mut(here), |symbol| {
            let Some(name) = symbol.name() else { return };
            text += &format!("{FRAME}{number} {name:#}");
            if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
                text += &format!(" at {}:{line}", file.display());
            }
            text.push('\n');
        });
    }
    if text.is_empty() {
        text = format!("{FRAME}{number} {address}\n");
    }
    text
}
