//! From an address to a function, a file and a line.
//!
//! [`Symbolizer::name`] asks symbol tables only. [`Symbolizer::frames`] adds lines and inlined
//! functions from debug information, which is read for a module once somebody asks for its frames.
//! The names that the recording has ([`crate::saved_names`]) come first; files are searched only if
//! these don't suffice, and a file with another build-id than the recorded one is never used. An
//! address without a name is shown as `module+0xoffset`.

mod binutils_symbols;
mod bounded_name;
mod code_name;
mod coff_symbols;
mod data;
mod debuginfod;
mod demangle;
mod dwarf;
mod elf;
mod exports;
mod files;
mod itanium;
mod jumps;
mod lacks;
mod lines;
mod minidebug;
mod object_file;
mod returned_text;
mod rust_names;
mod save;
mod saved_jumps;
mod scopes;
mod section;
mod tail_calls;
mod texts;
mod wanted_units;

pub use binutils_symbols::BinutilsSymbol;
pub use code_name::code_name;
pub use demangle::demangle;

pub use crate::frame::Frame;
use crate::frame::{FunctionSymbol, Role, SourceFrame};
use crate::program_frames::Roles;
use crate::saved_names::{SavedTable, WAIT};
use crate::short_name::NameLength;
use crate::stacks::{Module, Site, Stacks};
pub use debuginfod::fetch as fetch_debug_information;
use dwarf::Debug;
use elf::{Elf, Functions, Objects};
pub(crate) use files::below;
pub use files::{Origin, hexadecimal};
use files::{Search, search};
use heaptape_formats::tape::instruction;
use itanium::Spelling;
use jumps::Jumps;
pub use lacks::unshown;
use lacks::{Lacks, Note};
pub use lines::{LineStart, Lines, SourceLine};
pub use object_file::{FunctionRange, Machine, ObjectError, ObjectFile, TextSection};
use returned_text::returned_text;
use rustc_hash::FxHashMap;
pub use save::save;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tail_calls::Edge;

/// The form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The form of the reports: the full name of the function without its parameters.
    Full,
    /// The form of the binutils: with parameters and return type, as nm and gprof print it.
    Binutils,
    /// The form of c++filt, which also writes out abbreviations such as `std::string`.
    Filter,
}

/// Returns the demangled name of a symbol in a style.
pub fn demangle_in(style: Style, symbol: &str) -> String {
    match style {
        Style::Full => demangle(symbol.as_bytes()),
        Style::Binutils => demangle::as_binutils(symbol, Spelling::Listing),
        Style::Filter => demangle::as_binutils(symbol, Spelling::Filter),
    }
}

/// The amount of debug information that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Lines and inlined functions, with up to 2 GiB of debug information for each module.
    Full,
    /// Lines and inlined functions only of modules with up to 64 MiB of debug information, which
    /// takes about 0.2 s, and not of libraries that only pass requests for memory on: the debug
    /// information of libc takes 0.1 s, and its frames are not blamed. This is for the summary
    /// after a recording, which must be fast.
    Quick,
}

/// The function of a program that returns its built-in LSan suppressions.
const DEFAULT_SUPPRESSIONS: &[u8] = b"__lsan_default_suppressions";

/// Number of objects that are found without a search.
const RECENT: usize = 4;

/// The symbols of one module.
struct Object {
    path: Rc<str>,
    module: Module,
    /// The name that distinguishes it from another build at the same path.
    build: Option<Arc<str>>,
    /// The names stored in recordings.
    saved: SavedTable,
    /// The files of the module, once they were searched.
    live: Option<Live>,
    /// Whether names that the recorder still saves were waited for.
    is_awaited: bool,
    lacks: Lacks,
}

/// The files of a module.
#[derive(Default)]
struct Live {
    /// Files with the recorded build-id, the module's own first.
    files: Vec<(PathBuf, Elf)>,
    /// Whether the first file is the module's own.
    own: bool,
    /// Whether one of the files has a whole symbol table.
    has_symbols: bool,
    functions: Functions,
    /// Global variables and vtables, once they were read.
    data: Option<Objects>,
    debug: Option<Option<Debug>>,
    jumps: Jumps,
}

