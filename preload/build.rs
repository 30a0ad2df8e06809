//! Link options of the library: never unloaded (its code may be on any stack), everything bound at
//! start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete,-z,now,-z,relro");
}
