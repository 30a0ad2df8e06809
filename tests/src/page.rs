//! What the scripts of an exported page make of it, computed by them in Node.

use crate::{Program, test_env};
use serde_json::Value;
use std::path::Path;

/// Runs scripts of the page, beside those that read it.
pub fn read(page: &Path, scripts: &[&str]) -> Value {
    let root = test_env::root();
    let all = ["data.js", "format.js", "state.js"].iter().chain(scripts);
    let all = all.map(|script| root.join("analyzer/src/export/html").join(script));
    let output = Program::new(test_env::need("node")).arg(root.join("tests/clients/page.mjs")).arg(page).args(all);
    let output = output.plain().success().text();
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}