/// Finds the names of addresses, and caches them.
pub struct Symbolizer {
    detail: Detail,
    origin: Origin,
    roles: Roles,
    objects: Vec<Object>,
    /// Indexes of objects by path, build-id and the number of the stored names.
    by_module: FxHashMap<ModuleKey, usize>,
    /// Indexes of objects by path and build-id, or by size and checksum if there is no build-id.
    by_identity: FxHashMap<(Vec<u8>, Vec<u8>), usize>,
    names: FxHashMap<(usize, u64), Rc<Frame>>,
    frames: FxHashMap<(usize, u64), Rc<[Frame]>>,
    tails: FxHashMap<Edge, Rc<[Frame]>>,
    /// The number of the stored names and the index of the objects that were looked up last.
    recent: Vec<(u64, usize)>,
    notes: Vec<String>,
    /// Whether the notes were taken, so that the caller prints them.
    is_shown: bool,
}

/// The key of a module in the cache of a [`Symbolizer`].
#[derive(PartialEq, Eq, Hash)]
struct ModuleKey {
    path: Vec<u8>,
    identity: Vec<u8>,
    saved_number: u64,
}

impl Drop for Symbolizer {
    fn drop(&mut self) {
        if !self.is_shown {
            lacks::keep(self.lacks());
        }
    }
}

impl Symbolizer {
    /// Creates a symbolizer that searches files in the default locations. Files are read when they
    /// are needed.
    pub fn new(detail: Detail) -> Self {
        Symbolizer::from(detail, Origin::default())
    }

    /// Creates a symbolizer that searches files according to `origin`.
    pub fn from(detail: Detail, origin: Origin) -> Self {
        Symbolizer {
            detail,
            roles: Roles::new(&origin.wrappers),
            origin,
            objects: Vec::new(),
            by_module: FxHashMap::default(),
            by_identity: FxHashMap::default(),
            names: FxHashMap::default(),
            frames: FxHashMap::default(),
            tails: FxHashMap::default(),
            recent: Vec::new(),
            notes: Vec::new(),
            is_shown: false,
        }
    }

    /// Returns the amount of debug information that is read.
    pub const fn detail(&self) -> Detail {
        self.detail
    }

    /// Returns how long names are in text.
    pub const fn names(&self) -> NameLength {
        if self.origin.full_names { NameLength::Full } else { NameLength::Short }
    }

    /// Returns the folder that is searched for files first, as if it were `/`.
    pub fn sysroot(&self) -> Option<&Path> {
        self.origin.sysroot.as_deref()
    }

    /// Returns the rules for roles of frames.
    pub const fn roles(&self) -> &Roles {
        &self.roles
    }

    fn with_role(&self, frame: Frame) -> Frame {
        let role = self.roles.of(&frame);
        Frame { role, ..frame }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns notes about missing names: the modules, the reason, and what would help.
    pub fn notes(&self) -> Vec<String> {
        lacks::lines(&self.lacks())
    }

    fn lacks(&self) -> Vec<Note> {
        let damage = self.objects.iter().filter_map(|object| object.module.saved.as_ref()?.damage());
        let mut notes: Vec<Note> = damage.map(Note::Text).collect();
        notes.dedup();
        notes.extend(lacks::notes(&self.objects));
        notes.extend(self.notes.iter().cloned().map(Note::Text));
        notes
    }

    /// Returns the notes to a caller that prints them. [`unshown`] does not return them again.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.is_shown = true;
        self.notes()
    }

    /// Returns the frame of a site with its function, from symbol tables only. Inlined functions
    /// are not detected.
    pub fn name(&mut self, stacks: &Stacks, site: &Site) -> Rc<Frame> {
        let Some(module) = module_of(stacks, site) else { return Rc::new(self.with_role(unplaced(stacks, site))) };
        let (object, address) = (self.object(module), link_address(module, site));
        if let Some(known) = self.names.get(&(object, address)) {
            return known.clone();
        }
        let found = self.find(object, address).map(|function| (demangle(function.symbol), function.start));
        let same_code = found.as_ref().and_then(|(_, start)| self.same_code(object, *start));
        let function = found.map(|(function, _)| function).or_else(|| unplaced(stacks, site).function);
        let offset = site.address.wrapping_sub(module.bias);
        let Object { path, module, build, .. } = &self.objects[object];
        // Functions without names are not summed up with those of another build.
        let build = build.as_ref().filter(|_| function.is_none());
        let (module, called) = (path.clone(), build.or(module.called.as_ref()).cloned());
        let frame = Rc::new(self.with_role(Frame { function, same_code, module, called, offset, ..Frame::default() }));
        self.objects[object].lacks.names |= frame.function.is_none() && frame.role.rank() < Role::Wrapper.rank();
        self.names.insert((object, address), frame.clone());
        frame
    }

