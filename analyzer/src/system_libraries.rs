//! Which modules are libraries that the system provides, by their paths. A program is not blamed
//! for what such a library does inside, but for its own call of it.

const FOLDERS: &[&str] =
    &["/lib/", "/lib64/", "/lib32/", "/usr/lib/", "/usr/lib64/", "/usr/lib32/", "/usr/local/lib/", "/usr/local/lib64/"];

/// Stores with a folder for each package, e.g. `/nix/store/HASH-libxml2-2.11/lib/libxml2.so`.
const STORES: &[&str] = &["/nix/store/", "/gnu/store/"];

/// Subfolders with parts of the system's libraries. Others may be of the program: `/usr/lib/shop/`
/// has its own libraries or plugins.
#[rustfmt::skip]
const PARTS: &[&str] = &[
    "alsa-lib", "atlas", "blas", "dri", "engines-3", "gconv", "gdk-pixbuf-2.0", "gio", "glibc-hwcaps", "gstreamer-1.0", "gtk-3.0",
    "gtk-4.0", "krb5", "lapack", "openblas-pthread", "openblas-serial", "ossl-modules", "pkcs11", "pulseaudio", "qt5", "qt6", "samba",
    "sasl2", "security", "systemd", "tls", "vdpau",
];

/// Returns whether the module at a path is a library that the system provides. Python's extension
/// modules are none: one that is being developed is installed beside all others.
pub(crate) fn is_system_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_library = name.starts_with("lib") && name.contains(".so");
    if path.contains("/node_modules/") {
        return is_library || name.ends_with(".node");
    }
    if let Some((_, rest)) = ["/site-packages/", "/dist-packages/"].iter().find_map(|part| path.split_once(part)) {
        // What a wheel brings along is in a folder beside its package: `numpy.libs/`.
        return is_library && rest.split_once('/').is_some_and(|(folder, _)| folder.ends_with(".libs"));
    }
    let in_store = || {
        let (_, rest) = STORES.iter().find_map(|store| path.strip_prefix(store))?.split_once('/')?;
        rest.strip_prefix("lib/")
    };
    let Some(rest) = FOLDERS.iter().find_map(|folder| path.strip_prefix(folder)).or_else(in_store) else {
        return false;
    };
    // Debian's folder of a platform, such as `x86_64-linux-gnu`.
    let rest = rest.split_once('/').filter(|(folder, _)| folder.contains("-linux-")).map_or(rest, |(_, rest)| rest);
    match rest.split_once('/') {
        None => is_library,
        Some((folder, _)) => PARTS.contains(&folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_system_are_told_from_code_of_programs() {
        for path in [
            "/lib/x86_64-linux-gnu/libxml2.so.2",
            "/usr/lib/x86_64-linux-gnu/libglib-2.0.so.0.7400.6",
            "/usr/lib64/libcrypto.so.3",
            "/usr/local/lib/libsqlite3.so",
            "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libz.so.1",
            "/usr/lib/x86_64-linux-gnu/pulseaudio/libpulsecommon-16.1.so",
            "/usr/lib/x86_64-linux-gnu/gconv/UTF-16.so",
            "/nix/store/abc-libxml2-2.11.5/lib/libxml2.so.2",
            "/srv/app/node_modules/sqlite3/build/Release/node_sqlite3.node",
            "/usr/lib/python3/dist-packages/numpy.libs/libopenblas.so",
        ] {
            assert!(is_system_library(path), "{path}");
        }
        for path in [
            "/usr/bin/git",
            "/usr/lib/git-core/git-remote-http",
            "/usr/lib/shop/libshop.so",
            "/usr/lib/shop/plugins/import.so",
            "/usr/lib/x86_64-linux-gnu/shop/libplugin.so",
            "/usr/lib/x86_64-linux-gnu/plugin.so",
            "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
            "/usr/lib/python3/dist-packages/numpy/core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
            "/srv/venv/lib/python3.11/site-packages/fastjoin.abi3.so",
            "/srv/venv/lib/python3.11/site-packages/torch/lib/libtorch.so",
            "/srv/app/build/Release/addon.node",
            "/opt/shop/lib/libxml2.so.2",
            "/home/me/lib/libmine.so",
            "libxml2.so.2",
            "[vdso]",
            "",
        ] {
            assert!(!is_system_library(path), "{path}");
        }
    }
}
