// The timeline as a stack of areas: which functions, modules or threads the live bytes belong to.

const STACKED = [
  { id: "total", title: "Total", about: "All live bytes" },
  { id: "function", title: "Functions", about: "Live bytes by the innermost function of the program" },
  { id: "module", title: "Modules", about: "Live bytes by the module of that function" },
  { id: "resident", title: "Resident", about: "The resident memory by what it is used for, at the snapshots of the pages" },
  { id: "threads", title: "Threads", about: "Live bytes by the thread that allocated them" },
];
/** Areas that are distinguished; the others are one. */
const AREAS = 8;
let areasCache = { key: "", areas: [] };

/** The parts of resident memory, as `heaptape rss` names them, lowest first. */
const RESIDENT = [
  ["live", "live blocks"], ["slack", "slack of the allocator"], ["held_free", "free, on pages of live blocks"], ["free_pages", "free pages"],
  ["never_block", "never a block"], ["files", "files"], ["stacks", "stacks"], ["shared", "shared memory"], ["heaptape", "heaptape"], ["unlisted", "not listed"],
];

/** What the timeline may be stacked by here: resident memory only where there are snapshots. */
function stackedKinds() {
  return STACKED.filter((kind) => kind.id !== "resident" || page.processes.some((process) => process.residents.length > 0 || process.mapped.length > 0));
}

/** Bytes that the shown processes had mapped themselves at the end of each of equal parts of the run; empty if they mapped nothing. */
function mappedLine() {
  const lines = shownProcesses().map((process) => process.mapped).filter((line) => line.length > 0);
  return lines.length === 0 ? [] : lines[0].map((_, at) => lines.reduce((sum, line) => sum + line[at], 0));
}

/** What the program had mapped itself, as a dashed line. */
function paintMapped(pen, colour, x, y) {
  const mapped = mappedLine();
  if (mapped.length === 0) return;
  const path = new Path2D();
  path.moveTo(x(0), y(0));
  mapped.forEach((value, at) => path.lineTo(x((at + 1) / mapped.length), y(value)));
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.setLineDash([2, 3]);
  pen.stroke(path);
  pen.setLineDash([]);
}

/** The most that is resident, or was mapped by the program itself. */
const residentPeak = () => mappedLine().reduce((a, b) => Math.max(a, b), areasPeak());

/** The times of the snapshots of the shown processes, as marks at the foot of the plot. */
function paintSnapshots(pen, colour, x, bottom) {
  pen.fillStyle = colour;
  for (const process of shownProcesses()) {
    for (const { at } of process.residents) {
      pen.beginPath();
      pen.moveTo(x(at) - 4, bottom + 7);
      pen.lineTo(x(at) + 4, bottom + 7);
      pen.lineTo(x(at), bottom);
      pen.fill();
    }
  }
}

/** Bytes of each part at the end of each slot: those of the last snapshot before, of each process while it ran. */
function residentAreas() {
  const slots = page.axis.slots;
  const lines = RESIDENT.map(() => new Float64Array(slots));
  for (const process of shownProcesses()) {
    const ends = Math.ceil(process.span[1] / page.axis.length * slots);
    let next = 0, parts = null;
    for (let slot = 0; slot < Math.min(slots, ends); slot++) {
      while (next < process.residents.length && process.residents[next].at <= (slot + 1) / slots * page.axis.length) parts = new Map(process.residents[next++].parts);
      if (parts !== null) RESIDENT.forEach(([name], at) => { lines[at][slot] += parts.get(name) ?? 0; });
    }
  }
  const all = RESIDENT.map(([, short], at) => ({ short, full: "", line: lines[at] }));
  return all.filter((area) => area.line.some((value) => value > 0));
}

/** The largest sum of all areas in a slot. */
function areasPeak() {
  const sums = new Float64Array(page.axis.slots);
  areas().forEach((area) => area.line.forEach((value, at) => { sums[at] += value; }));
  return sums.reduce((a, b) => Math.max(a, b), 0);
}

