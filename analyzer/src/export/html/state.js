// What the reader chose, and the numbers that follow from it. Every view listens. All changes go through `choose`.

/** What can be shown. `unit`: how its numbers are written. `about`: what it means, with and without a range. `of`: the number of blocks or
 *  calls, or the bytes, that belong to its numbers. */
const MEASURES = [
  { id: "live", title: "Live at the end", of: ["blocks", "block"], unit: bytes, about: ["live when the recording ended", "live at the end of the range"] },
  { id: "peak", title: "Live at the peak", of: ["peak_blocks", "block"], unit: bytes, about: ["live at the peak", "live at the peak within the range"] },
  { id: "bytes", title: "Allocated bytes", of: ["allocs", "allocation"], unit: bytes, about: ["ever allocated, whether freed or not", "allocated in the range"] },
  { id: "allocs", title: "Allocations", of: ["bytes"], unit: count, about: ["calls that allocated or resized", "calls in the range that allocated or resized"] },
  { id: "temporary", title: "Temporary", of: ["temporary_bytes"], unit: count, about: ["blocks freed with no event of their thread between", "such blocks freed in the range"] },
  { id: "left", title: "Never freed", of: ["left_blocks", "block"], unit: bytes, about: ["allocated and never freed", "allocated in the range and not freed by the end of the recording"] },
  { id: "growth", title: "Growth", of: ["blocks", "live block"], unit: bytes, about: ["live at the end", "more live at the end of the range than at its start"] },
];

const state = {
  measure: "live",
  process: "all",
  thread: "all",
  from: 0,
  to: 0,
  /** The range that the other one is compared with; `baseTo` is 0 without it. */
  baseFrom: 0,
  baseTo: 0,
  search: "",
  inverted: false,
  program: false,
  /** The flame graph as a table. */
  listed: false,
  /** Functions that are merged into their callers, and those whose stacks are left out. */
  merged: [],
  without: [],
  sized: "after",
  group: "site",
  /** What the timeline is stacked by: nothing, functions, modules or threads. */
  stacked: "total",
  /** The function whose callers and callees are shown; the largest if empty. */
  focus: "",
};

const listeners = [];
let pending = null;

/** A view: called with the names of what changed. */
function whenChosen(listener) {
  listeners.push(listener);
}

function choose(change) {
  const changed = Object.keys(change).filter((name) => state[name] !== change[name]);
  if (changed.length === 0) return;
  Object.assign(state, change);
  if (pending === null) {
    pending = new Set();
    requestAnimationFrame(() => {
      const all = pending;
      pending = null;
      if (["from", "to", "baseFrom", "baseTo", "process", "thread", "without"].some((name) => all.has(name))) sums = base = rowsShown = null;
      for (const listener of listeners) listener(all);
      remember();
    });
  }
  changed.forEach((name) => pending.add(name));
}

/** What most people want first; not every profile knows its peak. */
const usualMeasure = () => (hasPeak() ? "peak" : "live");
const hasPeak = () => page.processes.some((process) => process.has_peak);
/** The names of functions in the address: one a line. */
const NAMES = ["merged", "without"];
const measure = () => MEASURES.find((one) => one.id === state.measure);
const hasRange = () => state.from > 0 || state.to < page.axis.slots;
const hasEvents = () => page.processes.some((process) => process.has_events);

/** Whether two ranges of the run are compared. */
const hasBase = () => state.baseTo > 0 && !COMPARING();
/** Whether two recordings, or two ranges, are compared. */
const comparing = () => COMPARING() || hasBase();

/** Whether a process is shown. */
function isShown(process) {
  return state.process === "all" || state.process === process;
}

/** Names of the groups of threads of all shown processes, in their order. */
function threadNames() {
  return [...new Set(shownProcesses().flatMap((process) => process.groups.map((group) => group.name)))];
}

let rowsShown = null;

/** For each row whether its process and its thread are shown. */
function shownRows() {
  if (rowsShown !== null) return rowsShown;
  const groups = page.processes.map((process) => process.groups.map((group) => group.name));
  const [process, threads] = [table["row.process"], table["row.threads"]];
  const alone = state.thread !== "all";
  const left = leftOut();
  rowsShown = Uint8Array.from(process, (number, row) => Number(isShown(number) && (!alone || groups[number][threads[row]] === state.thread) && !left(table["row.node"][row])));
  return rowsShown;
}

/** Whether a stack has one of the functions that are left out. */
function leftOut() {
  if (state.without.length === 0) return () => false;
  const { of, name } = functionTable();
  const gone = name.map((one) => state.without.includes(one));
  const [parent, frame] = [table["node.parent"], table["node.frame"]];
  // Callers have smaller numbers.
  const has = new Uint8Array(parent.length);
  for (let node = 1; node < has.length; node++) has[node] = has[parent[node]] || Number(gone[of[frame[node]]]);
  return (node) => has[node] === 1;
}

function shownProcesses() {
  return page.processes.filter((process) => isShown(process.number));
}

