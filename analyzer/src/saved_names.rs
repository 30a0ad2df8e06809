//! The names that a recording keeps of its modules (`symbols.tape`), for the case that their files
//! are missing or have been rebuilt.

use crate::frame::{FunctionSymbol, Jump, MOST_INLINED, SourceFrame};
use heaptape_formats::recording::{NAMES, SYMBOLS, SYMBOLS_LOCK, build_id_folder};
use heaptape_formats::regular;
use heaptape_formats::tape::field::Text;
use heaptape_formats::tape::{
    FileId, LINES_READ, LINES_UNREAD, Record, Step, Stream, SymbolFrame, SymbolTable, SymbolTarget, SymbolTargets,
    Symbols,
};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of bytes of tables that are unpacked of one process.
const MOST_TABLES: u64 = 256 << 20;
/// Maximum length of a symbol or path.
const MOST_TEXT: usize = 64 << 10;
/// Maximum number of names of one function.
const MOST_FOLDED: usize = 256;
/// Maximum number of jumps of one function.
const MOST_JUMPS: usize = 64;
/// How long a reader without another source waits for names that are being written.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// What distinguishes the modules of a process.
#[derive(Clone, Copy, Debug)]
pub struct ModuleName<'a> {
    pub path: &'a [u8],
    /// Build-id, or empty if it has none.
    pub build_id: &'a [u8],
    /// What is known of its file if it has no build-id.
    pub file: &'a FileId,
}

/// The saved names of one process, which are read when they are first needed.
#[derive(Debug)]
pub struct SavedNames {
    /// Number that identifies these names, from 1 on.
    number: u64,
    folder: PathBuf,
    read: OnceLock<Contents>,
    /// The folder in which the daemon keeps the names of its user's programs by build-id.
    store: Option<PathBuf>,
    /// The names that other segments of the process keep.
    others: Vec<Arc<SavedNames>>,
}

/// The content of the file, still packed.
#[derive(Debug, Default)]
struct Contents {
    modules: Vec<Symbols>,
    damage: Option<String>,
}

impl PartialEq for SavedNames {
    fn eq(&self, other: &SavedNames) -> bool {
        self.folder == other.folder && self.others == other.others
    }
}

impl Eq for SavedNames {}

impl SavedNames {
    /// Returns the saved names of the process in this folder; `None` if its recorder kept none.
    pub fn of(folder: &Path) -> Option<SavedNames> {
        let is_there = folder.join(SYMBOLS).exists() || folder.join(SYMBOLS_LOCK).exists();
        // Processes of the daemon are in the epochs of their user.
        let store = folder.parent().and_then(Path::parent).map(|user| user.join(NAMES)).filter(|store| store.is_dir());
        (is_there || store.is_some()).then(|| SavedNames { store, ..SavedNames::new(folder, Vec::new()) })
    }

    fn new(folder: &Path, others: Vec<Arc<SavedNames>>) -> SavedNames {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Relaxed) + 1;
        SavedNames { number, folder: folder.to_path_buf(), read: OnceLock::new(), store: None, others }
    }

    /// Returns the saved names of several segments of a process; `None` if there are none.
    pub fn joined(mut all: Vec<Arc<SavedNames>>) -> Option<SavedNames> {
        let last = all.pop()?;
        Some(SavedNames::new(&last.folder, all))
    }

    /// Returns the number that identifies these names, from 1 on.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the tables of a module. This waits at most so long for names that are being written.
    pub fn tables(&self, module: ModuleName<'_>, wait: Duration) -> Vec<Symbols> {
        let mut tables = self.own_tables(module, wait);
        tables.extend(self.others.iter().flat_map(|other| other.own_tables(module, wait)));
        tables
    }

    fn own_tables(&self, module: ModuleName<'_>, wait: Duration) -> Vec<Symbols> {
        let waits = !wait.is_zero();
        if self.read.get().is_none() && is_locked(&self.folder) {
            let wanted = Instant::now();
            while is_locked(&self.folder) && wanted.elapsed() < wait {
                std::thread::sleep(Duration::from_millis(5));
            }
            if wait < WAIT && is_locked(&self.folder) {
                return of_module(&read(&self.folder).modules, module);
            }
        }
        let own = of_module(&self.read.get_or_init(|| read(&self.folder)).modules, module);
        // The store has all functions and no lines: it is for modules whose files are gone.
        match &self.store {
            Some(store) if own.is_empty() && waits && !module.build_id.is_empty() => {
                let mut stored = read(&store.join(build_id_folder(module.build_id))).modules;
                stored.retain(|stored| stored.build_id.0 == module.build_id);
                stored
            }
            _ => own,
        }
    }

    /// Returns what is wrong with the file, if it has been read.
    pub fn damage(&self) -> Option<String> {
        match self.read.get().and_then(|contents| contents.damage.as_ref()) {
            Some(damage) => Some(format!("{}: {damage}", self.folder.join(SYMBOLS).display())),
            None => self.others.iter().find_map(|other| other.damage()),
        }
    }
}

