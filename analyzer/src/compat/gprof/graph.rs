//! The call graph: calls between symbols, cycles, and the time that callees pass to their callers, after Graham, Kessler and
//! McKusick, "gprof: a call graph execution profiler" (1982).
//!
//! Mutually recursive functions make a cycle, which is treated as one node: without cycles the graph has an order in which
//! each callee's time is complete before it is divided among its callers, in proportion to their calls.

use super::symbols::Table;
use heaptape_formats::gmon::Union;
use std::cmp::Ordering;
use std::collections::HashMap;

/// A symbol, or behind those a cycle.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Samples of its own; for a cycle those of its members.
    pub time: f64,
    /// Samples of all that it called.
    pub child_time: f64,
    /// Calls from others; for a cycle from outside.
    pub calls: u64,
    /// Calls of itself; for a cycle between members.
    pub self_calls: u64,
    /// The part of its time that is shown.
    pub fraction: f64,
    /// Own samples as far as shown.
    pub own: f64,
    /// Samples of what it called as far as shown.
    pub children: f64,
    /// Whether it gets an entry.
    pub shown: bool,
    /// Number of its cycle; 0 without.
    pub cycle: usize,
    /// The node that stands for it: its cycle, or itself.
    pub head: usize,
    /// Place in the list of entries, from 1.
    pub index: usize,
    /// Arcs to it, and from it, as they are printed.
    pub callers: Vec<usize>,
    /// Arcs from it.
    pub callees: Vec<usize>,
    /// Members, of a cycle.
    pub members: Vec<usize>,
    order: usize,
}

/// Calls from one symbol to another.
#[derive(Clone, Debug)]
pub struct CallArc {
    /// Who called.
    pub caller: usize,
    /// Who was called.
    pub callee: usize,
    /// How often.
    pub calls: u64,
    /// Samples of the callee that count for the caller.
    pub time: f64,
    /// The same of what the callee called.
    pub child_time: f64,
}

/// Nodes and arcs.
#[derive(Debug, Default)]
pub struct Graph {
    /// Symbols, then cycles.
    pub nodes: Vec<Node>,
    /// Arcs.
    pub arcs: Vec<CallArc>,
    /// How many of the nodes are symbols.
    pub symbols: usize,
    /// Nodes by their index.
    pub entries: Vec<usize>,
    /// All samples shown.
    pub total: f64,
}

/// Which symbols get entries and time.
pub struct Choice<'a> {
    /// Whether an arc counts at all (`-k`).
    pub arc: &'a dyn Fn(usize, usize) -> bool,
    /// Arcs that the code has, taken or not (`-c`).
    pub static_arcs: &'a [(usize, usize)],
    /// Asked for by name (`-q`, `-f`), left out by name, and whether none was asked for.
    pub entry: &'a dyn Fn(usize) -> Wish,
    /// The same for time (`-n`, `-F`; `-N`, `-E`).
    pub time: &'a dyn Fn(usize) -> Wish,
}

/// What options say of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Named among those wanted.
    Wanted,
    /// Named among those not wanted.
    Unwanted,
    /// Not named, though others are wanted.
    Other,
    /// Nothing said.
    Any,
}

impl Wish {
    /// By itself.
    fn alone(self) -> bool {
        matches!(self, Wish::Wanted | Wish::Any)
    }
}

impl Graph {
    /// Builds the graph: charges the arcs, finds cycles, passes time on, sorts.
    pub fn new(table: &Table, union: &Union, times: &[f64], choice: &Choice<'_>) -> Graph {
        let mut graph = Graph { symbols: table.symbols.len(), ..Graph::default() };
        let node = |(index, &time): (usize, &f64)| Node { time, head: index, ..Node::default() };
        graph.nodes = times.iter().enumerate().map(node).collect();
        graph.tally(table, union, choice);
        graph.find_cycles();
        graph.propagate(choice);
        graph.sort(table);
        graph
    }

