//! Symbols of the objects that the loader has mapped, as `dlsym` would find them, without `dlsym`.
//! It allocates on libcs up to 2.33 (its error messages, at first), and has moved between
//! libraries, so that a program with an older libc could not load this library at all.
//!
//! `dl_iterate_phdr` returns the objects in the order of their loading: the program, the preloaded
//! libraries, what they need, and what was opened since. It takes the loader's lock and nothing
//! else. Symbols are found by the objects' own hash tables. Of several versions of a symbol the
//! default one is used.

pub(crate) mod cpp_runtime;
pub(crate) mod scope;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// The objects that are searched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The objects after this library.
    Next,
    /// The objects before this library: the program, and what was preloaded first.
    Before,
    /// All objects of the process.
    Any,
}

/// A name that is looked up, and its definition.
pub(crate) struct Wanted {
    name: &'static CStr,
    gnu_hash: u32,
    /// The address of the definition; null until it is found.
    pub found: *mut c_void,
}

impl Wanted {
    /// Returns a name without a definition.
    pub(crate) const fn new(name: &'static CStr) -> Wanted {
        let (bytes, mut gnu_hash, mut at) = (name.to_bytes(), 5381u32, 0);
        while at < bytes.len() {
            gnu_hash = gnu_hash.wrapping_mul(33).wrapping_add(bytes[at] as u32);
            at += 1;
        }
        Wanted { name, gnu_hash, found: core::ptr::null_mut() }
    }

    /// Returns the hash of the name in tables of the kind `DT_HASH`.
    fn old_hash(&self) -> u32 {
        self.name.to_bytes().iter().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(*byte));
            (hash ^ (hash & 0xf000_0000) >> 24) & 0x0fff_ffff
        })
    }
}

struct Search<'a> {
    scope: Scope,
    wanted: &'a mut [Wanted],
    /// Whether this library has been visited.
    has_passed_own: bool,
    /// Number of objects visited so far.
    seen: usize,
    /// The most objects to visit. What was loaded at the start comes first.
    max_objects: usize,
}

/// Number of objects at the first lookup: the program and what it needs, which nobody has opened.
static AT_START: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The loader's state of the program's name space (`r_state`); null until it is known.
static LOADER_STATE: AtomicPtr<c_int> = AtomicPtr::new(core::ptr::null_mut());

static HAS_OTHER_MALLOC: AtomicBool = AtomicBool::new(false);
/// The path of this library for [`own_name`]; null until it is known.
static OWN_NAME: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Looks names up. With `at_start` only objects that were loaded at the program's start are
/// searched. May take the loader's lock, so it is never used on the fast path.
pub(crate) fn find(scope: Scope, at_start: bool, wanted: &mut [Wanted]) {
    let max_objects = if at_start { AT_START.load(Relaxed) } else { usize::MAX };
    let mut search = Search { scope, wanted, has_passed_own: false, seen: 0, max_objects };
    // SAFETY: the callback gets what libc describes and our own structure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    if scope != Scope::Before {
        let _ = AT_START.compare_exchange(usize::MAX, search.seen, Relaxed, Relaxed);
    }
}

/// The most names of a list of [`find_next`].
pub(crate) const MOST: usize = 10;

