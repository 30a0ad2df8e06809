//! The call graph: calls between symbols, cycles, and the propagation of time from callees to
//! callers. The algorithm is that of Graham, Kessler and McKusick, "gprof: a call graph execution
//! profiler" (1982).
//!
//! Mutually recursive functions form a cycle, which is treated as one node. Without cycles the
//! graph has a topological order. In this order each callee's time is complete before it is divided
//! among its callers, in proportion to their calls.

use super::symbols::Table;
use heaptape_formats::gmon::Union;
use std::cmp::Ordering;
use std::collections::HashMap;

/// A node of the graph: a symbol or a cycle.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// Samples of the node itself; for a cycle the samples of its members.
    pub time: f64,
    /// Samples of all functions that the node called.
    pub child_time: f64,
    /// Calls from other nodes; for a cycle, calls from outside the cycle.
    pub calls: u64,
    /// Recursive calls; for a cycle, calls between members.
    pub self_calls: u64,
    /// The fraction of the node's time that is shown, 0 to 1.
    pub fraction: f64,
    /// The shown fraction of `time`.
    pub shown_time: f64,
    /// The shown fraction of `child_time`.
    pub shown_child_time: f64,
    /// Whether the node gets an entry.
    pub shown: bool,
    /// Number of the node's cycle, from 1; 0 if it is in none.
    pub cycle: usize,
    /// The node of the cycle, or the node itself if it is in none.
    pub head: usize,
    /// Number of the node in the list of entries, from 1.
    pub index: usize,
    /// Arcs to the node, in the order of printing.
    pub callers: Vec<usize>,
    /// Arcs from the node, in the order of printing.
    pub callees: Vec<usize>,
    /// Members, if the node is a cycle.
    pub members: Vec<usize>,
    /// Number in topological order, callees first; 0 until it is known.
    order: usize,
}

/// The calls from one symbol to another.
#[derive(Clone, Debug)]
pub(super) struct CallArc {
    /// Index of the calling node.
    pub caller: usize,
    /// Index of the called node.
    pub callee: usize,
    /// Number of calls through the arc.
    pub calls: u64,
    /// Samples of the callee that are propagated to the caller.
    pub time: f64,
    /// Samples of the callee's descendants that are propagated to the caller.
    pub child_time: f64,
}

/// The call graph of a profile.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The nodes: symbols, then cycles.
    pub nodes: Vec<Node>,
    /// The arcs between nodes.
    pub arcs: Vec<CallArc>,
    /// Number of nodes that are symbols.
    pub symbols: usize,
    /// The nodes in the order of their index.
    pub entries: Vec<usize>,
    /// Sum of all samples that are shown.
    pub total: f64,
}

/// The options that select arcs, entries and time.
pub(super) struct Filter<'a> {
    /// Returns whether an arc is used (`-k`).
    pub arc: &'a dyn Fn(usize, usize) -> bool,
    /// Calls that exist in the code, executed or not (`-c`).
    pub static_arcs: &'a [(usize, usize)],
    /// Returns whether a symbol gets an entry (`-q`, `-f`, `-Q`, `-e`).
    pub entry: &'a dyn Fn(usize) -> Preference,
    /// Returns whether the time of a symbol is propagated (`-n`, `-F`, `-N`, `-E`).
    pub time: &'a dyn Fn(usize) -> Preference,
}

/// How the options select a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    /// The symbol is selected by name.
    Selected,
    /// The symbol is excluded by name.
    Excluded,
    /// Not named, but other symbols are selected.
    Unselected,
    /// Not named, and no symbol is selected.
    Any,
}

impl Preference {
    /// Returns whether the symbol is shown without regard to its callers.
    fn is_shown_alone(self) -> bool {
        matches!(self, Preference::Selected | Preference::Any)
    }
}

impl Graph {
    /// Builds the graph: assigns the arcs to symbols, finds cycles, propagates time and sorts.
    pub(super) fn new(table: &Table, union: &Union, times: &[f64], filter: &Filter<'_>) -> Graph {
        let mut graph = Graph { symbols: table.symbols.len(), ..Graph::default() };
        let node = |(index, &time): (usize, &f64)| Node { time, head: index, ..Node::default() };
        graph.nodes = times.iter().enumerate().map(node).collect();
        graph.tally(table, union, filter);
        graph.find_cycles();
        graph.propagate(filter);
        graph.sort(table);
        graph
    }

