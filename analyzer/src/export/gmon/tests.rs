use super::*;
use crate::export::objects::Frame;

fn frame(object: usize, function: u64) -> Option<Frame> {
    Some(Frame { object, address: function + 5, start: function, end: function + 16 })
}

/// Inclusive sums by gprof's rule, for graphs without cycles: a function's own and its children's
/// amount, handed to its callers in proportion to their arcs.
fn inclusive(table: &Table, function: u64) -> f64 {
    let own: u64 = table.samples.iter().filter(|(address, _)| **address - 5 == function).map(|(_, (_, sum))| sum).sum();
    let calls = |of: u64| {
        let own = |&(&(from, to), _): &(&(u64, u64), &u64)| to == of && from != of + 5;
        table.arcs.iter().filter(own).map(|(_, sum)| *sum).sum::<u64>() as f64
    };
    let children = table.arcs.iter().filter(|((from, to), _)| *from == function + 5 && *to != function);
    children.fold(own as f64, |sum, ((_, to), amount)| sum + inclusive(table, *to) * *amount as f64 / calls(*to))
}

struct Gathered {
    tables: Vec<Table>,
    outside: u64,
}

fn gathered(through: bool, stacks: &[(&[Option<Frame>], u64)]) -> Gathered {
    // Stacks share their outer frames, as a recording's do.
    let mut tree = Tree::default();
    let mut amounts = Vec::new();
    for (stack, amount) in stacks {
        let mut node = 0;
        for frame in stack.iter().rev() {
            let known =
                (1..=tree.frames.len()).find(|&at| tree.parents[at - 1] == node && tree.frames[at - 1] == *frame);
            node = known.map_or_else(
                || {
                    tree.parents.push(node);
                    tree.frames.push(*frame);
                    tree.frames.len() as u32
                },
                |at| at as u32,
            );
        }
        amounts.push((node, *amount));
    }
    let mut gathering = Gathering::new(through);
    gathering.add(&tree, amounts.into_iter());
    let outside = gathering.outside;
    let mut tables = gathering.finish();
    tables.iter_mut().for_each(|table| table.enter(Some(1)));
    Gathered { tables, outside }
}

#[test]
fn inclusive_sums_are_those_of_the_stacks() {
    let (main, a, b, c) = (frame(0, 0x100), frame(0, 0x200), frame(0, 0x300), frame(0, 0x400));
    let stacks: &[(&[_], u64)] = &[
        (&[c, a, main], 10),
        (&[c, b, main], 90),
        // Recursion: once a stack.
        (&[c, c, c, b, main], 7),
        // From outside: nobody inside may be charged with it.
        (&[c], 1000),
        (&[c, frame(1, 0x900), a, main], 300),
        (&[frame(1, 0x900), a, main], 5),
        (&[None, main], 2),
        (&[], 3),
    ];
    let gathering = gathered(false, stacks);
    assert_eq!(gathering.outside, 5);
    let table = &gathering.tables[0];
    let of = |function| inclusive(table, function);
    assert_eq!([of(0x400), of(0x300), of(0x200), of(0x100)], [1407.0, 97.0, 310.0, 407.0]);
    assert_eq!(gathering.tables[1].samples.values().map(|(_, sum)| sum).sum::<u64>(), 5);

    let through = gathered(true, stacks);
    let of = |function| inclusive(&through.tables[0], function);
    assert_eq!([of(0x400), of(0x300), of(0x200), of(0x100)], [1407.0, 97.0, 315.0, 414.0]);
    assert_eq!(inclusive(&through.tables[1], 0x900), 305.0);
}

#[test]
fn a_callback_is_called_by_the_nearest_frame_of_its_object() {
    let (main, callback, library) = (frame(0, 0x100), frame(0, 0x200), frame(1, 0x900));
    let gathering = gathered(false, &[(&[callback, library, library, main], 8)]);
    assert_eq!(gathering.tables[0].arcs, [((0x105, 0x200), 8)].into_iter().collect());
    assert!(gathering.tables.len() == 1);
}

#[test]
fn sums_too_large_for_gprof_are_counted_in_larger_units() {
    let mut table = Table::default();
    let frame = Frame { object: 0, address: 0x105, start: 0x100, end: 0x108 };
    table.sample(&frame, 100 << 30);
    let (gmon, unit) = table.gmon(Measure::AllocBytes, "x", Abi::LE64).unwrap();
    assert_eq!(unit, Some("KiB"));
    let mut totals = Totals::default();
    totals.gmon(&gmon);
    assert_eq!(totals.get("samples"), 100 << 30);
}