/// Looks up the next definitions of at most [`MOST`] names, and stores them; null for those without
/// one. One copy serves all lists.
#[inline(never)]
pub(crate) fn find_next(names: &[&'static CStr], targets: &[AtomicPtr<c_void>]) {
    let mut wanted = [const { Wanted::new(c"") }; MOST];
    let wanted = &mut wanted[..names.len().min(MOST)];
    for (wanted, name) in wanted.iter_mut().zip(names) {
        *wanted = Wanted::new(name);
    }
    find(Scope::Next, false, wanted);
    targets.iter().zip(wanted).for_each(|(target, wanted)| target.store(wanted.found, Relaxed));
}

/// Looks one name up. Returns null if there is no definition.
#[cfg(any(test, heaptape_verify))]
pub(crate) fn find_one(scope: Scope, at_start: bool, name: &'static CStr) -> *mut c_void {
    let mut wanted = [Wanted::new(name)];
    find(scope, at_start, &mut wanted);
    wanted[0].found
}

/// Returns how often the loader has unmapped an object.
pub(crate) fn unloads() -> u64 {
    let mut unloads = 0u64;
    // SAFETY: the callback gets what libc describes and our own number, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(read_unloads), (&raw mut unloads).cast()) };
    unloads
}

unsafe extern "C" fn read_unloads(info: *mut libc::dl_phdr_info, bytes: usize, unloads: *mut c_void) -> c_int {
    // SAFETY: `unloads` passes its own number; the loader's structure has `bytes` bytes.
    unsafe {
        if bytes >= size_of::<libc::dl_phdr_info>() {
            unloads.cast::<u64>().write((*info).dlpi_subs);
        }
    }
    1
}

/// Returns the path of this library as the loader knows it, once a definition after it was looked
/// up.
pub(crate) fn own_name() -> Option<&'static CStr> {
    let name = OWN_NAME.load(Relaxed);
    // SAFETY: the loader's string, there as long as this library is.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// Finds out whether the program, or a library that was preloaded before this one, has a `malloc`
/// of its own, which is called instead of this library's. Called once, when the allocator is
/// resolved.
pub(crate) fn find_other_malloc() {
    let mut wanted = [c"malloc", c"free"].map(Wanted::new);
    find(Scope::Before, false, &mut wanted);
    HAS_OTHER_MALLOC.store(wanted.iter().any(|wanted| !wanted.found.is_null()), Relaxed);
}

/// Returns whether [`find_other_malloc`] has found a `malloc`.
pub(crate) fn has_other_malloc() -> bool {
    HAS_OTHER_MALLOC.load(Relaxed)
}

/// Returns whether the loader has processed all relocations of what is loaded at start, so that any
/// function may be called.
pub(crate) fn is_consistent() -> bool {
    let state = LOADER_STATE.load(Relaxed);
    // SAFETY: the loader's variable, there for ever.
    !state.is_null() && unsafe { state.read_volatile() } == 0
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `find` passes its own structure, and the loader describes an object that stays mapped
    // while it holds its lock.
    unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search<'_>>());
        search.seen += 1;
        let Some(dynamic) = dynamic_section(info) else { return 0 };
        let object = Object::read(info.dlpi_addr, dynamic);
        if search.seen == 1 && LOADER_STATE.load(Relaxed).is_null() && !object.debug.is_null() {
            LOADER_STATE.store(object.debug.byte_add(R_STATE).cast_mut().cast(), Relaxed);
        }
        let is_in_scope = match search.scope {
            Scope::Any => true,
            Scope::Next if search.has_passed_own => true,
            Scope::Next => {
                search.has_passed_own = holds(info, visit as *const () as usize);
                if search.has_passed_own {
                    OWN_NAME.store(info.dlpi_name.cast_mut(), Relaxed);
                }
                false
            }
            Scope::Before if holds(info, visit as *const () as usize) => return 1,
            Scope::Before => true,
        };
        if is_in_scope {
            for wanted in search.wanted.iter_mut().filter(|wanted| wanted.found.is_null()) {
                wanted.found = match search.scope {
                    // The function is not called, and perhaps not relocated yet. It is enough that
                    // it is defined.
                    Scope::Before if object.symbol_index(wanted).is_some() => object.symbols.cast_mut().cast(),
                    Scope::Before => core::ptr::null_mut(),
                    Scope::Any | Scope::Next => object.symbol(wanted),
                };
            }
        }
        c_int::from(search.seen >= search.max_objects)
    }
}

/// Returns an object's program headers.
///
/// # Safety
/// The loader must have passed `info` to a callback that is still running.
unsafe fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader's array of this length, as the caller ensures.
    unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// Returns whether an address is in an object.
///
/// # Safety
/// As [`headers`].
unsafe fn holds(info: &libc::dl_phdr_info, address: usize) -> bool {
    // SAFETY: as the caller ensures.
    unsafe { headers(info) }.iter().any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        header.p_type == libc::PT_LOAD && address.wrapping_sub(start) < header.p_memsz as usize
    })
}

/// Returns the address of an object's dynamic section.
///
/// # Safety
/// As [`headers`].
unsafe fn dynamic_section(info: &libc::dl_phdr_info) -> Option<*const [u64; 2]> {
    // SAFETY: as the caller ensures.
    let header = unsafe { headers(info) }.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    Some(info.dlpi_addr.wrapping_add(header.p_vaddr) as *const [u64; 2])
}

/// Offset of `r_state` in the loader's `struct r_debug`.
const R_STATE: usize = 24;

