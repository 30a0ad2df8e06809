// Stacks as a tree of functions, callers first or inverted. A node has the values of the two recordings (`a` is the one that is
// shown, `b` the one before) and makes its children on request: only what is drawn is made.

let merged = {};

/** Number, name and module of each function: what frames of the same function and module share. */
let functions = null;

/** What a module is called. Of two recordings both main programs are one module, however their files are called, and libraries are distinguished by
 *  their name up to the first number of their version. */
function moduleNames() {
  if (!COMPARING()) return baseName;
  const main = page.recordings.map((_, recording) => {
    const own = page.processes.filter((process) => process.recording === recording);
    return (own.find((process) => process.origin === "start") ?? own[0])?.exe ?? "";
  });
  const after = baseName(main[1]) || baseName(main[0]);
  return (path) => main.includes(path) && path !== "" ? after : baseName(path).replace(/(\.so\.\d+)\..*$/, "$1");
}

function functionTable() {
  if (functions !== null) return functions;
  const frames = table["frame.function"].length;
  const known = new Map();
  functions = { of: new Int32Array(frames), name: [], short: [], module: [], flags: [], frames: [] };
  const [bases, moduleName] = [new Map(), moduleNames()];
  for (let frame = 0; frame < frames; frame++) {
    const path = table["frame.module"][frame];
    if (!bases.has(path)) bases.set(path, moduleName(strings[path]));
    const module = bases.get(path);
    const name = strings[table["frame.function"][frame]];
    const key = `${name}\n${module}`;
    let number = known.get(key);
    if (number === undefined) {
      number = functions.name.length;
      known.set(key, number);
      functions.name.push(name);
      functions.short.push(strings[table["frame.short"][frame]]);
      functions.frames.push([]);
      functions.module.push(module);
      functions.flags.push(table["frame.flags"][frame]);
    }
    functions.of[frame] = number;
    functions.frames[number].push(frame);
  }
  addFolds();
  return functions;
}

/** Source lines of frames, as the reports have them: `server.cpp:30,31,80`. */
function sourceLines(frames) {
  const files = new Map();
  for (const frame of frames) {
    const [file, line] = [table["frame.file"][frame], table["frame.line"][frame]];
    if (file === 0) continue;
    if (!files.has(file)) files.set(file, new Set());
    if (line > 0) files.get(file).add(line);
  }
  return [...files].slice(0, 2).map(([file, lines]) => {
    const all = [...lines].sort((a, b) => a - b);
    const more = all.length > 5 ? ` and ${all.length - 5} lines more` : "";
    return baseName(strings[file]) + (all.length > 0 ? `:${all.slice(0, 5).join(",")}${more}` : "");
  }).join("; ");
}

/** Adds a function for each interpreter, which stands for a run of its own frames. */
function addFolds() {
  functions.fold = new Map();
  // An executor of async Rust is in the program's own file.
  const programs = new Set(functions.module.filter((_, at) => ((functions.flags[at] >> RANK) & RANKS) === 0 && functions.flags[at] & PROGRAM));
  const title = (module) => `… frames of ${programs.has(module) ? "the runtime" : module}`;
  for (const [at, flags] of [...functions.flags].entries()) {
    const module = functions.module[at];
    if (((flags >> RANK) & RANKS) !== INTERPRETER || functions.fold.has(module)) continue;
    functions.fold.set(module, functions.name.length);
    functions.name.push(title(module));
    functions.short.push(title(module));
    functions.frames.push([]);
    functions.module.push(module);
    functions.flags.push(flags);
  }
}

/** Which nodes are an interpreter's own frames with code of the program inside of them: the text of `leaks` folds these. */
function foldedNodes() {
  const { of, flags } = functionTable();
  const [frame, caller] = [table["node.frame"], table["node.parent"]];
  const [inside, folded] = [new Uint8Array(frame.length), new Uint8Array(frame.length)];
  for (let node = frame.length - 1; node > 0; node--) {
    const own = flags[of[frame[node]]], rank = (own >> RANK) & RANKS;
    if (rank === INTERPRETER && inside[node]) folded[node] = 1;
    if (inside[node] || (rank < INTERPRETER && !(own & MADE_UP))) inside[caller[node]] = 1;
  }
  return folded;
}

/** Nodes of the same function under the same caller become one. Frames of libraries are passed over with `program`, and those of functions that
 *  the reader merged into their callers. */
function mergedNodes(program) {
  const wanted = state.merged.join("\n");
  if (merged.of !== wanted) merged = { of: wanted };
  if (merged[program] !== undefined) return merged[program];
  const { of, flags, name } = functionTable();
  const nodes = table["node.frame"].length;
  const passed = name.map((one, at) => state.merged.includes(one) || program && !(flags[at] & (PROGRAM | MADE_UP)));
  const into = new Int32Array(nodes);
  const folded = program ? foldedNodes() : [];
  // Extensions of an interpreter, such as _ctypes, are in the run of their caller.
  const isFold = new Set(functions.fold.values());
  const known = new Map();
  const [parent, called] = [[0], [-1]];
  for (let node = 1; node < nodes; node++) {
    const above = into[table["node.parent"][node]];
    const own = of[table["node.frame"][node]];
    const function_ = folded[node] ? functions.fold.get(functions.module[own]) : own;
    if (passed[function_] || folded[node] && isFold.has(called[above])) {
      into[node] = above;
      continue;
    }
    const key = above * name.length + function_;
    let number = known.get(key);
    if (number === undefined) {
      number = parent.length;
      known.set(key, number);
      parent.push(above);
      called.push(function_);
    }
    into[node] = number;
  }
  const first = new Int32Array(parent.length), next = new Int32Array(parent.length);
  for (let node = parent.length - 1; node > 0; node--) {
    next[node] = first[parent[node]];
    first[parent[node]] = node;
  }
  merged[program] = { into, parent, called, first, next };
  return merged[program];
}

