//! Built-in suppressions: memory that the C library, the dynamic loader and the C++ runtime keep
//! until exit on purpose. They apply only to stacks whose innermost frames are all in these
//! libraries, so they never hide a leak of a program.

use crate::symbols::Frame;

/// Prefixes of the file names of runtime modules.
const RUNTIME_MODULES: &[&str] =
    &["libc.so", "libc-", "ld-linux", "ld-2", "ld.so", "ld-musl", "libpthread", "libdl.so", "libstdc++", "libgcc_s"];

/// Runtime functions and a description of the memory that they keep.
#[rustfmt::skip]
const KEPT: &[(&str, &str)] = &[
    ("_IO_file_doallocate", "buffers of the standard streams"), ("_IO_wfile_doallocate", "buffers of the standard streams"),
    ("_dl_allocate_tls", "thread-local storage"), ("__tls_get_addr", "thread-local storage"), ("_dl_allocate_tls_init", "thread-local storage"),
    ("__cxa_atexit", "list of exit handlers"), ("atexit", "list of exit handlers"), ("on_exit", "list of exit handlers"),
    ("__cxa_thread_atexit_impl", "list of exit handlers"), ("__cxa_get_globals", "state of C++ exceptions"),
    ("setenv", "the environment"), ("putenv", "the environment"), ("unsetenv", "the environment"),
    ("setlocale", "the locale"), ("bindtextdomain", "message catalogues"), ("textdomain", "message catalogues"),
    ("dcgettext", "message catalogues"), ("dcngettext", "message catalogues"), ("__dcigettext", "message catalogues"),
    ("tzset", "the time zone"), ("localtime", "the time zone"), ("localtime_r", "the time zone"), ("mktime", "the time zone"),
    ("__tz_convert", "the time zone"), ("strftime_l", "the time zone"),
    ("getpwnam", "name services"), ("getpwuid", "name services"), ("getgrnam", "name services"), ("getgrgid", "name services"),
    ("getpwnam_r", "name services"), ("getpwuid_r", "name services"), ("getgrnam_r", "name services"), ("getgrgid_r", "name services"),
    ("getaddrinfo", "name services"), ("gethostbyname_r", "name services"), ("backtrace", "the unwinder"),
    ("dlerror", "the loader's last error"), ("pthread_atfork", "list of fork handlers"), ("__register_atfork", "list of fork handlers"),
];

/// Returns a description of the memory if the innermost frames of a stack show that the runtime
/// keeps it on purpose.
pub fn kept_on_purpose(stack: impl Iterator<Item = Frame>) -> Option<&'static str> {
    let mut innermost = None;
    for frame in stack {
        let module = frame.module_name().to_string();
        if !RUNTIME_MODULES.iter().any(|name| module.starts_with(name)) {
            break;
        }
        if let Some(name) = frame.function.as_deref() {
            let plain = name.split('@').next().unwrap_or(name);
            if let Some((_, what)) = KEPT.iter().find(|(known, _)| *known == plain) {
                return Some(what);
            }
        }
        let loader = module.starts_with("ld-") || module.starts_with("ld.so");
        let previous = innermost.get_or_insert_with(|| module.clone());
        if loader && previous.starts_with("ld") {
            return Some("the dynamic loader");
        }
        if loader && previous.starts_with("libstdc++") {
            return Some("the C++ run-time's emergency pool");
        }
    }
    None
}