struct Object {
    base: u64,
    symbols: *const libc::Elf64_Sym,
    strings: *const u8,
    versions: *const u16,
    gnu_hash: *const u32,
    old_hash: *const u32,
    debug: *const c_void,
    /// Offset of the object's own name (`DT_SONAME`) in its strings; 0 if it has none.
    name: usize,
    /// The relocations of functions that may be bound at their first call, and their bytes.
    jump_relocations: (*const libc::Elf64_Rela, u64),
    /// All other relocations, and their bytes.
    relocations: (*const libc::Elf64_Rela, u64),
}

impl Object {
    /// # Safety
    /// `entry` is the dynamic section of an object mapped with this base.
    #[inline(never)]
    unsafe fn read(base: u64, mut entry: *const [u64; 2]) -> Object {
        const DT_PLTRELSZ: u64 = 2;
        const DT_HASH: u64 = 4;
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_RELA: u64 = 7;
        const DT_RELASZ: u64 = 8;
        const DT_SONAME: u64 = 14;
        const DT_DEBUG: u64 = 21;
        const DT_JMPREL: u64 = 23;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        const DT_VERSYM: u64 = 0x6fff_fff0;
        let mut object = Object {
            base,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            versions: core::ptr::null(),
            gnu_hash: core::ptr::null(),
            old_hash: core::ptr::null(),
            debug: core::ptr::null(),
            name: 0,
            jump_relocations: (core::ptr::null(), 0),
            relocations: (core::ptr::null(), 0),
        };
        // SAFETY: the section ends with a zero tag.
        unsafe {
            while (*entry)[0] != 0 {
                let [tag, value] = *entry;
                // Some loaders write absolute addresses into the section, some leave the values of
                // the file.
                let at = if value < base { base + value } else { value };
                match tag {
                    DT_HASH => object.old_hash = at as *const u32,
                    DT_STRTAB => object.strings = at as *const u8,
                    DT_SYMTAB => object.symbols = at as *const libc::Elf64_Sym,
                    DT_GNU_HASH => object.gnu_hash = at as *const u32,
                    DT_VERSYM => object.versions = at as *const u16,
                    DT_DEBUG => object.debug = value as *const c_void,
                    DT_SONAME => object.name = value as usize,
                    DT_JMPREL => object.jump_relocations.0 = at as *const libc::Elf64_Rela,
                    DT_PLTRELSZ => object.jump_relocations.1 = value,
                    DT_RELA => object.relocations.0 = at as *const libc::Elf64_Rela,
                    DT_RELASZ => object.relocations.1 = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        object
    }

    /// Returns a string of the object's table.
    ///
    /// # Safety
    /// As [`Object::symbol`], and the offset must be from the object's tables.
    unsafe fn string(&self, offset: usize) -> &CStr {
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures.
        unsafe { CStr::from_ptr(self.strings.add(offset).cast()) }
    }

    /// Returns the object's own name, if it has one.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    unsafe fn name(&self) -> Option<&CStr> {
        // SAFETY: as the caller ensures; the offset is from the dynamic section.
        (self.name != 0 && !self.strings.is_null()).then(|| unsafe { self.string(self.name) })
    }

    /// Returns whether a symbol has this name. Reads no more of its name than needed.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    unsafe fn is_named(&self, symbol: &libc::Elf64_Sym, name: &CStr) -> bool {
        let mut at = self.strings.wrapping_add(symbol.st_name as usize);
        name.to_bytes_with_nul().iter().all(|byte| {
            // SAFETY: the object is mapped and its tables are valid, as the caller ensures. All
            // bytes so far are equal, so the string does not end before this one.
            let is_equal = unsafe { *at } == *byte;
            at = at.wrapping_add(1);
            is_equal
        })
    }

    /// Returns the address of a symbol, or null.
    ///
    /// # Safety
    /// The object must be mapped, with the tables that its linker wrote. The loader relies on them
    /// too.
    unsafe fn symbol(&self, wanted: &Wanted) -> *mut c_void {
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures; the number
        // comes from the object's hash table.
        unsafe { self.symbol_index(wanted) }.map_or(core::ptr::null_mut(), |number| unsafe {
            let symbol = &*self.symbols.add(number);
            let address = self.base.wrapping_add(symbol.st_value) as *mut c_void;
            if symbol.st_info & 0xf == STT_GNU_IFUNC {
                core::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(address)()
            } else {
                address
            }
        })
    }

    /// Returns the index of a symbol.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    unsafe fn symbol_index(&self, wanted: &Wanted) -> Option<usize> {
        if self.symbols.is_null() || self.strings.is_null() {
            return None;
        }
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures.
        unsafe { if self.gnu_hash.is_null() { self.by_old_hash(wanted) } else { self.by_gnu_hash(wanted) } }
    }

