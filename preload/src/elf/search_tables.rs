//! Search tables that the recorder has made for objects whose linker made none
//! ([`heaptape_wire::search_tables`]).

use super::object::Object;
use super::tables::Tables;
use crate::session;

/// Returns a reader of the rows for an object, and their number. Rows are relative to the lowest
/// address of the object.
pub(crate) fn rows(object: &Object) -> Option<(Tables, u64)> {
    let [start, end] = session::search_tables();
    let mut directory = Tables::between(start, end, start);
    loop {
        let object_start = directory.number(8)?;
        let offset = directory.number(4)?;
        let count = directory.number(4)?;
        if object_start == object.bounds().0 {
            return Some((Tables::between(start, end, start + offset), count));
        }
        if count == 0 {
            return None;
        }
    }
}