    /// Returns the frames of a site, innermost first. There are several if functions were inlined.
    pub fn frames(&mut self, stacks: &Stacks, site: &Site) -> Rc<[Frame]> {
        let Some(module) = module_of(stacks, site) else { return Rc::from([self.with_role(unplaced(stacks, site))]) };
        let (object, address) = (self.object(module), link_address(module, site));
        if let Some(known) = self.frames.get(&(object, address)) {
            return known.clone();
        }
        let name = self.name(stacks, site);
        let mut frames: Vec<Frame> = self
            .lines(object, address, self.roles.is_wrapper_module(&name))
            .into_iter()
            .map(|source| Frame {
                function: source.symbol.map(|symbol| demangle(symbol.as_bytes())),
                same_code: None,
                file: source.file,
                line: source.line,
                inlined: true,
                ..Frame::clone(&name)
            })
            .collect();
        match frames.last_mut() {
            Some(outermost) => {
                outermost.inlined = false;
                // The symbol table knows namespaces that DWARF may leave out.
                if name.function.is_some() {
                    outermost.function.clone_from(&name.function);
                    outermost.same_code.clone_from(&name.same_code);
                }
            }
            None => frames.push(Frame::clone(&name)),
        }
        let frames: Rc<[Frame]> = frames.into_iter().map(|frame| self.with_role(frame)).collect();
        self.frames.insert((object, address), frames.clone());
        frames
    }

    /// Returns the symbol of a site's function as it is in the file, which may be mangled.
    pub fn symbol(&mut self, stacks: &Stacks, site: &Site) -> Option<String> {
        let module = module_of(stacks, site)?;
        let (object, address) = (self.object(module), link_address(module, site));
        let function = self.find(object, address)?;
        Some(String::from_utf8_lossy(function.symbol).into_owned())
    }

