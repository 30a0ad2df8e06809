//! The terminal as a full-screen program uses it. It is left as it was found: at the end, when this
//! process panics or crashes, and when a signal ends or stops it.

use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{Command, execute};
use heaptape_recorder::os::crash;
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::io::{self, Stdout, Write, stdout};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Whether the terminal is in full-screen mode.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Whether full-screen mode has begun since the last drawing.
static IS_BLANK: AtomicBool = AtomicBool::new(false);

/// Escape sequences that leave full-screen mode.
static LEAVE: LazyLock<&'static str> = LazyLock::new(|| {
    let mut text = String::new();
    // A string can always be written.
    let _ = Show.write_ansi(&mut text);
    let _ = EnableLineWrap.write_ansi(&mut text);
    let _ = LeaveAlternateScreen.write_ansi(&mut text);
    text.leak()
});

/// The terminal in full-screen mode, until the value is dropped.
pub(crate) struct FullScreen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Columns and rows for which was drawn last.
    size: Option<(u16, u16)>,
}

impl FullScreen {
    /// Switches the terminal to full-screen mode.
    ///
    /// # Errors
    /// Standard input is not a terminal, or the terminal cannot be set.
    pub(crate) fn start() -> io::Result<FullScreen> {
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP])?;
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            report(panic);
        }));
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                leave();
                let _ = low_level::emulate_default_handler(signal);
                // Only a stopped process comes to this line, when it is continued.
                let _ = enter();
            }
        })?;
        enter()?;
        Ok(FullScreen { terminal: Terminal::new(CrosstermBackend::new(stdout()))?, size: None })
    }

    /// Returns the next event of the terminal, or `None` after a time without one.
    pub(crate) fn next_event(&self, timeout: Duration) -> io::Result<Option<Event>> {
        if event::poll(timeout)? { event::read().map(Some) } else { Ok(None) }
    }

    /// Draws a view. Only what has changed is written.
    pub(crate) fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // After a stop, the terminal has nothing of what was drawn before. After a change of its
        // size, it has all of it elsewhere. `Terminal::clear` would query the terminal for its
        // cursor, and fail where no answer comes.
        let size = terminal::size().ok();
        if IS_BLANK.swap(false, SeqCst) | (size != self.size) {
            execute!(stdout(), Clear(ClearType::All))?;
            (self.terminal, self.size) = (Terminal::new(CrosstermBackend::new(stdout()))?, size);
        }
        self.terminal.draw(view).map(|_| ())
    }

    /// Stops this process, as Ctrl-Z does. It goes on when it is continued.
    pub(crate) fn stop(&self) -> io::Result<()> {
        low_level::raise(SIGTSTP)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    crash::restore_terminal(leave);
    terminal::enable_raw_mode()?;
    IS_ACTIVE.store(true, SeqCst);
    execute!(stdout(), EnterAlternateScreen, DisableLineWrap, Hide)?;
    IS_BLANK.store(true, SeqCst);
    Ok(())
}

/// Leaves full-screen mode. Errors are ignored: the terminal may be gone.
fn leave() {
    if IS_ACTIVE.swap(false, SeqCst) {
        let mut out = stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        let _ = terminal::disable_raw_mode();
    }
}
