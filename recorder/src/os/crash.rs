//! Reports of panics: where it happened, and the call stack, in a file of each recording that the
//! process has open, and on standard error.
//!
//! A fatal signal (a fault in C code, a full stack) has no report of ours: the process ends by it
//! with its core dump, e.g. for `coredumpctl gdb`. No handler runs in a process whose memory we
//! can't trust.

use backtrace::Backtrace;
use formats::recording::CRASH_REPORT;
use nix::libc;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

/// The role of a process of heaptape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A command, also the one that started the recorded program.
    Command,
    /// The process of `heaptape record` that records.
    Survivor,
    /// The daemon, which serves all programs.
    Daemon,
    /// The process that holds descriptors from one daemon to the next.
    FdStore,
}

const ROLES: [Role; 4] = [Role::Command, Role::Survivor, Role::Daemon, Role::FdStore];
static ROLE: AtomicUsize = AtomicUsize::new(0);

impl Role {
    fn now() -> Role {
        ROLES.get(ROLE.load(Relaxed)).copied().unwrap_or(Role::Command)
    }

    /// Returns the role as shown to users.
    const fn text(self) -> &'static str {
        match self {
            Role::Command => "the command",
            Role::Survivor => "the recorder of `heaptape record`",
            Role::Daemon => "the daemon",
            Role::FdStore => "the daemon's holder of descriptors",
        }
    }
}

/// Sets the role of this process from here on. Until then it is a command.
pub fn set_role(role: Role) {
    ROLE.store(ROLES.iter().position(|known| *known == role).unwrap_or(0), Relaxed);
}

/// Makes panics of this process write a report, and end it by SIGABRT, in builds for tests too.
pub fn install() {
    std::panic::set_hook(Box::new(|panic| {
        panicked(panic);
        std::process::abort();
    }));
}

/// Leaves panics unreported: for a helper process that reads hostile files, where a panic costs
/// only the names of one process.
pub(crate) fn disarm() {
    std::panic::set_hook(Box::new(|_| std::process::abort()));
}

/// Starts a thread with a name, which a report shows.
///
/// # Errors
/// When there can be no other thread.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(body)
}

/// The folders that receive a report.
static DESTINATIONS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A recording that receives the report of a panic as long as this value lives.
#[derive(Debug)]
pub struct Destination(PathBuf);

impl Destination {
    /// Registers the folder of a recording.
    pub fn of(dir: &Path) -> Destination {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        if let Ok(mut known) = DESTINATIONS.lock() {
            known.push(dir.clone());
        }
        Destination(dir)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Ok(mut known) = DESTINATIONS.lock()
            && let Some(at) = known.iter().position(|dir| *dir == self.0)
        {
            known.swap_remove(at);
        }
    }
}

/// Returns the path of the crash report of a recording, if it has one.
pub fn report_of(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(CRASH_REPORT)).filter(|path| path.is_file())
}

/// What restores the terminal before a report is printed.
static TERMINAL: Mutex<Option<fn()>> = Mutex::new(None);

/// Calls `restore` before the report of a panic is printed: a full-screen program would otherwise
/// leave the report on a screen that vanishes, and the shell a terminal without echo.
pub fn restore_terminal(restore: fn()) {
    if let Ok(mut terminal) = TERMINAL.lock() {
        *terminal = Some(restore);
    }
}

/// The panic hook. The process ends when it returns: what it has written is whole without it.
fn panicked(panic: &PanicHookInfo<'_>) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Relaxed) {
        return;
    }
    // This thread may have panicked while it held one of our locks, so none is waited for.
    if let Some(restore) = TERMINAL.try_lock().ok().and_then(|terminal| *terminal) {
        restore();
    }
    let text = report(panic);
    let folders = DESTINATIONS.try_lock().map(|known| known.clone()).unwrap_or_default();
    let files: Vec<PathBuf> = folders.iter().filter_map(|dir| append(dir, &text).ok()).collect();
    let mut stderr = io::stderr().lock();
    let _ = match files.first() {
        Some(file) if Role::now() == Role::Command => {
            writeln!(stderr, "heaptape: {} crashed; please send its report: {}", Role::now().text(), file.display())
        }
        // The command that started this recorder prints where the report is.
        Some(_) if Role::now() != Role::Daemon => Ok(()),
        _ => stderr.write_all(text.as_bytes()),
    };
}

fn report(panic: &PanicHookInfo<'_>) -> String {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut text = format!("heaptape crash report\nversion: {} ({build} build)", env!("CARGO_PKG_VERSION"));
    if let Ok(system) = nix::sys::utsname::uname() {
        for field in [system.sysname(), system.release(), system.machine()] {
            let _ = write!(text, ", {}", field.display());
        }
    }
    let thread = std::thread::current();
    let _ = writeln!(
        text,
        "\ntime: {seconds} seconds since 1970\nprocess: {}, pid {}, thread {}",
        Role::now().text(),
        std::process::id(),
        thread.name().unwrap_or("without a name"),
    );
    let message = panic.payload_as_str().unwrap_or("no message").replace(char::is_control, "?");
    let _ = panic.location().map(|location| writeln!(text, "cause: panic at {location}: {message}"));
    text += "stack, innermost frame first:\n";
    for (number, frame) in Backtrace::new().frames().iter().enumerate() {
        let _ = write!(text, "  #{number} {:p}", frame.ip());
        // Several functions where code was inlined, innermost first.
        for symbol in frame.symbols() {
            let _ = symbol.name().map(|name| write!(text, " {name:#}"));
            if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
                let _ = write!(text, " at {}:{line}", file.display());
            }
        }
        text.push('\n');
    }
    text += "end of the report\n";
    text
}

/// Adds a report to the file of a folder.
fn append(dir: &Path, text: &str) -> io::Result<PathBuf> {
    let path = dir.join(CRASH_REPORT);
    let mut file = File::options().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    Ok(path)
}

/// Panics if `HEAPTAPE_TEST_PANIC` names a file that contains the role's name: for tests, in debug
/// builds only.
pub fn panic_if_requested() {
    #[cfg(debug_assertions)]
    if let Some(path) = std::env::var_os("HEAPTAPE_TEST_PANIC")
        && std::fs::read_to_string(path).is_ok_and(|text| text == format!("{:?}", Role::now()))
    {
        panic!("requested by a test, with \x1b in the message");
    }
}