    /// Sums the arcs of the profile by caller and callee. If lines are profiled, the callee is the
    /// entry of the function that contains the called line.
    fn tally(&mut self, table: &Table, union: &Union, filter: &Filter<'_>) {
        let mut known = HashMap::new();
        let mut entry = None;
        let symbols = table.symbols.iter().enumerate();
        let entries: Vec<Option<usize>> = symbols
            .map(|(index, symbol)| {
                entry = if symbol.is_function { Some(index) } else { entry };
                entry
            })
            .collect();
        for arc in &union.arcs {
            let (Some(caller), Some(callee)) = (table.at(arc.from), table.at(arc.to)) else { continue };
            let Some(callee) = entries[callee] else { continue };
            if (filter.arc)(caller, callee) {
                self.add(&mut known, caller, callee, arc.count);
            }
        }
        for &(caller, callee) in filter.static_arcs {
            self.add(&mut known, caller, callee, 0);
        }
        // gprof lists the newest first. Ties in later sorts keep this order.
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
        // Sums wrap as gprof's do: files of 64-bit MinGW have stray bytes in the upper half of counts.
        let calls = &mut self.arcs[index].calls;
        *calls = calls.wrapping_add(count);
        let node = &mut self.nodes[callee];
        let calls = if caller == callee { &mut node.self_calls } else { &mut node.calls };
        *calls = calls.wrapping_add(count);
    }

    /// Finds the cycles, appends a node for each, and numbers all nodes in topological order,
    /// callees first.
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
                        *calls = calls.wrapping_add(arc.calls);
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

    /// Decides what is shown, and propagates time from callees to callers.
    fn propagate(&mut self, filter: &Filter<'_>) {
        let mut sorted: Vec<usize> = (0..self.symbols).collect();
        sorted.sort_by_key(|&node| self.nodes[node].order);
        let mut last_head = usize::MAX;
        for &node in sorted.iter().rev() {
            let head = self.nodes[node].head;
            if head != last_head {
                last_head = head;
                self.inherit(head);
            }
            self.decide(node, filter);
        }
        for cycle in self.symbols..self.nodes.len() {
            let members = std::mem::take(&mut self.nodes[cycle].members);
            let time =
                members.iter().map(|&member| &self.nodes[member]).filter(|m| m.fraction != 0.0).map(|m| m.time).sum();
            let node = &mut self.nodes[cycle];
            node.time = time;
            node.members = members;
            node.shown_time = node.fraction * time;
        }
        for &node in &sorted {
            self.collect(node);
        }
    }

    /// Derives from the callers whether a node is shown, and which fraction of its time.
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

    /// Applies the options: they may show a node without shown callers, or hide a node with shown
    /// callers.
    fn decide(&mut self, index: usize, filter: &Filter<'_>) {
        let node = &mut self.nodes[index];
        let preference = (filter.entry)(index);
        node.shown = if node.shown { preference != Preference::Excluded } else { preference.is_shown_alone() };
        let preference = (filter.time)(index);
        if node.fraction == 0.0 {
            if preference.is_shown_alone() {
                node.fraction = 1.0;
            }
        } else if preference == Preference::Excluded {
            node.fraction = 0.0;
        }
        node.shown_time = node.time * node.fraction;
        self.total += node.shown_time;
    }

    /// Adds to a node its share of the time of each callee.
    fn collect(&mut self, index: usize) {
        if self.nodes[index].fraction == 0.0 {
            return;
        }
        let fraction = self.nodes[index].fraction;
        for position in 0..self.nodes[index].callees.len() {
            let arc_index = self.nodes[index].callees[position];
            let arc = &self.arcs[arc_index];
            let callee = &self.nodes[arc.callee];
            let from = &self.nodes[callee.head];
            if arc.calls == 0 || callee.head == self.nodes[index].head || callee.fraction == 0.0 || from.calls == 0 {
                continue;
            }
            let ratio = arc.calls as f64 / from.calls as f64;
            let (time, child_time) = (from.time * ratio, from.child_time * ratio);
            let share = time + child_time;
            let arc = &mut self.arcs[arc_index];
            arc.time = time * fraction;
            arc.child_time = child_time * fraction;
            let head = self.nodes[index].head;
            let cycle = if head == index { None } else { Some(head) };
            for node in [Some(index), cycle].into_iter().flatten() {
                self.nodes[node].child_time += share;
                self.nodes[node].shown_child_time += fraction * share;
            }
        }
    }
}

