//! Full names of C++ functions for which the compiler generated no symbol: lambdas, and templates
//! of local types. DWARF has their plain name; the namespaces, classes and functions around their
//! entry complete it.

use gimli::{AttributeValue, Reader, UnitOffset, UnitRef};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;

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

/// The scopes of units, which are read when a name in the unit first needs them.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Scopes by the offset of the unit in `.debug_info`.
    units: RefCell<FxHashMap<usize, Rc<[Scope]>>>,
}

impl Scopes {
    /// Returns the full name of the function whose entry is at `offset`: `shop::Cache<int>::get`.
    /// `None` if the file does not contain it.
    pub(super) fn name<R: Reader<Offset = usize>>(
        &self,
        unit: UnitRef<'_, R>,
        offset: UnitOffset<usize>,
    ) -> Option<String> {
        let name = self.scoped(unit, offset, DEEPEST)?;
        (name.len() <= LONGEST).then_some(name)
    }

    fn scoped<R: Reader<Offset = usize>>(
        &self,
        unit: UnitRef<'_, R>,
        offset: UnitOffset<usize>,
        limit: usize,
    ) -> Option<String> {
        let limit = limit.checked_sub(1)?;
        let entry = unit.entry(offset).ok()?;
        for link in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
            match entry.attr_value(link) {
                Some(AttributeValue::UnitRef(origin)) => return self.scoped(unit, origin, limit),
                // The link-time optimizer writes references to other units.
                Some(_) => return None,
                None => {}
            }
        }
        let text = |attribute| {
            let text = unit.attr_string(entry.attr_value(attribute)?).ok()?;
            Some(text.to_string_lossy().ok()?.into_owned())
        };
        if let Some(symbol) = text(gimli::DW_AT_linkage_name) {
            return Some(super::demangle(symbol.as_bytes()));
        }
        let name = match (text(gimli::DW_AT_name), entry.tag()) {
            (Some(name), _) => name,
            (None, gimli::DW_TAG_namespace) => "(anonymous namespace)".to_string(),
            (None, gimli::DW_TAG_subprogram) => return None,
            // A class without a name that has functions belongs to a lambda.
            (None, _) => "{lambda}".to_string(),
        };
        let Some(scope) = self.around(unit, offset)? else { return Some(name) };
        let around = self.scoped(unit, UnitOffset(scope), limit)?;
        (around.len() <= LONGEST).then(|| format!("{around}::{name}"))
    }

    /// Returns the offset of the scope around an entry; the inner option is `None` if it is the
    /// unit itself.
    fn around<R: Reader<Offset = usize>>(
        &self,
        unit: UnitRef<'_, R>,
        offset: UnitOffset<usize>,
    ) -> Option<Option<usize>> {
        let key = unit.header.offset().to_debug_info_offset(&unit.header).map_or(usize::MAX, |at| at.0);
        let known = self.units.borrow().get(&key).cloned();
        let scopes = match known {
            Some(scopes) => scopes,
            None => {
                let scopes: Rc<[Scope]> = read(unit)?.into();
                self.units.borrow_mut().insert(key, scopes.clone());
                scopes
            }
        };
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

/// Returns the scopes of a unit in order.
fn read<R: Reader<Offset = usize>>(unit: UnitRef<'_, R>) -> Option<Vec<Scope>> {
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