    /// Returns whether a symbol is the wanted one, and is defined, global and of the default
    /// version. One of another version is kept in `hidden`: it counts if there is no default one,
    /// as for the loader. glibc's libc_malloc_debug has nothing but `malloc@GLIBC_2.2.5`.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    #[inline(never)]
    unsafe fn is_definition_of(&self, number: usize, wanted: &Wanted, hidden: &mut Option<usize>) -> bool {
        const HIDDEN_VERSION: u16 = 0x8000;
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures.
        unsafe {
            let symbol = &*self.symbols.add(number);
            let (kind, bind) = (symbol.st_info & 0xf, symbol.st_info >> 4);
            let is_definition = symbol.st_shndx != 0
                && symbol.st_value != 0
                && matches!(kind, 0..=2 | STT_GNU_IFUNC)
                && matches!(bind, 1 | 2 | STB_GNU_UNIQUE)
                && self.is_named(symbol, wanted.name);
            let is_default = self.versions.is_null() || *self.versions.add(number) & HIDDEN_VERSION == 0;
            if is_definition && !is_default {
                hidden.get_or_insert(number);
            }
            is_definition && is_default
        }
    }

    /// Finds a symbol by the table `DT_GNU_HASH`.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    unsafe fn by_gnu_hash(&self, wanted: &Wanted) -> Option<usize> {
        let (table, hash) = (self.gnu_hash, wanted.gnu_hash);
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures: buckets,
        // first symbol, words of the filter, its shift; filter; buckets; chains.
        unsafe {
            let (buckets, first, filter_length, shift) = (*table, *table.add(1), *table.add(2), *table.add(3));
            let filter = table.add(4).cast::<u64>();
            let word = *filter.add(((hash / 64) & filter_length.wrapping_sub(1)) as usize);
            let bits = 1u64 << (hash & 63) | 1 << (hash >> (shift & 31) & 63);
            if buckets == 0 || word & bits != bits {
                return None;
            }
            let bucket = table.add(4 + 2 * filter_length as usize);
            let chain = bucket.add(buckets as usize);
            let mut number = *bucket.add((hash % buckets) as usize);
            if number < first {
                return None;
            }
            let mut hidden = None;
            loop {
                let link = *chain.add((number - first) as usize);
                if link | 1 == hash | 1 && self.is_definition_of(number as usize, wanted, &mut hidden) {
                    return Some(number as usize);
                }
                if link & 1 != 0 {
                    return hidden;
                }
                number += 1;
            }
        }
    }

    /// Finds a symbol by the table `DT_HASH`.
    ///
    /// # Safety
    /// As [`Object::symbol`].
    unsafe fn by_old_hash(&self, wanted: &Wanted) -> Option<usize> {
        let table = self.old_hash;
        if table.is_null() {
            return None;
        }
        // SAFETY: the object is mapped and its tables are valid, as the caller ensures: buckets,
        // symbols; buckets; chains.
        unsafe {
            let (buckets, symbols) = (*table, *table.add(1));
            if buckets == 0 {
                return None;
            }
            let (bucket, chain) = (table.add(2), table.add(2 + buckets as usize));
            let mut number = *bucket.add((wanted.old_hash() % buckets) as usize);
            let mut hidden = None;
            for _ in 0..symbols {
                if number == 0 || number >= symbols {
                    break;
                }
                if self.is_definition_of(number as usize, wanted, &mut hidden) {
                    return Some(number as usize);
                }
                number = *chain.add(number as usize);
            }
            hidden
        }
    }
}

const STT_GNU_IFUNC: u8 = 10;
const STB_GNU_UNIQUE: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_loader_finds() {
        for name in [c"malloc", c"free", c"posix_spawn", c"memcpy", c"_dl_find_object", c"dl_iterate_phdr", c"environ"]
        {
            // SAFETY: a valid name; the test's own process.
            let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!known.is_null());
            assert_eq!(find_one(Scope::Any, false, name), known, "{name:?}");
            assert_eq!(find_one(Scope::Any, true, name), known, "{name:?}");
        }
        assert!(find_one(Scope::Any, false, c"no_such_function_anywhere").is_null());
        // The test's own libraries were there at the start: none has a scope of its own.
        let mut wanted = [Wanted::new(c"malloc")];
        scope::find(visit as *const () as usize, &mut wanted);
        assert!(wanted[0].found.is_null());
        assert!(is_consistent());
    }
}
