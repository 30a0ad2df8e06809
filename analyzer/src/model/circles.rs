//! Groups of blocks that refer to each other in a circle, directly or not: the strongly connected
//! components of a part of the graph of references, found by Tarjan's algorithm without recursion.

#[derive(Clone, Copy, Default)]
struct State {
    number: u32,
    low: u32,
    is_open: bool,
}

struct Search<'a> {
    blocks: &'a [u32],
    /// Of each block.
    state: Vec<State>,
    count: u32,
    /// Places of blocks in the list.
    open: Vec<usize>,
    found: Vec<Vec<u32>>,
}

/// Returns a group for each circle of these blocks, which are in ascending order, and one for each block that
/// is in none. Later groups refer to earlier ones only. `target` returns the block that a reference of
/// a block leads to, by its number from 0 on.
pub fn circles(blocks: &[u32], target: impl Fn(u32, usize) -> Option<u32>) -> Vec<Vec<u32>> {
    let state = vec![State::default(); blocks.len()];
    let mut search = Search { blocks, state, count: 0, open: Vec::new(), found: Vec::new() };
    for place in 0..blocks.len() {
        if search.state[place].number == 0 {
            search.from(place, &target);
        }
    }
    search.found
}

impl Search<'_> {
    fn begin(&mut self, place: usize) {
        self.count += 1;
        self.state[place] = State { number: self.count, low: self.count, is_open: true };
        self.open.push(place);
    }

    fn from(&mut self, place: usize, target: &impl Fn(u32, usize) -> Option<u32>) {
        let mut path = vec![(place, 0usize)];
        self.begin(place);
        while let Some((place, next)) = path.last_mut() {
            let place = *place;
            let Some(target) = target(self.blocks[place], *next) else {
                path.pop();
                let State { number, low, .. } = self.state[place];
                if let Some((parent, _)) = path.last() {
                    let parent = &mut self.state[*parent];
                    parent.low = parent.low.min(low);
                }
                if number == low {
                    self.close(place);
                }
                continue;
            };
            *next += 1;
            let Ok(target) = self.blocks.binary_search(&target) else { continue };
            let State { number, is_open, .. } = self.state[target];
            if number == 0 {
                self.begin(target);
                path.push((target, 0));
            } else if is_open {
                let state = &mut self.state[place];
                state.low = state.low.min(number);
            }
        }
    }

    fn close(&mut self, place: usize) {
        let mut group = Vec::new();
        while let Some(last) = self.open.pop() {
            self.state[last].is_open = false;
            group.push(self.blocks[last]);
            if last == place {
                break;
            }
        }
        self.found.push(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_of_blocks_are_found() {
        let references = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5), (5, 6)];
        let target = |block, number| {
            references.iter().filter(|(source, _)| *source == block).nth(number).map(|(_, target)| *target)
        };
        let mut found = circles(&[0, 1, 2, 3, 4, 5], target);
        found.iter_mut().for_each(|group| group.sort_unstable());
        assert_eq!(found, [vec![3], vec![0, 1, 2], vec![5], vec![4]]);
    }

    #[test]
    fn a_long_chain_needs_no_deep_stack() {
        let blocks: Vec<u32> = (0..100_000).collect();
        assert_eq!(circles(&blocks, |block, number| (number == 0).then_some(block + 1)).len(), 100_000);
    }
}
