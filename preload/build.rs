//! Link options of the library: never unloaded (its code may be on any stack), everything bound at
//! start. The standalone library is linked with nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete,-z,now,-z,relro");
    if std::env::var_os("CARGO_FEATURE_STANDALONE").is_some() {
        println!("cargo:rustc-cdylib-link-arg=-nostdlib");
    }
}
