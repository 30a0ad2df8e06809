//! Programs in containers, set up as by the files of `packaging/`. `scripts/containers-test` makes
//! the containers of namespaces and control groups.

use heaptape_tests::test_env;
use std::process::Command;

#[test]
fn programs_in_containers_are_recorded_and_have_names() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let root = test_env::root();
    let ended =
        Command::new(root.join("scripts/containers-test")).arg(test_env::command()).output().expect("bash runs");
    let (output, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    if ended.status.code() == Some(2) {
        eprintln!("skipped: {errors}");
        return;
    }
    assert!(ended.status.success(), "{output}{errors}");
    assert!(output.contains("its functions have names"), "{output}");
}
