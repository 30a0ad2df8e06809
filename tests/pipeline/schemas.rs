//! What the commands print with `--json` has the schemas in `docs/schemas`.

use heaptape_tests::test_env;
use std::process::Command;

#[test]
fn json_output_has_the_published_schemas() {
    let script = test_env::programs().join("../../scripts/json-schemas");
    let output = Command::new("python3").arg(script).arg("--heaptape").arg(test_env::command()).output();
    let output = output.expect("python3 runs the script");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(" schemas, 0 faults"), "{text}");
}