    /// Adds the file's arcs up to arcs between symbols. A call is one of the function: from a line in it back to its entry.
    fn tally(&mut self, table: &Table, union: &Union, choice: &Choice<'_>) {
        let mut known = HashMap::new();
        let mut entry = None;
        let symbols = table.symbols.iter().enumerate();
        let entries: Vec<Option<usize>> = symbols
            .map(|(index, symbol)| {
                entry = if symbol.function { Some(index) } else { entry };
                entry
            })
            .collect();
        for arc in &union.arcs {
            let (Some(caller), Some(callee)) = (table.at(arc.from), table.at(arc.to)) else { continue };
            let Some(callee) = entries[callee] else { continue };
            if (choice.arc)(caller, callee) {
                self.add(&mut known, caller, callee, arc.count);
            }
        }
        for &(caller, callee) in choice.static_arcs {
            self.add(&mut known, caller, callee, 0);
        }
        // gprof lists the newest first; ties in later sorts show it.
        for node in &mut self.nodes {
            node.callees.reverse();
            node.callers.reverse();
        }
    }

    fn add(&mut self, known: &mut HashMap<(usize, usize), usize>, caller: usize, callee: usize, count: u64) {
        let index = *known.entry((caller, callee)).or_insert(self.arcs.len());
        if index == self.arcs.len() {
            self.arcs.push(CallArc { caller, callee, calls: 0, time: 0.0, child_time: 0.0 });
            self.nodes[caller].callees.push(index);
            self.nodes[callee].callers.push(index);
        }
        let calls = &mut self.arcs[index].calls;
        *calls = calls.saturating_add(count);
        let node = &mut self.nodes[callee];
        let calls = if caller == callee { &mut node.self_calls } else { &mut node.calls };
        *calls = calls.saturating_add(count);
    }

    /// Finds cycles, appends a node for each, and numbers all nodes callees first.
    fn find_cycles(&mut self) {
        let mut search = Search::new(self.symbols);
        for root in 0..self.symbols {
            if !search.seen[root] {
                self.search(root, &mut search);
            }
        }
        let mut cycles = std::mem::take(&mut search.cycles);
        cycles.sort_by_key(|members| members[0]);
        for (number, members) in cycles.into_iter().enumerate() {
            let head = self.nodes.len();
            let mut cycle = Node { cycle: number + 1, head, order: self.nodes[members[0]].order, ..Node::default() };
            for &member in &members {
                self.nodes[member].head = head;
                self.nodes[member].cycle = number + 1;
            }
            for &member in &members {
                for arc in self.nodes[member].callers.iter().map(|&arc| &self.arcs[arc]) {
                    let from = self.nodes[arc.caller].head;
                    let calls = if from == head { &mut cycle.self_calls } else { &mut cycle.calls };
                    if arc.caller != member {
                        *calls = calls.saturating_add(arc.calls);
                    }
                }
            }
            cycle.members = members;
            self.nodes.push(cycle);
        }
    }

    fn search(&mut self, root: usize, search: &mut Search) {
        search.enter(root);
        while let Some((node, next)) = search.path.last_mut() {
            let node = *node;
            let Some(&arc) = self.nodes[node].callees.get(*next) else {
                search.path.pop();
                if search.head(node) == node {
                    search.roots.pop();
                    search.done += 1;
                    let members = search.members(node);
                    members.iter().for_each(|&member| self.nodes[member].order = search.done);
                    if members.len() > 1 {
                        search.cycles.push(members);
                    }
                }
                continue;
            };
            *next += 1;
            let callee = self.arcs[arc].callee;
            if !search.seen[callee] {
                search.enter(callee);
            } else if self.nodes[callee].order == 0 {
                search.close(callee);
            }
        }
    }