/** The last of `count_` equal parts of the axis in which a process runs. It holds nothing afterwards. */
function lastPart(process, count_) {
  return Math.min(count_ - 1, Math.floor(process.span[1] / page.axis.length * count_));
}

/** Whether these processes have their peak together: several ones with a time line. One has an exact peak of its own. */
const peakTogether = (processes) => processes.length > 1 && processes.every((process) => process.has_events);

/** The slot in which the most bytes of some processes are live at its end, and how many. */
function fullestOf(processes, from, to) {
  const wide = page.axis.slices / page.axis.slots;
  let best = { slot: from, bytes: -1 };
  for (let slot = from; slot < to; slot++) {
    const live = processes.reduce((sum, process) => sum + (slot <= lastPart(process, page.axis.slots) ? process.line.live[(slot + 1) * wide - 1] ?? 0 : 0), 0);
    if (live > best.bytes) best = { slot, bytes: live };
  }
  return best;
}

/** Position on the axis of a slot's start. */
function slotStart(slot) {
  return page.axis.length * slot / page.axis.slots;
}

let sums = null;
let base = null;

/** For each row what it did in the range, for every measure. */
function rangeSums() {
  sums ??= sumsOf(state.from, state.to);
  return sums;
}

/** The same for the range that the other one is compared with. */
function baseSums() {
  base ??= sumsOf(state.baseFrom, state.baseTo);
  return base;
}

function sumsOf(from, to) {
  const rows = table["row.node"].length;
  const make = () => new Float64Array(rows);
  const found = { live: make(), blocks: make(), peak: make(), peak_blocks: make(), bytes: make(), allocs: make(), temporary: make(), temporary_bytes: make(), left: make(), left_blocks: make(), growth: make(), shrunk: 0 };
  const shown = shownRows();
  const whole = from === 0 && to === page.axis.slots;
  const fullest = fullestSlots(from, to);
  const together = page.recordings.map((_, recording) => peakTogether(shownProcesses().filter((one) => one.recording === recording)));
  const process = table["row.process"];
  const slot = table["cell.slot"];
  const [allocs, taken, frees, freed] = ["allocs", "bytes", "frees", "freed_bytes"].map((name) => table["cell." + name]);
  const [temporary, temporaryBytes, left, leftBytes] = ["temporary", "temporary_bytes", "left", "left_bytes"].map((name) => table["cell." + name]);
  for (let row = 0; row < rows; row++) {
    if (!shown[row]) continue;
    if (whole) {
      const own = (name) => table["row." + name][row];
      found.allocs[row] = own("allocs");
      found.bytes[row] = own("bytes");
      found.live[row] = own("bytes") - own("freed_bytes");
      found.blocks[row] = own("allocs") - own("frees");
      found.peak[row] = own("peak_bytes");
      found.peak_blocks[row] = own("peak_blocks");
      found.temporary[row] = own("temporary");
      found.temporary_bytes[row] = own("temporary_bytes");
      found.left[row] = own("left_bytes");
      found.left_blocks[row] = own("left");
      found.growth[row] = found.live[row];
      if (!together[page.processes[process[row]].recording]) continue;
      found.peak[row] = found.peak_blocks[row] = 0;
    }
    const one = page.processes[process[row]];
    // A process that has ended holds nothing.
    const peak = fullest[one.recording] <= lastPart(one, page.axis.slots) ? fullest[one.recording] : -1;
    for (let cell = cellsFrom[row]; cell < cellsFrom[row + 1]; cell++) {
      const at = slot[cell];
      const grown = taken[cell] - freed[cell], more = allocs[cell] - frees[cell];
      if (at <= peak) {
        found.peak[row] += grown;
        found.peak_blocks[row] += more;
      }
      if (whole || at >= to) continue;
      found.live[row] += grown;
      found.blocks[row] += more;
      if (at < from) continue;
      found.growth[row] += grown;
      found.bytes[row] += taken[cell];
      found.allocs[row] += allocs[cell];
      found.temporary[row] += temporary[cell];
      found.temporary_bytes[row] += temporaryBytes[cell];
      found.left[row] += leftBytes[cell];
      found.left_blocks[row] += left[cell];
    }
  }
  for (const grown of found.growth) if (grown < 0) found.shrunk += grown;
  return found;
}

/** What one of the sums is for each row before and after: of two recordings, or of two ranges. Without a comparison all is after. */
function sides(id) {
  const all = rangeSums()[id];
  if (!comparing()) return { before: null, after: all };
  if (!COMPARING()) return { before: baseSums()[id], after: all };
  const process = table["row.process"];
  const of = (side) => all.map((value, row) => (page.processes[process[row]].recording === side ? value : 0));
  return { before: of(0), after: of(1) };
}

/** Live bytes of the shown processes of a recording at the end of each slice. */
function liveLine(recording, what = "live") {
  const line = new Float64Array(page.axis.slices);
  if (state.thread !== "all") return threadLine(line, recording, what);
  for (const process of shownProcesses()) {
    const last = lastPart(process, line.length);
    if (process.recording === recording) process.line[what].forEach((value, at) => { if (at <= last) line[at] += value; });
  }
  return line;
}