fn of_module(stored: &[Symbols], module: ModuleName<'_>) -> Vec<Symbols> {
    let is_its = |stored: &&Symbols| {
        (&stored.path.0[..], &stored.build_id.0[..], &stored.file.0) == (module.path, module.build_id, module.file)
    };
    stored.iter().filter(is_its).cloned().collect()
}

/// Returns whether the names of this folder's process are being written.
fn is_locked(folder: &Path) -> bool {
    regular::open(&folder.join(SYMBOLS_LOCK)).is_ok_and(|file| file.try_lock_shared().is_err())
}

fn read(folder: &Path) -> Contents {
    let mut contents = Contents::default();
    let file = match regular::open(&folder.join(SYMBOLS)) {
        Ok(file) => file,
        Err(_) => return contents,
    };
    let mut stream = match Stream::new(&file) {
        Ok(stream) => stream,
        Err(error) => return Contents { damage: Some(error.to_string()), ..contents },
    };
    let mut plain = 0;
    loop {
        match stream.step() {
            Ok(Step::Record(_, Record::Symbols(symbols))) => {
                plain += u64::from(symbols.plain_length);
                if plain > MOST_TABLES {
                    contents.damage.get_or_insert_with(|| format!("more than {MOST_TABLES} bytes of names"));
                    return contents;
                }
                contents.modules.push(symbols);
            }
            Ok(Step::Record(..) | Step::Unknown(..)) => {}
            Ok(Step::Damage(_, _, error)) => drop(contents.damage.get_or_insert(error.to_string())),
            Ok(Step::End(heaptape_formats::Ending::Complete)) => return contents,
            Ok(Step::End(heaptape_formats::Ending::Truncated { offset, field })) => {
                contents.damage.get_or_insert_with(|| format!("cut at offset {offset} ({field})"));
                return contents;
            }
            Err(error) => return Contents { damage: Some(error.to_string()), ..contents },
        }
    }
}

/// The names of one module, from all processes that kept some. Texts are stored once, because a
/// small file may name many addresses by a long text.
#[derive(Debug, Default)]
pub struct SavedTable {
    texts: Vec<Text>,
    functions: BTreeMap<u64, (u64, u32)>,
    /// Texts of further functions at the start of one, which have the same code.
    folded: FxHashMap<u64, Vec<u32>>,
    lines: FxHashMap<u64, Vec<SymbolFrame>>,
    calls: FxHashMap<u64, Rc<[Jump]>>,
    jumps: FxHashMap<u64, Rc<[Jump]>>,
    exports: FxHashMap<Vec<u8>, u64>,
    /// Link-time addresses of the code of the module.
    pub code: Option<Range<u64>>,
    /// Text that its `__lsan_default_suppressions` returns.
    pub suppressions: Option<String>,
    /// Size and checksum of the file that was read.
    pub fingerprint: Option<(u64, u32)>,
    /// Whether there was debug information that was not read.
    pub had_lines: bool,
    /// Files with parts of the debug information that were missing.
    pub missing: Vec<String>,
}

