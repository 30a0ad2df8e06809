//! A Rust program for the benchmark: `json-program make N FILE` writes N objects as JSON,
//! `json-program read FILE` parses them into a tree, walks it and drops it, with the system's
//! allocator.
#![forbid(unsafe_code)]

use serde_json::Value;
use std::fmt::Write as _;

fn walk(value: &Value) -> (u64, f64) {
    let add = |(count, sum): (u64, f64), value: &Value| {
        let (more, rest) = walk(value);
        (count + more, sum + rest)
    };
    match value {
        Value::Array(all) => all.iter().fold((1, 0.0), add),
        Value::Object(all) => all.values().fold((1, 0.0), add),
        Value::Number(number) => (1, number.as_f64().unwrap_or(0.0)),
        _ => (1, 0.0),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", count, file] => {
            let count: u64 = count.parse().expect("a number of objects");
            let mut text = String::from("[");
            for i in 0..count {
                let comma = if i == 0 { "" } else { "," };
                let _ = write!(
                    text,
                    "{comma}\n{{\"id\":{i},\"name\":\"user{i}\",\"tags\":[\"a{}\",\"b{}\"],\"at\":{{\"x\":{},\"y\":{}.5}}}}",
                    i % 97,
                    i % 89,
                    i * 3 % 1000,
                    i % 500
                );
            }
            text.push_str("\n]\n");
            std::fs::write(file, text).expect("the file");
        }
        ["read", file] => {
            let text = std::fs::read_to_string(file).expect("the file");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let (count, sum) = walk(&value);
            println!("{count} {sum}");
        }
        _ => panic!("json-program make N FILE | read FILE"),
    }
}