    /// Decides what is shown, passes time from callees to callers, and gives indexes.
    fn propagate(&mut self, choice: &Choice<'_>) {
        let mut sorted: Vec<usize> = (0..self.symbols).collect();
        sorted.sort_by_key(|&node| self.nodes[node].order);
        let mut last_head = usize::MAX;
        for &node in sorted.iter().rev() {
            let head = self.nodes[node].head;
            if head != last_head {
                last_head = head;
                self.inherit(head);
            }
            self.decide(node, choice);
        }
        for cycle in self.symbols..self.nodes.len() {
            let members = std::mem::take(&mut self.nodes[cycle].members);
            let time =
                members.iter().map(|&member| &self.nodes[member]).filter(|m| m.fraction != 0.0).map(|m| m.time).sum();
            let node = &mut self.nodes[cycle];
            node.time = time;
            node.members = members;
            node.own = node.fraction * time;
        }
        for &node in &sorted {
            self.collect(node);
        }
    }

    /// A node that was called is shown, and passes time on, as its callers do.
    fn inherit(&mut self, head: usize) {
        let members = if head < self.symbols { vec![head] } else { self.nodes[head].members.clone() };
        let (mut shown, mut fraction) = (false, 0.0);
        let calls = self.nodes[head].calls;
        for arc in members.iter().flat_map(|&member| &self.nodes[member].callers).map(|&arc| &self.arcs[arc]) {
            let caller = &self.nodes[arc.caller];
            if caller.head == head {
                continue;
            }
            shown |= caller.shown;
            if calls != 0 {
                fraction += caller.fraction * (arc.calls as f64 / calls as f64);
            }
        }
        for node in members.into_iter().chain([head]) {
            self.nodes[node].shown = shown;
            self.nodes[node].fraction = fraction;
        }
    }

    /// Options may show what has no shown caller, or hide what has.
    fn decide(&mut self, index: usize, choice: &Choice<'_>) {
        let node = &mut self.nodes[index];
        let wish = (choice.entry)(index);
        node.shown = if node.shown { wish != Wish::Unwanted } else { wish.alone() };
        let wish = (choice.time)(index);
        if node.fraction == 0.0 {
            if wish.alone() {
                node.fraction = 1.0;
            }
        } else if wish == Wish::Unwanted {
            node.fraction = 0.0;
        }
        node.own = node.time * node.fraction;
        self.total += node.own;
    }

    /// Takes a node's shares of the time of all that it called.
    fn collect(&mut self, index: usize) {
        if self.nodes[index].fraction == 0.0 {
            return;
        }
        let fraction = self.nodes[index].fraction;
        for place in 0..self.nodes[index].callees.len() {
            let arc_index = self.nodes[index].callees[place];
            let arc = &self.arcs[arc_index];
            let callee = &self.nodes[arc.callee];
            let from = &self.nodes[callee.head];
            if arc.calls == 0 || callee.head == self.nodes[index].head || callee.fraction == 0.0 || from.calls == 0 {
                continue;
            }
            let part = arc.calls as f64 / from.calls as f64;
            let (time, child_time) = (from.time * part, from.child_time * part);
            let share = time + child_time;
            let arc = &mut self.arcs[arc_index];
            arc.time = time * fraction;
            arc.child_time = child_time * fraction;
            let head = self.nodes[index].head;
            let twice = if head == index { None } else { Some(head) };
            for node in [Some(index), twice].into_iter().flatten() {
                self.nodes[node].child_time += share;
                self.nodes[node].children += fraction * share;
            }
        }
    }
}

/// The state of the search for cycles: depth first, without recursion. Members of a cycle are linked in the order in which
/// gprof links them, as ties between them are printed in it.
struct Search {
    seen: Vec<bool>,
    /// The way to the present node, with the next callee of each.
    path: Vec<(usize, usize)>,
    /// The nodes on it that are not in a cycle with an earlier one.
    roots: Vec<usize>,
    /// Towards the earliest node of a node's cycle.
    heads: Vec<usize>,
    /// The next member of the same cycle, and of a head the last.
    next: Vec<Option<usize>>,
    last: Vec<usize>,
    cycles: Vec<Vec<usize>>,
    /// Numbers given.
    done: usize,
}

impl Search {
    fn new(nodes: usize) -> Search {
        Search {
            seen: vec![false; nodes],
            path: Vec::new(),
            roots: Vec::new(),
            heads: (0..nodes).collect(),
            next: vec![None; nodes],
            last: (0..nodes).collect(),
            cycles: Vec::new(),
            done: 0,
        }
    }

