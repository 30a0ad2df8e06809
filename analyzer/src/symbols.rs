//! Address -> function, file and line; the only place that knows ELF and DWARF.
//!
//! Two levels: [`Symbolizer::name`] gives the function from symbol tables alone,
//! [`Symbolizer::frames`] adds lines and inlined functions from debug information, which is read
//! only for modules of which such a frame is asked. What the recording keeps of its names
//! ([`saved`]) comes first; the files are looked for when it lacks something. A file that is not
//! the one that was recorded (its build-id differs) names nothing; what cannot be named is
//! `module+0xoffset`.

mod code_name;
mod demangle;
mod dwarf;
mod elf;
mod files;
mod lacks;
mod minidebug;
mod returned_text;
mod save;
pub mod saved;
mod scopes;

pub use code_name::code_name;
pub use demangle::demangle;

use crate::program_frames::{Role, Roles};
use crate::stacks::{Module, Site, Stacks};
use dwarf::{Debug, Source};
use elf::{Elf, Functions};
pub use files::Origin;
use files::{Search, search};
use heaptape_formats::tape::instruction;
use lacks::Lacks;
pub use lacks::unshown;
use returned_text::returned_text;
use rustc_hash::FxHashMap;
pub use save::save;
use saved::Table;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Lines and inlined functions whatever it costs (up to 2 GiB of debug information a module).
    Full,
    /// Only of modules with little debug information: for the summary behind a recording, which
    /// must not keep anybody waiting (64 MiB take about 0.2 s).
    Quick,
}

/// A frame as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function; none when it cannot be named.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Path of the module; empty when the address lies in none.
    pub module: Rc<str>,
    /// File name by which the module's program was called, where that is a link of another name.
    pub called: Option<Arc<str>>,
    /// Link-time address in the module, or the address itself.
    pub offset: u64,
    /// Whether the function was inlined into the next frame's.
    pub inlined: bool,
    /// What it is to a reader who looks for the cause of an allocation.
    pub role: Role,
}

impl Frame {
    /// The module's file name.
    pub fn module_name(&self) -> &str {
        self.module.rsplit('/').next().unwrap_or_default()
    }

    /// The module's file name as a reader knows it: a program's own is the one that it was called
    /// by.
    pub fn shown_module(&self) -> &str {
        self.called.as_deref().unwrap_or_else(|| self.module_name())
    }

    /// The function, or `module+0xoffset`.
    pub fn title(&self) -> String {
        match (&self.function, self.shown_module()) {
            (Some(function), _) => function.clone(),
            (None, "") => format!("{:#x}", self.offset),
            (None, module) => format!("{module}+{:#x}", self.offset),
        }
    }
}

/// The function by which a program brings suppressions for LSan.
const DEFAULT_SUPPRESSIONS: &[u8] = b"__lsan_default_suppressions";

/// What is known of one module.
struct Object {
    path: Rc<str>,
    module: Module,
    /// What recordings keep of its names.
    saved: Table,
    /// Its files, once they were looked for.
    live: Option<Live>,
    lacks: Lacks,
}

/// A module's files.
struct Live {
    /// Files to look into, the module's own first: all have the recorded build-id.
    files: Vec<(PathBuf, Elf)>,
    /// Whether the first is the module's own file.
    own: bool,
    functions: Functions,
    debug: Option<Option<Debug>>,
}

/// Names addresses, and remembers what it found.
pub struct Symbolizer {
    detail: Detail,
    origin: Origin,
    roles: Roles,
    objects: Vec<Object>,
    /// By path, build-id and the number of the saved names.
    by_module: FxHashMap<(Vec<u8>, Vec<u8>, u64), usize>,
    /// By path and build-id, or what tells builds apart that have none.
    by_identity: FxHashMap<(Vec<u8>, Vec<u8>), usize>,
    names: FxHashMap<(usize, u64), Rc<Frame>>,
    frames: FxHashMap<(usize, u64), Rc<[Frame]>>,
    notes: Vec<String>,
    /// Whether the notes are shown by whoever took them.
    is_shown: bool,
}

impl Drop for Symbolizer {
    fn drop(&mut self) {
        if !self.is_shown {
            lacks::keep(self.notes());
        }
    }
}

impl Symbolizer {
    /// Reads nothing yet.
    pub fn new(detail: Detail) -> Self {
        Symbolizer::from(detail, Origin::default())
    }