/** The same of the chosen threads: in slots, which is what is known of threads. */
function threadLine(line, recording, what) {
  const wide = page.axis.slices / page.axis.slots;
  const [plus, minus] = what === "blocks" ? ["allocs", "frees"] : what === "allocs" ? ["allocs", null] : ["bytes", "freed_bytes"];
  const slots = slotChanges((row) => (page.processes[table["row.process"][row]].recording === recording ? 0 : -1), 1, plus, minus)[0];
  let live = 0;
  for (let at = 0; at < line.length; at++) {
    const slot = Math.floor(at / wide);
    if (at % wide === 0) live = what === "allocs" ? slots[slot] / wide : live + slots[slot];
    line[at] = Math.max(0, live);
  }
  return line;
}

/** For each of `count_` groups the change in each slot; `groupOf` of a row is -1 if it counts for none. */
function slotChanges(groupOf, count_, plus = "bytes", minus = "freed_bytes") {
  const changes = Array.from({ length: count_ }, () => new Float64Array(page.axis.slots));
  const shown = shownRows();
  const [slot, more, less] = [table["cell.slot"], table["cell." + plus], minus && table["cell." + minus]];
  for (let row = 0; row < shown.length; row++) {
    const group = shown[row] ? groupOf(row) : -1;
    if (group < 0) continue;
    let left = 0;
    for (let cell = cellsFrom[row]; cell < cellsFrom[row + 1]; cell++) {
      const change = more[cell] - (less ? less[cell] : 0);
      changes[group][slot[cell]] += change;
      left += change;
    }
    const after = lastPart(page.processes[table["row.process"][row]], page.axis.slots) + 1;
    if (less && after < page.axis.slots) changes[group][after] -= left;
  }
  return changes;
}

/** Of each recording the slot of a range at whose end most bytes are live. */
function fullestSlots(from, to) {
  const wide = page.axis.slices / page.axis.slots;
  return page.recordings.map((_, recording) => {
    const own = shownProcesses().filter((process) => process.recording === recording);
    if (state.thread === "all" && peakTogether(own)) return fullestOf(own, from, to).slot;
    const line = liveLine(recording);
    let best = from;
    for (let at = from; at < to; at++) {
      if (line[(at + 1) * wide - 1] > line[(best + 1) * wide - 1]) best = at;
    }
    return best;
  });
}

/** The values of the chosen measure for each row. */
function values() {
  return rangeSums()[state.measure];
}

/** The choice is stored in the address, so that a view can be shared. */
function remember() {
  const settings = [];
  const add = (name, value, usual) => { if (value !== usual) settings.push(`${name}=${encodeURIComponent(value)}`); };
  add("show", state.measure, usualMeasure());
  add("process", state.process, "all");
  add("thread", state.thread, "all");
  if (hasRange()) settings.push(`range=${state.from}-${state.to}`);
  if (hasBase()) settings.push(`base=${state.baseFrom}-${state.baseTo}`);
  add("search", state.search, "");
  add("inverted", state.inverted, false);
  add("program", state.program, false);
  add("listed", state.listed, false);
  for (const name of NAMES) add(name, state[name].join("\n"), "");
  add("sized", state.sized, "after");
  add("group", state.group, "site");
  add("stacked", state.stacked, "total");
  add("function", state.focus, "");
  try {
    history.replaceState(null, "", settings.length > 0 ? "#" + settings.join("&") : location.pathname + location.search);
  } catch {
    // Some viewers show files without an address.
  }
}

/** The choice that the address holds. Every value is checked. */
function recall() {
  state.to = page.axis.slots;
  state.measure = usualMeasure();
  for (const setting of location.hash.slice(1).split("&")) {
    const [name, raw = ""] = setting.split("=");
    let value = "";
    try { value = decodeURIComponent(raw); } catch { continue; }
    const range = /^(\d+)-(\d+)$/.exec(value);
    if (name === "show" && MEASURES.some((one) => one.id === value)) state.measure = value;
    if (name === "process" && page.processes[Number(value)] && value !== "") state.process = Number(value);
    if (name === "range" && range && Number(range[1]) < Number(range[2]) && Number(range[2]) <= page.axis.slots) {
      [state.from, state.to] = [Number(range[1]), Number(range[2])];
    }
    if (name === "base" && range && Number(range[1]) < Number(range[2]) && Number(range[2]) <= page.axis.slots) {
      [state.baseFrom, state.baseTo] = [Number(range[1]), Number(range[2])];
    }
    if (name === "thread" && page.processes.some((process) => process.groups.some((group) => group.name === value))) state.thread = value;
    if (name === "stacked" && stackedKinds().some((kind) => kind.id === value)) state.stacked = value;
    if (name === "function") state.focus = value;
    if (name === "search") state.search = value;
    if (NAMES.includes(name)) state[name] = value.split("\n").filter(Boolean);
    if (["inverted", "program", "listed"].includes(name)) state[name] = value === "true";
    if (name === "sized" && ["after", "before", "change"].includes(value)) state.sized = value;
    if (name === "group" && GROUPS.some((group) => group.id === value)) state.group = value;
  }
}