/// The state of the depth-first search for cycles. It works without recursion. The members of a
/// cycle are linked in gprof's order, in which ties between them are printed.
struct Search {
    seen: Vec<bool>,
    /// The path to the current node, with the position of the next callee of each node.
    path: Vec<(usize, usize)>,
    /// The nodes on the path that are not in a cycle with an earlier node of the path.
    roots: Vec<usize>,
    /// For each node a link towards the first node of its cycle (union-find).
    heads: Vec<usize>,
    /// For each node the next member of its cycle.
    next: Vec<Option<usize>>,
    /// For the first node of each cycle its last member.
    last: Vec<usize>,
    cycles: Vec<Vec<usize>>,
    /// Number of nodes and cycles that are complete.
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

    /// Returns the first node of the cycle of a node.
    fn head(&mut self, node: usize) -> usize {
        let mut node = node;
        while self.heads[node] != node {
            self.heads[node] = self.heads[self.heads[node]];
            node = self.heads[node];
        }
        node
    }

    /// Closes a cycle: the current node calls `callee`, which is on the path, so all nodes between
    /// them form one cycle.
    fn close(&mut self, callee: usize) {
        let head = self.head(callee);
        let Some(position) = self.roots.iter().rposition(|&root| root == head) else { return };
        for root in self.roots.split_off(position + 1) {
            self.heads[root] = head;
            self.next[self.last[head]] = Some(root);
            self.last[head] = self.last[root];
        }
    }

    /// Returns the members of a cycle, in gprof's order.
    fn members(&self, head: usize) -> Vec<usize> {
        std::iter::successors(Some(head), |&member| self.next[member]).collect()
    }
}

impl Graph {
    /// Numbers the nodes: by time, then cycles first, names without leading underscore first, by
    /// calls, by name.
    fn sort(&mut self, table: &Table) {
        let nodes = &self.nodes;
        let name = |node: usize| table.symbols.get(node).map(|symbol| &*symbol.name);
        let mut entries: Vec<usize> = (0..nodes.len()).collect();
        entries.sort_by(|&left, &right| by_total(&nodes[left], &nodes[right], name(left), name(right)));
        self.entries = entries;
        for (position, &node) in self.entries.iter().enumerate() {
            self.nodes[node].index = position + 1;
        }
        for node in 0..self.nodes.len() {
            let mut callers = std::mem::take(&mut self.nodes[node].callers);
            // gprof prints ties in reverse order.
            callers.reverse();
            callers.sort_by(|&left, &right| self.by_weight(left, right));
            self.nodes[node].callers = callers;
            let mut callees = std::mem::take(&mut self.nodes[node].callees);
            callees.reverse();
            callees.sort_by(|&left, &right| self.by_weight(right, left));
            self.nodes[node].callees = callees;
            let mut members = std::mem::take(&mut self.nodes[node].members);
            let total = |member: usize| self.nodes[member].shown_time + self.nodes[member].shown_child_time;
            let calls =
                |member: usize| u128::from(self.nodes[member].calls) + u128::from(self.nodes[member].self_calls);
            members.sort_by(|&left, &right| total(right).total_cmp(&total(left)).then(calls(right).cmp(&calls(left))));
            self.nodes[node].members = members;
        }
    }

    /// Returns whether caller and callee are the same function or in the same cycle.
    pub(super) fn is_inner(&self, arc: &CallArc) -> bool {
        self.nodes[arc.caller].head == self.nodes[arc.callee].head
    }

    /// Compares arcs by weight: inner arcs by calls and before all others, the others by time and
    /// then by calls.
    fn by_weight(&self, left: usize, right: usize) -> Ordering {
        let (left, right) = (&self.arcs[left], &self.arcs[right]);
        // Recursive calls of a function come first.
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

/// Compares nodes in the order of the list of entries.
fn by_total(left: &Node, right: &Node, left_name: Option<&str>, right_name: Option<&str>) -> Ordering {
    let total = |node: &Node| node.shown_time + node.shown_child_time;
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