/** Weight of a node: the width of its bar. */
function weigh(a, b) {
  return state.sized === "before" ? b : state.sized === "change" ? Math.abs(a - b) : a;
}

class FlameNode {
  constructor(called, parent) {
    Object.assign(this, { called, parent, a: 0, b: 0, of: 0, weight: 0, self: 0, children_: null });
    this.depth = parent === null ? 0 : parent.depth + 1;
  }
  get name() { return this.called < 0 ? "all" : functions.name[this.called]; }
  get short() { return this.called < 0 ? "all" : functions.short[this.called]; }
  get module() { return this.called < 0 ? "" : functions.module[this.called]; }
  get children() {
    this.children_ ??= this.make().sort((one, other) => other.weight - one.weight || (one.name < other.name ? -1 : 1));
    return this.children_;
  }
  /** From the root down. */
  get path() {
    const path = [];
    for (let node = this; node !== null; node = node.parent) path.unshift(node);
    return path;
  }
}

/** Callers first. */
class Icicle extends FlameNode {
  constructor(sums, at, parent) {
    super(sums.called[at], parent);
    Object.assign(this, { sums, at, a: sums.a[at], b: sums.b[at], of: sums.of[at], weight: sums.weight[at], self: sums.self[at] });
  }
  /** Source lines of the frames that are this node. */
  get where() {
    return (this.where_ ??= this.lines());
  }
  lines() {
    const frames = new Set();
    this.sums.into.forEach((node, number) => { if (node === this.at) frames.add(table["node.frame"][number]); });
    return sourceLines([...frames].filter((frame) => functions.of[frame] === this.called));
  }
  make() {
    const children = [];
    for (let at = this.sums.first[this.at]; at !== 0; at = this.sums.next[at]) {
      if (this.sums.weight[at] > 0) children.push(new Icicle(this.sums, at, this));
    }
    return children;
  }
}

/** The allocating function first, its callers after it. */
class Inverted extends FlameNode {
  constructor(called, parent) {
    super(called, parent);
    /** Leaves of the merged tree that end in this path, and the node on the way to the root at which each is. */
    this.leaves = [];
    this.ancestors = [];
  }
  add(leaf, ancestor, sums) {
    this.leaves.push(leaf);
    this.ancestors.push(ancestor);
    this.sums = sums;
    this.a += sums.own[leaf];
    this.b += sums.ownBefore[leaf];
    this.of += sums.ownOf[leaf];
    this.weight += sums.ownWeight[leaf];
  }
  get where() { return this.called < 0 ? "" : sourceLines(functions.frames[this.called]); }
  make() {
    const children = new Map();
    this.leaves.forEach((leaf, number) => {
      const ancestor = this.sums.parent[this.ancestors[number]];
      if (ancestor === 0) { this.self += this.sums.ownWeight[leaf]; return; }
      const called = this.sums.called[ancestor];
      if (!children.has(called)) children.set(called, new Inverted(called, this));
      children.get(called).add(leaf, ancestor, this.sums);
    });
    return [...children.values()];
  }
}

/** The tree of what is chosen. */
function flameTree() {
  const nodes = mergedNodes(state.program);
  const size_ = nodes.parent.length;
  const make = () => new Float64Array(size_);
  const sums = { ...nodes, own: make(), ownBefore: make(), ownOf: make(), ownWeight: make(), self: null };
  const { before, after } = sides(state.measure);
  const of = rangeSums()[measure().of[0]];
  const node = table["row.node"];
  for (let row = 0; row < after.length; row++) {
    const leaf = nodes.into[node[row]];
    if (before !== null && before[row] > 0) sums.ownBefore[leaf] += before[row];
    if (!(after[row] > 0)) continue;
    sums.own[leaf] += after[row];
    sums.ownOf[leaf] += Math.max(0, of[row]);
  }
  for (let at = 0; at < size_; at++) sums.ownWeight[at] = weigh(sums.own[at], sums.ownBefore[at]);
  if (state.inverted) {
    const root = new Inverted(-1, null);
    const tops = new Map();
    root.sums = sums;
    for (let leaf = 0; leaf < size_; leaf++) {
      if (!(sums.ownWeight[leaf] > 0)) continue;
      const called = leaf === 0 ? -1 : nodes.called[leaf];
      if (!tops.has(called)) tops.set(called, new Inverted(called, root));
      tops.get(called).add(leaf, leaf, sums);
      root.a += sums.own[leaf];
      root.b += sums.ownBefore[leaf];
      root.of += sums.ownOf[leaf];
      root.weight += sums.ownWeight[leaf];
    }
    root.make = () => [...tops.values()].filter((top) => top.called >= 0);
    return root;
  }
  [sums.a, sums.b, sums.of, sums.weight, sums.self] = [sums.own.slice(), sums.ownBefore.slice(), sums.ownOf.slice(), sums.ownWeight.slice(), sums.ownWeight];
  // Callers have smaller numbers: one pass from the leaves to the root.
  for (let at = size_ - 1; at > 0; at--) {
    sums.a[nodes.parent[at]] += sums.a[at];
    sums.b[nodes.parent[at]] += sums.b[at];
    sums.of[nodes.parent[at]] += sums.of[at];
    sums.weight[nodes.parent[at]] += sums.weight[at];
  }
  return new Icicle(sums, 0, null);
}