    /// Returns the built-in LSan suppressions of a module, or `None` if it has none. The result is
    /// an error if they cannot be determined without running the program.
    pub(crate) fn default_suppressions(&mut self, module: &Module) -> Option<Result<String, &'static str>> {
        let object = self.object(module);
        if let Some(text) = &self.objects[object].saved.suppressions {
            return Some(Ok(text.clone()));
        }
        self.live(object).files.iter().find_map(|(_, elf)| {
            let address = exports::symbol_address(elf, DEFAULT_SUPPRESSIONS)?;
            Some(returned_text(elf, address))
        })
    }

    /// Returns the run-time start address and the demangled name of a site's function.
    pub fn function(&mut self, stacks: &Stacks, site: &Site) -> Option<(u64, String)> {
        self.function_symbol(stacks, site).map(|(start, symbol)| (start, demangle(symbol)))
    }

    /// Returns the run-time start address and the symbol of a site's function.
    pub(crate) fn function_symbol(&mut self, stacks: &Stacks, site: &Site) -> Option<(u64, &[u8])> {
        let module = module_of(stacks, site)?;
        let (object, address) = (self.object(module), link_address(module, site));
        let FunctionSymbol { start, symbol, .. } = self.find(object, address)?;
        Some((start.wrapping_add(module.bias), symbol))
    }

    /// Returns the link-time start and end of the function at a link-time address of a module.
    pub fn extent(&mut self, module: &Module, address: u64) -> Option<(u64, u64)> {
        let object = self.object(module);
        self.find(object, address).map(|function| (function.start, function.end))
    }

    /// Returns the link-time addresses of a module's code, or `None` if its file cannot be read.
    pub fn code(&mut self, module: &Module) -> Option<Range<u64>> {
        let object = self.object(module);
        self.objects[object].saved.code.clone().or_else(|| self.live(object).files.first()?.1.code())
    }

    /// Returns whether the file of the module exists and is the one that was recorded.
    pub fn is_there(&mut self, module: &Module) -> bool {
        let object = self.object(module);
        self.live(object).own
    }

    /// Returns the link-time start of a function of the module for which `taken` returns false:
    /// `_init`, which is in no stack, or the first one.
    pub fn unused(&mut self, module: &Module, taken: impl Fn(u64) -> bool) -> Option<u64> {
        let object = self.object(module);
        let functions = &self.live(object).functions;
        let init = functions.iter().find(|(_, symbol)| *symbol == b"_init").map(|(start, _)| start);
        let live = init.filter(|&start| !taken(start));
        let live = live.or_else(|| functions.iter().map(|(start, _)| start).find(|&start| !taken(start)));
        live.or_else(|| self.objects[object].saved.starts().find(|&start| !taken(start)))
    }

    fn object(&mut self, module: &Module) -> usize {
        let number = module.saved.as_ref().map_or(0, |saved| saved.number());
        // The frames of a stack are in few modules.
        let is_same = |&&(saved, object): &&(u64, usize)| {
            let known = &self.objects[object].module;
            saved == number
                && known.path == module.path
                && known.build_id == module.build_id
                && known.file == module.file
                && known.called == module.called
        };
        if let Some(&(_, object)) = self.recent.iter().find(is_same) {
            return object;
        }
        let object = self.search_object(module, number);
        self.recent.insert(0, (number, object));
        self.recent.truncate(RECENT);
        object
    }

    fn search_object(&mut self, module: &Module, number: u64) -> usize {
        // A program that is called by two names has separate frames for each.
        let called = module.called.as_deref().map(|called| [b"\0", called.as_bytes()].concat()).unwrap_or_default();
        let named = [&module.path[..], &called].concat();
        let mut identity = module.identity();
        let key = ModuleKey { path: named.clone(), identity: identity.clone(), saved_number: number };
        if let Some(&known) = self.by_module.get(&key) {
            return known;
        }
        let tables = module.saved.as_ref().map(|saved| saved.tables(module.name(), Duration::ZERO));
        let tables = tables.unwrap_or_default();
        if let (true, Some(table)) = (identity.is_empty(), tables.first()) {
            identity.extend([table.file_bytes.to_le_bytes(), u64::from(table.checksum).to_le_bytes()].concat());
        }
        let next = self.objects.len();
        let object = *self.by_identity.entry((named, identity)).or_insert(next);
        if object == next {
            let path: Rc<str> = String::from_utf8_lossy(&module.path).into_owned().into();
            let is_other_build = |other: &Object| other.path == path && other.module.called == module.called;
            let build = self.objects.iter().any(is_other_build).then(|| named_build(module).into());
            let (saved, lacks) = (SavedTable::default(), Lacks::default());
            self.objects.push(Object {
                path,
                module: module.clone(),
                build,
                saved,
                live: None,
                is_awaited: false,
                lacks,
            });
        }
        tables.iter().for_each(|table| self.objects[object].saved.add(table));
        self.by_module.insert(key, object);
        object
    }

    /// Returns the files with the symbols of a module: its own file, its debug file, and the files
    /// that these refer to.
    pub fn sources(&mut self, module: &Module) -> Vec<PathBuf> {
        let object = self.object(module);
        let own = self.live(object).own;
        self.objects[object].lacks.names |= !own && module.path.starts_with(b"/");
        let files = &self.live(object).files;
        files.iter().flat_map(|(path, elf)| std::iter::once(path.clone()).chain(files::beside(path, elf))).collect()
    }

    /// Returns the function at a link-time address.
    fn find(&mut self, object: usize, address: u64) -> Option<FunctionSymbol<'_>> {
        if self.objects[object].saved.find(address).is_none() {
            self.await_names(object);
        }
        if self.objects[object].saved.find(address).is_none() {
            self.live(object);
        }
        let Object { saved, live, .. } = &self.objects[object];
        saved.find(address).or_else(|| live.as_ref()?.functions.find(address))
    }

    /// Waits a moment for names that the recorder is saving, once for each module: to read a large
    /// file here too takes as much CPU time again (node: 25 ms), and the command ends after the
    /// recorder anyway.
    fn await_names(&mut self, object: usize) {
        const LARGE: u64 = 8 << 20;
        const A_MOMENT: Duration = Duration::from_millis(300);
        let Object { path, module, live, saved, is_awaited, .. } = &mut self.objects[object];
        if self.detail != Detail::Quick || live.is_some() || std::mem::replace(is_awaited, true) {
            return;
        }
        if let Some(names) = &module.saved
            && std::fs::metadata(&**path).is_ok_and(|file| file.len() >= LARGE)
        {
            names.tables(module.name(), A_MOMENT).iter().for_each(|table| saved.add(table));
        }
    }

    /// Returns the names of other functions whose code is that of the function at `start`.
    fn same_code(&mut self, object: usize, start: u64) -> Option<Rc<str>> {
        /// Number of names that are shown.
        const SHOWN: usize = 3;
        let Object { saved, live, .. } = &self.objects[object];
        let symbols = match live {
            _ if saved.find(start).is_some() => saved.folded(start),
            Some(live) => live.functions.folded(start),
            None => return None,
        };
        let mut names: Vec<String> = symbols.iter().take(SHOWN).map(|symbol| demangle(symbol)).collect();
        if symbols.len() > SHOWN {
            names.push(format!("{} more", symbols.len() - SHOWN));
        }
        (!names.is_empty()).then(|| names.join(", ").into())
    }

    /// Returns the frames at an address according to debug information, innermost first.
    /// `is_wrapper` is whether the functions of the module only pass requests for memory on.
    fn lines(&mut self, object: usize, address: u64, is_wrapper: bool) -> Vec<SourceFrame> {
        if let Some(known) = self.objects[object].saved.lines(address) {
            return known;
        }
        let most = match self.detail {
            Detail::Full => 2 << 30,
            Detail::Quick if is_wrapper => return Vec::new(),
            Detail::Quick => 64 << 20,
        };
        let module = self.objects[object].path.clone();
        let Live { files, debug, .. } = self.live(object);
        let read = || files.iter().find_map(|(path, elf)| Debug::read(elf, path, &module, most, &[]));
        if let Some(debug) = debug.get_or_insert_with(read) {
            return debug.find(address);
        }
        let object = &mut self.objects[object];
        // The names may have been stored while the files were searched.
        if let Some(known) = object.saved.lines(address) {
            return known;
        }
        object.lacks.lines |= object.saved.had_lines && object.live.as_ref().is_some_and(|live| live.files.is_empty());
        Vec::new()
    }

    /// Returns the files of a module, which are searched only once. If there is none, waits for
    /// names that are still being written.
    fn live(&mut self, number: usize) -> &mut Live {
        let object = &mut self.objects[number];
        if object.live.is_none() {
            let Search { files, own, why, notes } =
                search(&object.path, &object.module, &self.origin, object.saved.fingerprint);
            if files.is_empty()
                && let Some(saved) = &object.module.saved
            {
                let tables = saved.tables(object.module.name(), WAIT);
                tables.iter().for_each(|table| object.saved.add(table));
            }
            let functions = functions(&files);
            object.lacks.why = why;
            let has_symbols = files.iter().any(|(_, elf)| elf.section_size(".symtab") > 0);
            object.live =
                Some(Live { files, own, has_symbols, functions, data: None, debug: None, jumps: Jumps::default() });
            notes.into_iter().for_each(|note| self.note(note));
        }
        self.objects[number].live.get_or_insert_with(Live::default)
    }
}

