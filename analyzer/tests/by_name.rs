//! Filters and groups by function and module need names: of a profile, which brings its own.

use crate::made;

use heaptape_analyzer::report::{GroupBy, Grouping, Query, View};

use heaptape_analyzer::text::Style;
use heaptape_reports::sites;
use made::{Options, Step};
use serde_json::Value;

#[test]
fn stacks_are_grouped_by_the_requested_key() {
    let step = |index, site| Step::Alloc { index, size: 10, site, thread: 1, tick: 200 + index };
    let steps: Vec<Step> = (1..=8).map(|index| step(index, index as u32)).collect();
    let (_dir, path) = made::recording(&steps, &Options::default());
    let rows = |by: Option<GroupBy>| {
        let query = Query { grouping: Grouping(by), ..Query::of(&path, View::json(100)) };
        let mut out = Vec::new();
        sites::run(&query, &mut out, Style::PLAIN).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        value["processes"][0]["sites"].as_array().unwrap().clone()
    };
    assert_eq!(rows(Some(GroupBy::Stack)).len(), 8, "each site is another stack");
    assert_eq!(rows(Some(GroupBy::Function)).len(), 8, "without names, addresses distinguish them");
    let modules = rows(Some(GroupBy::Module));
    assert_eq!(modules.len(), 1);
    assert_eq!(modules[0]["bytes"], 80);
    assert_eq!(modules[0]["place"], "(unknown)");
}