    /// Looks for files as it is told.
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
            notes: Vec::new(),
            is_shown: false,
        }
    }

    /// How much is read.
    pub const fn detail(&self) -> Detail {
        self.detail
    }

    /// The roles that frames have.
    pub const fn roles(&self) -> &Roles {
        &self.roles
    }

    /// The frame with its role.
    fn with_role(&self, frame: Frame) -> Frame {
        let role = self.roles.of(&frame);
        Frame { role, ..frame }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// What a reader should know: for which modules names are missing, why, and what would help.
    pub fn notes(&self) -> Vec<String> {
        let damage = self.objects.iter().filter_map(|object| object.module.saved.as_ref()?.damage());
        let mut notes: Vec<String> = damage.chain(lacks::lines(&self.objects)).collect();
        notes.extend(self.notes.iter().cloned());
        notes.dedup();
        notes
    }

    /// The same for whoever shows them; [`unshown`] leaves them out.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.is_shown = true;
        self.notes()
    }

    /// The function of a site, from symbol tables alone. Inlined functions are not seen.
    pub fn name(&mut self, stacks: &Stacks, site: &Site) -> Rc<Frame> {
        let Some(module) = module_of(stacks, site) else { return Rc::new(self.with_role(unplaced(stacks, site))) };
        let (object, address) = (self.object(module), link_address(module, site));
        if let Some(known) = self.names.get(&(object, address)) {
            return known.clone();
        }
        let function = self.find(object, address).map(|(.., symbol)| demangle(symbol));
        let function = function.or_else(|| unplaced(stacks, site).function);
        let offset = site.address.wrapping_sub(module.bias);
        let Object { path, module, .. } = &self.objects[object];
        let (module, called) = (path.clone(), module.called.clone());
        let frame = Rc::new(self.with_role(Frame { function, module, called, offset, ..Frame::default() }));
        self.objects[object].lacks.names |= frame.function.is_none() && frame.role.rank() < Role::Wrapper.rank();
        self.names.insert((object, address), frame.clone());
        frame
    }

    /// The frames of a site, innermost first: several where functions were inlined.
    pub fn frames(&mut self, stacks: &Stacks, site: &Site) -> Rc<[Frame]> {
        let Some(module) = module_of(stacks, site) else { return Rc::from([self.with_role(unplaced(stacks, site))]) };
        let (object, address) = (self.object(module), link_address(module, site));
        if let Some(known) = self.frames.get(&(object, address)) {
            return known.clone();
        }
        let name = self.name(stacks, site);
        let mut frames: Vec<Frame> = self
            .lines(object, address)
            .into_iter()
            .map(|source| Frame {
                function: source.symbol.map(|symbol| demangle(symbol.as_bytes())),
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
                }
            }
            None => frames.push(Frame::clone(&name)),
        }
        let frames: Rc<[Frame]> = frames.into_iter().map(|frame| self.with_role(frame)).collect();
        self.frames.insert((object, address), frames.clone());
        frames
    }

    /// The symbol of a site's function as it stands in the file: mangled, where the language
    /// mangles.
    pub fn symbol(&mut self, stacks: &Stacks, site: &Site) -> Option<String> {
        let module = module_of(stacks, site)?;
        let (object, address) = (self.object(module), link_address(module, site));
        let (.., symbol) = self.find(object, address)?;
        Some(String::from_utf8_lossy(symbol).into_owned())
    }

    /// The suppressions that a module brings for LSan; none when it brings none, an error when they
    /// cannot be read without running it.
    pub fn default_suppressions(&mut self, module: &Module) -> Option<Result<String, &'static str>> {
        let object = self.object(module);
        if let Some(text) = &self.objects[object].saved.suppressions {
            return Some(Ok(text.clone()));
        }
        self.live(object).files.iter().find_map(|(_, elf)| {
            let address = elf.symbol_address(DEFAULT_SUPPRESSIONS)?;
            Some(returned_text(elf, address))
        })
    }

    /// Run-time start address and symbol of a site's function, for profiles.
    pub fn function(&mut self, stacks: &Stacks, site: &Site) -> Option<(u64, String)> {
        self.function_symbol(stacks, site).map(|(start, symbol)| (start, demangle(symbol)))
    }

    /// Run-time start address of a site's function, and its symbol as the file has it.
    pub fn function_symbol(&mut self, stacks: &Stacks, site: &Site) -> Option<(u64, &[u8])> {
        let module = module_of(stacks, site)?;
        let (object, address) = (self.object(module), link_address(module, site));
        let (start, _, symbol) = self.find(object, address)?;
        Some((start.wrapping_add(module.bias), symbol))
    }

    /// Link-time start and end of the function around a link-time address of a module.
    pub fn extent(&mut self, module: &Module, address: u64) -> Option<(u64, u64)> {
        let object = self.object(module);
        self.find(object, address).map(|(start, end, _)| (start, end))
    }

    /// Link-time addresses of a module's code; none when its file cannot be read.
    pub fn code(&mut self, module: &Module) -> Option<Range<u64>> {
        let object = self.object(module);
        self.objects[object].saved.code.clone().or_else(|| self.live(object).files.first()?.1.code())
    }

    /// Whether the module's own file is there, and still the one that was recorded.
    pub fn is_there(&mut self, module: &Module) -> bool {
        let object = self.object(module);
        self.live(object).own
    }

    /// Link-time start of a function of the module that is not `taken`: `_init`, which no stack
    /// passes through, or the first.
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
        // A program that is called by two names has frames of either.
        let called = module.called.as_deref().map(|called| [b"\0", called.as_bytes()].concat()).unwrap_or_default();
        let named = [&module.path[..], &called].concat();
        let key = (named.clone(), module.build_id.clone(), number);
        if let Some(&known) = self.by_module.get(&key) {
            return known;
        }
        let tables = module.saved.as_ref().map(|saved| saved.tables(&module.path, &module.build_id, false));
        let tables = tables.unwrap_or_default();
        let mut identity = module.build_id.clone();
        if let (true, Some(table)) = (identity.is_empty(), tables.first()) {
            identity.extend([table.file_bytes.to_le_bytes(), u64::from(table.checksum).to_le_bytes()].concat());
        }
        let next = self.objects.len();
        let object = *self.by_identity.entry((named, identity)).or_insert(next);
        if object == next {
            let path = String::from_utf8_lossy(&module.path).into_owned().into();
            let (saved, lacks) = Default::default();
            self.objects.push(Object { path, module: module.clone(), saved, live: None, lacks });
        }
        tables.iter().for_each(|table| self.objects[object].saved.add(table));
        self.by_module.insert(key, object);
        object
    }

    /// The files that name a module's functions and lines: its own, its debug file, what these
    /// point to.
    pub fn sources(&mut self, module: &Module) -> Vec<PathBuf> {
        let object = self.object(module);
        let own = self.live(object).own;
        self.objects[object].lacks.names |= !own && module.path.starts_with(b"/");
        let files = &self.live(object).files;
        files.iter().flat_map(|(path, elf)| std::iter::once(path.clone()).chain(files::beside(path, elf))).collect()
    }

    /// Start, end and symbol of the function that holds a link-time address.
    fn find(&mut self, object: usize, address: u64) -> Option<(u64, u64, &[u8])> {
        if self.objects[object].saved.find(address).is_none() {
            self.live(object);
        }
        let Object { saved, live, .. } = &self.objects[object];
        saved.find(address).or_else(|| live.as_ref()?.functions.find(address))
    }

    /// The frames of an address that debug information knows, innermost first.
    fn lines(&mut self, object: usize, address: u64) -> Vec<Source> {
        if let Some(known) = self.objects[object].saved.lines(address) {
            return known;
        }
        let most = match self.detail {
            Detail::Full => 2 << 30,
            Detail::Quick => 64 << 20,
        };
        let Live { files, debug, .. } = self.live(object);
        let read = || files.iter().find_map(|(path, elf)| Debug::read(elf, path, most));
        if let Some(debug) = debug.get_or_insert_with(read) {
            return debug.find(address);
        }
        let object = &mut self.objects[object];
        // They may have come while the files were looked for.
        if let Some(known) = object.saved.lines(address) {
            return known;
        }
        object.lacks.lines |= object.saved.had_lines && object.live.as_ref().is_some_and(|live| live.files.is_empty());
        Vec::new()
    }

    /// The files of a module, looked for once. Where none is there, names that are still being
    /// written are waited for.
    fn live(&mut self, number: usize) -> &mut Live {
        let object = &mut self.objects[number];
        if object.live.is_none() {
            let Search { files, own, why, notes } =
                search(&object.path, &object.module, &self.origin, object.saved.fingerprint);
            if files.is_empty()
                && let Some(saved) = &object.module.saved
            {
                let tables = saved.tables(&object.module.path, &object.module.build_id, true);
                tables.iter().for_each(|table| object.saved.add(table));
            }
            let functions = functions(&files);
            object.lacks.why = why;
            object.live = Some(Live { files, own, functions, debug: None });
            notes.into_iter().for_each(|note| self.note(note));
        }
        let nothing = || Live { files: Vec::new(), own: false, functions: Functions::default(), debug: None };
        self.objects[number].live.get_or_insert_with(nothing)
    }
}

/// The functions of a module's files: of the first one that has a full symbol table, else what its
/// own file has.
fn functions(files: &[(PathBuf, Elf)]) -> Functions {
    let full = files.iter().map(|(_, elf)| elf.functions(false)).find(|functions| !functions.is_empty());
    full.or_else(|| files.first().map(|(_, elf)| minidebug::functions(elf))).unwrap_or_default()
}

/// The module that a site's address lies in.
pub fn module_of<'a>(stacks: &'a Stacks, site: &Site) -> Option<&'a Module> {
    stacks.modules.get((site.module as usize).wrapping_sub(1))
}

/// The address to look up.
pub fn link_address(module: &Module, site: &Site) -> u64 {
    instruction(site.address, site.flags).wrapping_sub(module.bias)
}

/// A frame in no module: named by the file itself, or an address.
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