/** The areas, largest first: short and whole name, and live bytes at the end of each slot. */
function areas() {
  const key = [state.stacked, state.process, state.thread].join("\n");
  if (areasCache.key === key) return areasCache.areas;
  if (state.stacked === "resident") {
    areasCache = { key, areas: residentAreas() };
    return areasCache.areas;
  }
  const live = (changes) => { let sum = 0; return changes.map((change) => { sum += change; return Math.max(0, sum); }); };
  const [names, groupOf] = state.stacked === "threads" ? threadAreas() : functionAreas();
  const lines = slotChanges(groupOf, names.length).map(live);
  const order = [...lines.keys()].map((group) => [group, lines[group].reduce((a, b) => Math.max(a, b), 0)]).filter(([, most]) => most > 0).sort((a, b) => b[1] - a[1]).map(([group]) => group);
  const found = order.slice(0, AREAS).map((group) => ({ ...names[group], line: lines[group] }));
  const rest = order.slice(AREAS);
  if (rest.length > 0) {
    const line_ = new Float64Array(page.axis.slots);
    rest.forEach((group) => lines[group].forEach((value, at) => { line_[at] += value; }));
    found.push({ short: `${count(rest.length)} others`, full: "", line: line_ });
  }
  areasCache = { key, areas: found };
  return found;
}

function functionAreas() {
  const grouped = grouping(state.stacked);
  return [grouped.title.map(([full], group) => ({ short: grouped.short[group][0], full })), (row) => grouped.of[row]];
}

function threadAreas() {
  const all = [...new Set(page.processes.flatMap((process) => process.groups.map((group) => group.name)))];
  const numbers = page.processes.map((process) => process.groups.map((group) => all.indexOf(group.name)));
  const [process, threads] = [table["row.process"], table["row.threads"]];
  return [all.map((name) => ({ short: name, full: name })), (row) => numbers[process[row]][threads[row]] ?? -1];
}

function areaColour(at, dark) {
  if (at >= AREAS) return `oklch(${dark ? 0.42 : 0.82} 0.006 90)`;
  return `oklch(${(dark ? 0.5 : 0.78) + (at % 2) * 0.06} 0.09 ${HUES[at % HUES.length]})`;
}

/** Draws the areas, the largest at the bottom. */
function paintAreas(pen, dark, slotX, y) {
  const slots = page.axis.slots;
  const below = new Float64Array(slots);
  areas().forEach((area, number) => {
    const path = new Path2D();
    path.moveTo(slotX(0), y(0));
    for (let at = 0; at < slots; at++) path.lineTo(slotX(at + 1), y(below[at] + area.line[at]));
    path.lineTo(slotX(slots), y(below[slots - 1]));
    for (let at = slots - 1; at >= 0; at--) path.lineTo(slotX(at + 1), y(below[at]));
    path.closePath();
    pen.fillStyle = areaColour(number, dark);
    pen.fill(path);
    area.line.forEach((value, at) => { below[at] += value; });
  });
}

/** What the colors mean. A name shows its function's callers and callees, or that thread alone. */
function areaLegend(dark) {
  const snapshots = shownProcesses().reduce((sum, process) => sum + process.residents.length, 0);
  const about = state.stacked === "resident" && h("span", { class: "muted" }, `▲ ${counted(snapshots, "snapshot")} of the pages; between them the last one stands. The line is the live bytes${mappedLine().length > 0 ? ", the dashed one what the program mapped itself" : ""}.`);
  return [areas().map((area, at) => {
    const press = state.stacked === "function" ? () => showCallers(area.full) : state.stacked === "threads" ? () => choose({ thread: state.thread === area.full ? "all" : area.full }) : null;
    const act = area.full !== "" && press !== null;
    return h(act ? "button" : "span", { type: act && "button", class: "module", title: area.full, onclick: act && press }, h("span", { class: "swatch-box", style: { background: areaColour(at, dark) } }), h("bdi", {}, area.short));
  }), about];
}

/** Lines of the tip: the largest areas in a slot. */
function areaTip(slot) {
  return areas().map((area) => [area.short, area.line[slot]]).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, 6).map(([name, value]) => ["", `${bytes(value)}  ${name}`]);
}
