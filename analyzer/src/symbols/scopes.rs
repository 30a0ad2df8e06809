//! Full names of C++ and Rust functions for which the compiler generated no symbol: lambdas,
//! templates of local types, async functions, inlined generic ones. DWARF has their plain name; the
//! namespaces, classes and functions around their entry complete it.

use super::rust_names::{is_legacy, with_arguments};
use gimli::{
    AttributeValue, DebugInfoOffset, Dwarf, DwarfFileType, EndianArcSlice, Reader, RunTimeEndian, Unit, UnitHeader,
    UnitOffset, UnitRef,
};
use rustc_hash::FxHashMap;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// Bytes of a section of debug information.
pub(super) type Slice = EndianArcSlice<RunTimeEndian>;

/// Maximum number of links and scopes that are followed for one name.
const DEEPEST: usize = 32;
/// Maximum length of a name.
const LONGEST: usize = 4096;

/// An entry that names a scope.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// Offset of the entry in the unit.
    at: usize,
    /// Offset after the last entry in the scope.
    end: usize,
    /// Index of the enclosing scope.
    parent: Option<usize>,
}

/// Maximum number of units outside of that of an address that are kept.
const MOST_UNITS: usize = 4096;

/// The sections of debug information that a unit is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sections {
    /// Those of the file itself.
    Own,
    /// Those of the file that dwz has made for several files.
    Shared,
    /// Those of a split unit.
    Split(u64),
}

/// A unit: its sections, and its offset in `.debug_info`, which is 0 for most split units.
type Key = (Sections, usize);

#[derive(Clone, Copy)]
struct KnownUnit<'a> {
    sections: Sections,
    unit: UnitRef<'a, Slice>,
}

impl KnownUnit<'_> {
    fn key(&self) -> Key {
        let header = &self.unit.header;
        (self.sections, header.offset().to_debug_info_offset(header).map_or(usize::MAX, |at| at.0))
    }
}

/// The scopes of units, which are read when a name in the unit first needs them.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Scopes by unit; `None` if the unit is of another language.
    units: RefCell<FxHashMap<Key, Option<Rc<[Scope]>>>>,
    /// Headers of the file's own units, and of the shared ones, in order.
    headers: [OnceCell<Vec<UnitHeader<Slice>>>; 2],
    /// Units that others refer to: the link-time optimizer, and dwz, write such references.
    others: RefCell<FxHashMap<Key, Rc<Unit<Slice>>>>,
}

impl Scopes {
    /// Returns the full name of the function whose entry is at `offset`: `shop::Cache<int>::get`.
    /// `None` if the file does not contain it, or if the function is of another language.
    pub(super) fn name(&self, unit: UnitRef<'_, Slice>, offset: UnitOffset<usize>) -> Option<String> {
        let sections = match (unit.dwarf.file_type, unit.dwo_id) {
            (DwarfFileType::Dwo, Some(id)) => Sections::Split(id.0),
            (DwarfFileType::Dwo, None) => return None,
            (DwarfFileType::Main, _) => Sections::Own,
        };
        let name = self.scoped(KnownUnit { sections, unit }, offset, DEEPEST)?;
        (name.len() <= LONGEST).then_some(name)
    }