impl SavedTable {
    /// Adds what a process kept. A table that cannot be read adds nothing.
    pub fn add(&mut self, symbols: &Symbols) {
        self.fingerprint = (symbols.file_bytes > 0).then_some((symbols.file_bytes, symbols.checksum));
        if symbols.code_end > symbols.code_start {
            self.code = Some(symbols.code_start..symbols.code_end);
        }
        self.had_lines |= symbols.lines == LINES_UNREAD;
        self.missing.extend(symbols.missing.0.iter().map(|file| file.lossy().into_owned()));
        self.suppressions = symbols.suppressions.as_ref().map(|text| text.lossy().into_owned());
        let Ok(mut table) = SymbolTable::unpack(symbols) else { return };
        // Its text numbers are relative to the texts that are in the table already.
        let (first, known) = (self.texts.len() as u32, table.texts.len() as u32);
        let moved = |number: u32| if (1..=known).contains(&number) { first + number } else { 0 };
        self.texts.append(&mut table.texts);
        let mut start = 0_u64;
        for function in table.functions {
            start = start.wrapping_add(function.start);
            if moved(function.symbol) > 0 {
                let known =
                    self.functions.insert(start, (start.saturating_add(function.length), moved(function.symbol)));
                // The last one of a table has the name, and those before it the same code.
                if let Some((_, other)) = known.filter(|_| function.start == 0) {
                    let others = self.folded.entry(start).or_default();
                    if others.len() < MOST_FOLDED {
                        others.push(other);
                    }
                }
            }
        }
        for target in &table.exports.0 {
            let symbol = self.text(moved(target.symbol)).map(<[u8]>::to_vec);
            self.exports.extend(symbol.map(|symbol| (symbol, target.address)));
        }
        let calls = self.targets(&table.calls.0, moved);
        self.calls.extend(calls);
        let jumps = self.targets(&table.jumps.0, moved);
        self.jumps.extend(jumps);
        if symbols.lines != LINES_READ {
            return;
        }
        let mut at = 0_u64;
        for mut address in table.addresses {
            at = at.wrapping_add(address.address);
            for frame in &mut address.frames {
                (frame.symbol, frame.file) = (moved(frame.symbol), moved(frame.file));
            }
            self.lines.insert(at, address.frames);
        }
    }

    /// Returns where calls or jumps go, by the address of each. `moved` returns the number of a
    /// text of their table in this one.
    fn targets(&self, rows: &[SymbolTargets], moved: impl Fn(u32) -> u32) -> Vec<(u64, Rc<[Jump]>)> {
        let (mut at, mut found) = (0_u64, Vec::new());
        let mut symbols: FxHashMap<u32, Rc<[u8]>> = FxHashMap::default();
        for row in rows {
            at = at.wrapping_add(row.from);
            let jump = |target: &SymbolTarget| match (self.text(moved(target.symbol)), target.address) {
                (Some(symbol), _) => {
                    Jump::Import(symbols.entry(target.symbol).or_insert_with(|| symbol.into()).clone())
                }
                (None, 0) => Jump::Anywhere,
                (None, address) => Jump::To(address),
            };
            found.push((at, row.targets.iter().take(MOST_JUMPS).map(jump).collect()));
        }
        found
    }

    /// Returns where the call at an address goes, if the function there may have left by a jump.
    pub fn called(&self, address: u64) -> Option<Jump> {
        self.calls.get(&address)?.first().cloned()
    }

    /// Returns the jumps by which the function at `start` leaves.
    pub fn jumps(&self, start: u64) -> Option<Rc<[Jump]>> {
        self.jumps.get(&start).cloned()
    }

    /// Returns the link-time start of a function that other modules called.
    pub fn export(&self, symbol: &[u8]) -> Option<u64> {
        self.exports.get(symbol).copied()
    }

    fn text(&self, number: u32) -> Option<&[u8]> {
        let text = &self.texts.get((number as usize).checked_sub(1)?)?.0;
        Some(&text[..text.len().min(MOST_TEXT)])
    }

    /// Returns the function at a link-time address.
    pub fn find(&self, address: u64) -> Option<FunctionSymbol<'_>> {
        let (&start, &(end, symbol)) = self.functions.range(..=address).next_back()?;
        if address >= end {
            return None;
        }
        Some(FunctionSymbol { start, end, symbol: self.text(symbol)? })
    }

    /// Returns the symbols of other functions with the code of the one at `start`.
    pub fn folded(&self, start: u64) -> Vec<&[u8]> {
        let mut symbols: Vec<&[u8]> = Vec::new();
        for symbol in self.folded.get(&start).into_iter().flatten().filter_map(|number| self.text(*number)) {
            if !symbols.contains(&symbol) {
                symbols.push(symbol);
            }
        }
        symbols
    }

    /// Returns the link-time starts of the functions.
    pub fn starts(&self) -> impl Iterator<Item = u64> {
        self.functions.keys().copied()
    }

    /// Returns the frames of an address, innermost first; `None` if debug information was not read.
    pub fn lines(&self, address: u64) -> Option<Vec<SourceFrame>> {
        let text = |number| self.text(number).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let source = |frame: &SymbolFrame| SourceFrame {
            symbol: text(frame.symbol),
            file: text(frame.file),
            line: Some(frame.line).filter(|line| *line > 0),
        };
        Some(self.lines.get(&address)?.iter().take(MOST_INLINED).map(source).collect())
    }
}