    fn enter(&mut self, node: usize) {
        self.seen[node] = true;
        self.path.push((node, 0));
        self.roots.push(node);
    }

    fn head(&mut self, node: usize) -> usize {
        let mut node = node;
        while self.heads[node] != node {
            self.heads[node] = self.heads[self.heads[node]];
            node = self.heads[node];
        }
        node
    }

    /// The present node calls one whose cycle is still open: all from there to here are one cycle.
    fn close(&mut self, callee: usize) {
        let head = self.head(callee);
        let Some(place) = self.roots.iter().rposition(|&root| root == head) else { return };
        for root in self.roots.split_off(place + 1) {
            self.heads[root] = head;
            self.next[self.last[head]] = Some(root);
            self.last[head] = self.last[root];
        }
    }

    fn members(&self, head: usize) -> Vec<usize> {
        std::iter::successors(Some(head), |&member| self.next[member]).collect()
    }
}

impl Graph {
    /// Gives every node its index: by time, then cycles, then names without a leading underscore, calls, names.
    fn sort(&mut self, table: &Table) {
        let nodes = &self.nodes;
        let name = |node: usize| table.symbols.get(node).map(|symbol| &*symbol.name);
        let mut entries: Vec<usize> = (0..nodes.len()).collect();
        entries.sort_by(|&left, &right| by_total(&nodes[left], &nodes[right], name(left), name(right)));
        self.entries = entries;
        for (place, &node) in self.entries.iter().enumerate() {
            self.nodes[node].index = place + 1;
        }
        for node in 0..self.nodes.len() {
            let mut callers = std::mem::take(&mut self.nodes[node].callers);
            // Ties come out in reverse.
            callers.reverse();
            callers.sort_by(|&left, &right| self.by_weight(left, right));
            self.nodes[node].callers = callers;
            let mut callees = std::mem::take(&mut self.nodes[node].callees);
            callees.reverse();
            callees.sort_by(|&left, &right| self.by_weight(right, left));
            self.nodes[node].callees = callees;
            let mut members = std::mem::take(&mut self.nodes[node].members);
            let total = |member: usize| self.nodes[member].own + self.nodes[member].children;
            let calls =
                |member: usize| u128::from(self.nodes[member].calls) + u128::from(self.nodes[member].self_calls);
            members.sort_by(|&left, &right| total(right).total_cmp(&total(left)).then(calls(right).cmp(&calls(left))));
            self.nodes[node].members = members;
        }
    }

    /// Whether an arc stays within a function or a cycle.
    pub fn is_inner(&self, arc: &CallArc) -> bool {
        self.nodes[arc.caller].head == self.nodes[arc.callee].head
    }

    /// Arcs by what they carry: inner ones by calls before all others, those by time and calls.
    fn by_weight(&self, left: usize, right: usize) -> Ordering {
        let (left, right) = (&self.arcs[left], &self.arcs[right]);
        // A function's calls of itself before everything.
        let rank = |arc: &CallArc| match (arc.caller == arc.callee, self.is_inner(arc)) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        };
        let time = |arc: &CallArc| arc.time + arc.child_time;
        match rank(left).cmp(&rank(right)) {
            Ordering::Equal if rank(left) == 2 => time(left).total_cmp(&time(right)).then(left.calls.cmp(&right.calls)),
            Ordering::Equal => left.calls.cmp(&right.calls),
            other => other,
        }
    }
}

fn by_total(left: &Node, right: &Node, left_name: Option<&str>, right_name: Option<&str>) -> Ordering {
    let total = |node: &Node| node.own + node.children;
    let by_time = total(right).total_cmp(&total(left));
    by_time.then_with(|| match (left_name, right_name) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(one), Some(other)) => {
            let hidden = |name: &str| name.starts_with('_');
            hidden(one)
                .cmp(&hidden(other))
                .then(right.calls.cmp(&left.calls))
                .then_with(|| one.as_bytes().cmp(other.as_bytes()))
        }
    })
}
