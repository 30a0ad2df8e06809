// What the reader chose, and the numbers that follow from it. Every view listens. All changes go through `choose`.

/** What can be shown. `unit`: how its numbers are written. `about`: what it means, with and without a range. */
const MEASURES = [
  { id: "live", title: "Live at the end", unit: bytes, about: ["live when the recording ended", "live at the end of the range"] },
  { id: "peak", title: "Live at the peak", unit: bytes, about: ["live at the peak of each process", "live at the peak within the range"] },
  { id: "bytes", title: "Allocated bytes", unit: bytes, about: ["ever allocated, whether freed or not", "allocated in the range"] },
  { id: "allocs", title: "Allocations", unit: count, about: ["calls that allocated or resized", "calls in the range that allocated or resized"] },
  { id: "temporary", title: "Temporary", unit: count, about: ["blocks freed with no event of their thread between", "such blocks freed in the range"] },
  { id: "left", title: "Never freed", unit: bytes, about: ["allocated and never freed", "allocated in the range and not freed by the end of the recording"] },
  { id: "growth", title: "Growth", unit: bytes, about: ["live at the end", "what live bytes grew by from the start of the range to its end"] },
];

const state = {
  measure: "live",
  process: "all",
  from: 0,
  to: 0,
  search: "",
  inverted: false,
  program: false,
  sized: "after",
  group: "site",
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
      if (all.has("from") || all.has("to") || all.has("process")) sums = null;
      for (const listener of listeners) listener(all);
      remember();
    });
  }
  changed.forEach((name) => pending.add(name));
}

/** What most people want first; not every profile knows its peak. */
const usualMeasure = () => (hasPeak() ? "peak" : "live");
const hasPeak = () => page.processes.some((process) => process.has_peak);
const measure = () => MEASURES.find((one) => one.id === state.measure);
const hasRange = () => state.from > 0 || state.to < page.axis.slots;
const hasEvents = () => page.processes.some((process) => process.has_events);

/** Whether a process is shown. */
function isShown(process) {
  return state.process === "all" || state.process === process;
}

function shownProcesses() {
  return page.processes.filter((process) => isShown(process.number));
}

/** Position on the axis of a slot's start. */
function slotStart(slot) {
  return page.axis.length * slot / page.axis.slots;
}

let sums = null;

/** For each row what it did in the range, for every measure. */
function rangeSums() {
  if (sums !== null) return sums;
  const rows = table["row.node"].length;
  const make = () => new Float64Array(rows);
  sums = { live: make(), blocks: make(), peak: make(), bytes: make(), allocs: make(), temporary: make(), left: make(), growth: make(), shrunk: 0 };
  const shown = page.processes.map((process) => isShown(process.number));
  const whole = !hasRange();
  const fullest = whole ? null : fullestSlots();
  const process = table["row.process"];
  const slot = table["cell.slot"];
  const [allocs, taken, frees, freed] = ["allocs", "bytes", "frees", "freed_bytes"].map((name) => table["cell." + name]);
  const [temporary, left] = [table["cell.temporary"], table["cell.left_bytes"]];
  for (let row = 0; row < rows; row++) {
    if (!shown[process[row]]) continue;
    if (whole) {
      sums.allocs[row] = table["row.allocs"][row];
      sums.bytes[row] = table["row.bytes"][row];
      sums.live[row] = table["row.bytes"][row] - table["row.freed_bytes"][row];
      sums.blocks[row] = table["row.allocs"][row] - table["row.frees"][row];
      sums.peak[row] = table["row.peak_bytes"][row];
      sums.temporary[row] = table["row.temporary"][row];
      sums.left[row] = table["row.left_bytes"][row];
      sums.growth[row] = sums.live[row];
      continue;
    }
    const peak = fullest[page.processes[process[row]].recording];
    for (let cell = cellsFrom[row]; cell < cellsFrom[row + 1]; cell++) {
      const at = slot[cell];
      const grown = taken[cell] - freed[cell];
      if (at <= peak) sums.peak[row] += grown;
      if (at >= state.to) continue;
      sums.live[row] += grown;
      sums.blocks[row] += allocs[cell] - frees[cell];
      if (at < state.from) continue;
      sums.growth[row] += grown;
      sums.bytes[row] += taken[cell];
      sums.allocs[row] += allocs[cell];
      sums.temporary[row] += temporary[cell];
      sums.left[row] += left[cell];
    }
  }
  for (const grown of sums.growth) if (grown < 0) sums.shrunk += grown;
  return sums;
}

/** Live bytes of the shown processes of a recording at the end of each slice. */
function liveLine(recording, what = "live") {
  const line = new Float64Array(page.axis.slices);
  for (const process of shownProcesses()) {
    if (process.recording === recording) process.line[what].forEach((value, at) => { line[at] += value; });
  }
  return line;
}

/** Of each recording the slot of the range at whose end most bytes are live. */
function fullestSlots() {
  const wide = page.axis.slices / page.axis.slots;
  return page.recordings.map((_, recording) => {
    const line = liveLine(recording);
    let best = state.from;
    for (let at = state.from; at < state.to; at++) {
      if (line[(at + 1) * wide - 1] > line[(best + 1) * wide - 1]) best = at;
    }
    return best;
  });
}

/** What the chosen measure says of each row. */
function values() {
  return rangeSums()[state.measure];
}

/** The choice is stored in the address, so that a view can be shared. */
function remember() {
  const settings = [];
  const add = (name, value, usual) => { if (value !== usual) settings.push(`${name}=${encodeURIComponent(value)}`); };
  add("show", state.measure, usualMeasure());
  add("process", state.process, "all");
  if (hasRange()) settings.push(`range=${state.from}-${state.to}`);
  add("search", state.search, "");
  add("inverted", state.inverted, false);
  add("program", state.program, false);
  add("sized", state.sized, "after");
  add("group", state.group, "site");
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
    if (name === "search") state.search = value;
    if (name === "inverted" || name === "program") state[name] = value === "true";
    if (name === "sized" && ["after", "before", "change"].includes(value)) state.sized = value;
    if (name === "group" && GROUPS.some((group) => group.id === value)) state.group = value;
  }
}