    fn scoped(&self, within: KnownUnit<'_>, offset: UnitOffset<usize>, limit: usize) -> Option<String> {
        let limit = limit.checked_sub(1)?;
        let unit = within.unit;
        let entry = unit.entry(offset).ok()?;
        for link in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
            match entry.attr_value(link) {
                Some(AttributeValue::UnitRef(origin)) => return self.scoped(within, origin, limit),
                Some(AttributeValue::DebugInfoRef(at)) => {
                    return self.elsewhere(unit.dwarf, within.sections, at, limit);
                }
                Some(AttributeValue::DebugInfoRefSup(at)) => {
                    return self.elsewhere(unit.dwarf.sup()?, Sections::Shared, at, limit);
                }
                Some(_) => return None,
                None => {}
            }
        }
        let text = |attribute| {
            let text = unit.attr_string(entry.attr_value(attribute)?).ok()?;
            Some(text.to_string_lossy().ok()?.into_owned())
        };
        if let Some(symbol) = text(gimli::DW_AT_linkage_name) {
            let whole = super::demangle(symbol.as_bytes());
            let named = match text(gimli::DW_AT_name).filter(|_| is_legacy(&symbol)) {
                Some(plain) => with_arguments(&whole, &plain, &parameters(unit, offset)),
                None => None,
            };
            return Some(named.unwrap_or(whole));
        }
        let name = match (text(gimli::DW_AT_name), entry.tag()) {
            (Some(name), _) => name,
            (None, gimli::DW_TAG_namespace) => "(anonymous namespace)".to_string(),
            (None, gimli::DW_TAG_subprogram) => return None,
            // A class without a name that has functions belongs to a lambda.
            (None, _) => "{lambda}".to_string(),
        };
        let Some(scope) = self.around(within, offset)? else { return Some(name) };
        let around = self.scoped(within, UnitOffset(scope), limit)?;
        (around.len() <= LONGEST).then(|| format!("{around}::{name}"))
    }

    /// Returns the full name of an entry in another unit.
    fn elsewhere(
        &self,
        dwarf: &Dwarf<Slice>,
        sections: Sections,
        at: DebugInfoOffset<usize>,
        limit: usize,
    ) -> Option<String> {
        let headers = match sections {
            Sections::Own => &self.headers[0],
            Sections::Shared => &self.headers[1],
            Sections::Split(_) => return None,
        };
        let headers = headers.get_or_init(|| {
            let mut units = dwarf.units();
            std::iter::from_fn(|| units.next().ok().flatten()).collect()
        });
        let start = |header: &UnitHeader<Slice>| header.debug_info_offset().map_or(usize::MAX, |at| at.0);
        let index = headers.partition_point(|header| start(header) <= at.0).checked_sub(1)?;
        let key = (sections, start(&headers[index]));
        let known = self.others.borrow().get(&key).cloned();
        let unit = match known {
            Some(unit) => unit,
            None => {
                let unit = Rc::new(dwarf.unit(headers[index].clone()).ok()?);
                let mut others = self.others.borrow_mut();
                if others.len() >= MOST_UNITS {
                    others.clear();
                }
                others.insert(key, Rc::clone(&unit));
                unit
            }
        };
        let offset = at.to_unit_offset(&unit.header)?;
        self.scoped(KnownUnit { sections, unit: UnitRef::new(dwarf, &unit) }, offset, limit)
    }

    /// Returns the offset of the scope around an entry; the inner option is `None` if it is the
    /// unit itself.
    fn around(&self, within: KnownUnit<'_>, offset: UnitOffset<usize>) -> Option<Option<usize>> {
        let key = within.key();
        let known = self.units.borrow().get(&key).cloned();
        let scopes = match known {
            Some(scopes) => scopes,
            None => {
                let scopes = if is_scoped(within.unit) { Some(read(within.unit)?.into()) } else { None };
                self.units.borrow_mut().insert(key, scopes.clone());
                scopes
            }
        }?;
        let mut at = scopes.partition_point(|scope| scope.at < offset.0).checked_sub(1);
        while let Some(scope) = at.map(|at| scopes[at]) {
            if offset.0 < scope.end {
                return Some(Some(scope.at));
            }
            at = scope.parent;
        }
        Some(None)
    }
}

/// Returns the names of the types that a function is generic over.
fn parameters(unit: UnitRef<'_, Slice>, offset: UnitOffset<usize>) -> Vec<String> {
    /// Maximum number of entries in the one of a function that are looked at.
    const MOST: usize = 256;
    let mut names = Vec::new();
    let Ok(mut tree) = unit.entries_tree(Some(offset)) else { return names };
    let Ok(root) = tree.root() else { return names };
    let mut children = root.children();
    for _ in 0..MOST {
        let Ok(Some(child)) = children.next() else { break };
        let entry = child.entry();
        let name = entry.attr_value(gimli::DW_AT_name).filter(|_| entry.tag() == gimli::DW_TAG_template_type_parameter);
        let name = name.and_then(|name| unit.attr_string(name).ok());
        names.extend(name.and_then(|name| Some(name.to_string_lossy().ok()?.into_owned())));
    }
    names
}

/// Returns whether names of a language have scopes: C++ and Rust.
pub(super) fn has_scopes(language: gimli::DwLang) -> bool {
    matches!(
        language,
        gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
            | gimli::DW_LANG_Rust
    )
}

/// Returns whether names of a unit have scopes. What dwz has taken from several units may have no
/// language.
fn is_scoped(unit: UnitRef<'_, Slice>) -> bool {
    let Ok(entry) = unit.entry(unit.header.root_offset()) else { return false };
    match entry.attr_value(gimli::DW_AT_language) {
        Some(AttributeValue::Language(language)) => has_scopes(language),
        _ => true,
    }
}

/// Returns the scopes of a unit in order.
fn read(unit: UnitRef<'_, Slice>) -> Option<Vec<Scope>> {
    let mut entries = unit.entries_raw(None).ok()?;
    let mut scopes: Vec<Scope> = Vec::new();
    // Open scopes: index, and depth of their own entry.
    let mut open: Vec<(usize, isize)> = Vec::new();
    while !entries.is_empty() {
        let (at, depth) = (entries.next_offset().0, entries.next_depth());
        while let Some(&(scope, _)) = open.last().filter(|(_, of)| *of >= depth) {
            scopes[scope].end = at;
            open.pop();
        }
        let Some(entry) = entries.read_abbreviation().ok()? else { continue };
        entries.skip_attributes(entry.attributes()).ok()?;
        let names = matches!(
            entry.tag(),
            gimli::DW_TAG_namespace
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_union_type
                | gimli::DW_TAG_subprogram
        );
        if names && entry.has_children() {
            scopes.push(Scope { at, end: usize::MAX, parent: open.last().map(|(scope, _)| *scope) });
            open.push((scopes.len() - 1, depth));
        }
    }
    Some(scopes)
}