/// Returns the file name of a module with what distinguishes its build: `plugin.so[1f0c3a97]`.
fn named_build(module: &Module) -> String {
    let name = module.called.as_deref().map(str::to_owned);
    let file_name = || {
        let name = module.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    };
    let identity = module.identity();
    // The first bytes of a build-id, or the hash of the file's first bytes and its time.
    let start = if module.build_id.is_empty() { crc32fast::hash(&identity).to_be_bytes().to_vec() } else { identity };
    format!("{}[{}]", name.unwrap_or_else(file_name), hexadecimal(&start[..start.len().min(4)]))
}

/// Returns the functions of the first file of a module that has a full symbol table, or else those
/// of its own file.
fn functions(files: &[(PathBuf, Elf)]) -> Functions {
    let full = files.iter().map(|(_, elf)| elf.functions(false)).find(|functions| !functions.is_empty());
    full.or_else(|| files.first().map(|(_, elf)| minidebug::functions(elf))).unwrap_or_default()
}

/// Returns the module of a site's address.
pub fn module_of<'a>(stacks: &'a Stacks, site: &Site) -> Option<&'a Module> {
    stacks.modules.get((site.module as usize).wrapping_sub(1))
}

/// Returns the link-time address of a site's instruction.
pub fn link_address(module: &Module, site: &Site) -> u64 {
    instruction(site.address, site.flags).wrapping_sub(module.bias)
}

/// Returns the frame of a site without a module: the names in the file, or the address.
fn unplaced(stacks: &Stacks, site: &Site) -> Frame {
    let text = |bytes: &[u8]| (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned());
    let mut frame = Frame { offset: site.address, ..Frame::default() };
    if let Some(named) = stacks.named.get((site.named as usize).wrapping_sub(1)) {
        frame.function = Some(demangle(&named.function)).filter(|name| !name.is_empty());
        frame.file = text(&named.file);
        frame.line = u32::try_from(named.line).ok().filter(|&line| line > 0);
    }
    frame
}
