//! Draws cells on the terminal by crossterm. The views use bold and reversed text, and no colors.

use crossterm::cursor::{self, Hide, MoveTo, Show};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{self, Clear};
use crossterm::{execute, queue};
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::Modifier;
use std::io::{self, Write, stdout};

/// The terminal of standard output.
pub struct TerminalBackend;

impl Backend for TerminalBackend {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        let mut out = stdout().lock();
        let mut modifier = Modifier::empty();
        let mut next = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                queue!(out, MoveTo(x, y))?;
            }
            if cell.modifier != modifier {
                queue!(out, SetAttribute(Attribute::Reset))?;
                for (one, attribute) in [(Modifier::BOLD, Attribute::Bold), (Modifier::REVERSED, Attribute::Reverse)] {
                    if cell.modifier.contains(one) {
                        queue!(out, SetAttribute(attribute))?;
                    }
                }
                modifier = cell.modifier;
            }
            queue!(out, Print(cell.symbol()))?;
            // After a wide character the next cell is two columns on, so the cursor is set anew.
            next = Some((x.saturating_add(1), y));
        }
        queue!(out, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(stdout(), Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(stdout(), Show)
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        cursor::position().map(|(x, y)| Position { x, y })
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        execute!(stdout(), MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        let region = match region {
            ClearType::All => terminal::ClearType::All,
            ClearType::AfterCursor => terminal::ClearType::FromCursorDown,
            ClearType::BeforeCursor => terminal::ClearType::FromCursorUp,
            ClearType::CurrentLine => terminal::ClearType::CurrentLine,
            ClearType::UntilNewLine => terminal::ClearType::UntilNewLine,
        };
        execute!(stdout(), Clear(region))
    }

    fn size(&self) -> io::Result<Size> {
        terminal::size().map(|(width, height)| Size { width, height })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = terminal::window_size()?;
        Ok(WindowSize {
            columns_rows: Size { width: size.columns, height: size.rows },
            pixels: Size { width: size.width, height: size.height },
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        stdout().flush()
    }
}
