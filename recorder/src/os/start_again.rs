//! The run-time library of a sanitizer that is preloaded into the command, because it is meant for the program.
//! LeakSanitizer's ends every Rust program before its `main`, ThreadSanitizer's reports races that are none. So
//! the command starts itself again without that library, before anything else. The program gets it.

use nix::libc::{self, c_char};
use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Holds what `LD_PRELOAD` was before.
const VARIABLE: &[u8] = b"HEAPTAPE_PRELOADED=";

/// Starts the command again if a sanitizer is preloaded.
///
/// # Safety
/// Both lists must end in a null pointer.
pub(super) unsafe fn without_sanitizers(arguments: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the caller ensures that null pointers end the lists.
    unsafe {
        if let Some(other) = other_environment(&texts(environment)) {
            let variables: Vec<_> = other.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
            let Ok(path) = std::fs::read_link("/proc/self/exe") else { return };
            let Ok(path) = CString::new(path.into_os_string().into_vec()) else { return };
            libc::execve(path.as_ptr(), arguments, variables.as_ptr());
        }
    }
}

/// Returns the texts of a list.
///
/// # Safety
/// It must end in a null pointer.
unsafe fn texts(mut list: *const *const c_char) -> Vec<CString> {
    let mut texts = Vec::new();
    // SAFETY: the caller ensures that a null pointer follows the texts.
    unsafe {
        while !list.is_null() && !(*list).is_null() {
            texts.push(CStr::from_ptr(*list).to_owned());
            list = list.add(1);
        }
    }
    texts
}

fn value<'a>(environment: &'a [CString], name: &[u8]) -> Option<&'a [u8]> {
    environment.iter().find_map(|entry| entry.to_bytes().strip_prefix(name))
}

/// Returns the environment to start again with; `None` if it preloads no sanitizer.
fn other_environment(environment: &[CString]) -> Option<Vec<CString>> {
    let preloaded = value(environment, PRELOAD)?;
    let is_first = value(environment, VARIABLE).is_none();
    (is_first && wire::sanitizer::libraries(preloaded).any(wire::sanitizer::is_runtime)).then_some(())?;
    let others = wire::sanitizer::libraries(preloaded).filter(|library| !wire::sanitizer::is_runtime(library));
    let others = others.collect::<Vec<_>>().join(&b':');
    let kept = environment.iter().filter(|entry| !entry.to_bytes().starts_with(PRELOAD)).cloned();
    let preload = (!others.is_empty()).then_some((PRELOAD, &others[..]));
    let added = preload.into_iter().chain([(VARIABLE, preloaded)]);
    Some(kept.chain(added.filter_map(|(name, value)| CString::new([name, value].concat()).ok())).collect())
}

/// Makes the environment of this process that of the program again.
pub(crate) fn restore(environment: &mut Vec<CString>) {
    let Some(entry) = value(environment, VARIABLE).and_then(|value| CString::new([PRELOAD, value].concat()).ok())
    else {
        return;
    };
    environment.retain(|entry| !entry.to_bytes().starts_with(VARIABLE) && !entry.to_bytes().starts_with(PRELOAD));
    environment.push(entry);
}

/// Returns what `LD_PRELOAD` was when the command was started.
pub(crate) fn preloaded() -> Option<OsString> {
    std::env::var_os("HEAPTAPE_PRELOADED").or_else(|| std::env::var_os("LD_PRELOAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|text| CString::new(*text).expect("no zero")).collect()
    }

    #[test]
    fn sanitizers_are_left_out_and_come_back() {
        let before = list(&["A=1", "LD_PRELOAD=/x/liblsan.so.0:own.so", "B"]);
        let mut other = other_environment(&before).expect("another environment");
        assert_eq!(other, list(&["A=1", "B", "LD_PRELOAD=own.so", "HEAPTAPE_PRELOADED=/x/liblsan.so.0:own.so"]));
        assert_eq!(other_environment(&other), None);
        restore(&mut other);
        assert_eq!(other, list(&["A=1", "B", "LD_PRELOAD=/x/liblsan.so.0:own.so"]));
        assert_eq!(other_environment(&list(&["LD_PRELOAD=own.so"])), None);
        assert_eq!(other_environment(&list(&["A=1"])), None);
    }
}
