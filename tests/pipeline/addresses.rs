//! `heaptape address`: the blocks that contained an address.

use heaptape_tests::{Program, target};
use serde_json::Value;

#[test]
fn blocks_of_an_address_are_listed_with_their_users() {
    let recording = Program::new(target::c("one_address")).recorded().success().complete();
    let printed = recording.outcome.text();
    let (address, same) = printed.trim().split_once(' ').expect("an address and whether it was used again");
    assert_eq!(same, "1", "the allocator uses the address three times");

    let answer = recording.heaptape(&["address", "--json", address]).success();
    let value: Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    let blocks = value["processes"][0]["blocks"].as_array().expect("blocks");
    let user = |block: &Value| {
        let stack = block["begin"]["stack"].as_array().cloned().unwrap_or_default();
        stack
            .iter()
            .filter_map(|frame| frame["function"].as_str())
            .find(|name| name.ends_with("_user"))
            .map(String::from)
    };
    let users: Vec<Option<String>> = blocks.iter().map(user).collect();
    let expected = ["third_user", "second_user", "first_user"].map(|name| Some(name.to_string()));
    assert_eq!(users, expected, "newest first");
    let states: Vec<&str> = blocks.iter().filter_map(|block| block["state"].as_str()).collect();
    assert_eq!(states, ["live", "freed", "freed"]);
    assert_eq!(blocks[1]["begin"]["function"], "calloc");

    // Any byte of a block finds it.
    let inside = u64::from_str_radix(address, 16).expect("hexadecimal") + 2995;
    let answer = recording.heaptape(&["address", &format!("{inside:#x}")]).success();
    let text = answer.text();
    assert!(text.contains("2 blocks contained it") && text.contains("byte 2995 of 3,000 bytes"), "{text}");
    assert!(text.contains("second_user one_address.c:8") && !text.contains("third_user"), "{text}");

    // Beside all blocks: no answer, but the nearest block.
    let answer = recording.heaptape(&["address", &format!("{:#x}", inside + 5)]);
    assert_eq!(answer.code(), 2, "{answer}");
    assert!(answer.text().contains("which ends 0 bytes before it"), "{answer}");
    assert!(answer.error().contains("no recorded block contained the address"), "{answer}");
    assert_eq!(recording.heaptape(&["address", "main"]).code(), 2);
}
