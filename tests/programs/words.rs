//! A Rust program with collections, strings, threads, reference counts and boxed closures,
//! deterministic to the byte: hash maps have a fixed hasher.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

struct Node {
    name: String,
    children: Vec<Rc<Node>>,
}

#[inline(never)]
fn grow(depth: u32, seed: &mut u64) -> Rc<Node> {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let children = if depth == 0 { Vec::new() } else { (0..*seed >> 62).map(|_| grow(depth - 1, seed)).collect() };
    Rc::new(Node { name: format!("node {:x}", *seed >> 33), children })
}

fn sum(node: &Node) -> usize {
    node.name.len() + node.children.iter().map(|child| sum(child)).sum::<usize>()
}

#[inline(never)]
fn leaves_something_behind() {
    std::mem::forget(std::hint::black_box(vec![0u8; 4441]));
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let mut counts: HashMap<String, Vec<u64>, BuildHasherDefault<DefaultHasher>> = HashMap::default();
    let mut sorted = BTreeMap::new();
    let mut seed = 42;
    for round in 0..rounds {
        let word = format!("word {}", round * 7919 % 5003);
        counts.entry(word.clone()).or_default().push(round);
        if round % 3 == 0 {
            sorted.insert(word, Box::new(move |x: u64| x + round) as Box<dyn Fn(u64) -> u64>);
        }
        if round % 100 == 0 {
            seed += sum(&grow(6, &mut seed)) as u64;
        }
    }
    let total: u64 = sorted.values().map(|function| function(1)).sum();
    leaves_something_behind();
    println!("{} {} {total} {seed}", counts.len(), sorted.len());
}
