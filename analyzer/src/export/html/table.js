// Where memory is allocated, as a table: by site, function, module or whole stack, sortable, with the stacks of each row.

const GROUPS = [
  { id: "site", title: "by site", about: "the innermost three functions of the program" },
  { id: "function", title: "by function", about: "the innermost function of the program" },
  { id: "module", title: "by module", about: "the module of that function" },
  { id: "stack", title: "by stack", about: "one row for each stack" },
];
/** Rows that are made at once. */
const PAGE = 50;
/** Stacks of a row that are shown. */
const STACKS = 5;

const COLUMNS = [
  { id: "bytes", title: "Allocated", unit: bytes },
  { id: "allocs", title: "Allocations", unit: count },
  { id: "live", title: "Live", unit: bytes },
  { id: "blocks", title: "Live blocks", unit: count },
  { id: "peak", title: "At peak", about: "Live at the peak of the whole program", unit: bytes },
  { id: "growth", title: "Growth", unit: (value) => signed(value, bytes), range: true },
  { id: "left", title: "Never freed", unit: bytes, range: true },
  { id: "temporary", title: "Temporary", about: "Blocks freed with no event of their thread between: they could live on the stack", unit: count },
  { id: "life", title: "Mean life", about: "How long its blocks lived that were freed, on average", unit: (value) => (value < 0 ? "–" : position(value)), whole: true },
];

const groupings = {};

/** For each row the group that it belongs to. */
function grouping(kind) {
  if (groupings[kind]) return groupings[kind];
  const { of, name, short, module } = functionTable();
  const rows = table["row.node"];
  const known = new Map();
  const grouped = { of: new Int32Array(rows.length), title: [], short: [], called: [], module: [], rows: [] };
  const frame = table["node.frame"];
  const limit = kind === "site" ? 3 : 1;
  for (let row = 0; row < rows.length; row++) {
    const blamed = blamedNodes(rows[row], limit).map((node) => of[frame[node]]);
    // A function that calls itself is named once.
    const own = blamed.filter((called, at) => called !== blamed[at - 1]);
    if (own.length === 0) own.push(of[frame[rows[row]]]);
    const key = kind === "stack" ? rows[row] : kind === "module" ? module[own[0]] : own.join(" ");
    let group = known.get(key);
    if (group === undefined) {
      group = grouped.title.length;
      known.set(key, group);
      grouped.title.push(kind === "module" ? [module[own[0]] || "(no module)"] : own.map((called) => name[called]));
      grouped.short.push(kind === "module" ? grouped.title[group] : own.map((called) => short[called]));
      grouped.called.push(kind === "module" ? -1 : own[0]);
      grouped.module.push(module[own[0]]);
      grouped.rows.push([]);
    }
    grouped.of[row] = group;
    grouped.rows[group].push(row);
  }
  return (groupings[kind] = grouped);
}

function drawTable() {
  const section = document.getElementById("sites");
  const view = { section, sort: null, down: true, shown: PAGE, open: new Set() };
  view.groups = h("div", { class: "choice", role: "group", "aria-label": "Rows" }, GROUPS.map((group) =>
    h("button", { type: "button", "data-value": group.id, title: group.about, onclick: () => choose({ group: group.id }) }, group.title)));
  view.save = h("button", { type: "button", class: "plain", title: "All rows of the table, with whole names and numbers, as a CSV file", onclick: () => saveTable(view) }, "Download as CSV");
  view.about = h("p", { class: "key" });
  view.body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of sites" });
  fill(section, h("div", { class: "head" }, h("h2", { id: "sites-title" }, "Where memory is allocated"), h("div", { class: "options" }, view.save, view.groups)), view.about, view.body);
  whenChosen((changed) => {
    if (changed.has("group")) view.open.clear();
    if (changed.has("measure")) view.sort = null;
    if (!changed.has("theme")) { view.shown = PAGE; paintTable(view); }
  });
  paintTable(view);
}

/** Sums of the groups, in the requested order. */
function tableRows(view) {
  const grouped = grouping(state.group);
  const whole = !hasRange();
  const groups = grouped.title.length;
  const columns = {};
  const wanted = COLUMNS.filter((column) => column.id !== "life").map((column) => column.id);
  for (const id of wanted) {
    columns[id] = [new Float64Array(groups), new Float64Array(groups)];
    const { before, after } = sides(id);
    // Without a comparison all is in the first column.
    const [first, second] = before === null ? [after, null] : [before, after];
    for (let row = 0; row < grouped.of.length; row++) {
      columns[id][0][grouped.of[row]] += first[row];
      if (second !== null) columns[id][1][grouped.of[row]] += second[row];
    }
  }
  const lived = new Float64Array(groups), freed = new Float64Array(groups);
  const shown = shownRows();
  for (let row = 0; row < grouped.of.length; row++) {
    if (!shown[row]) continue;
    lived[grouped.of[row]] += table["row.lived"][row];
    freed[grouped.of[row]] += table["row.died"][row];
  }
  columns.life = [lived.map((sum, at) => (freed[at] > 0 ? sum / freed[at] : -1)), lived];
  const matches = matcher(state.search);
  const rows = [];
  for (let group = 0; group < groups; group++) {
    const any = ["bytes", "live", "peak", "temporary", "left"].some((id) => columns[id][0][group] !== 0 || columns[id][1][group] !== 0) || columns.allocs[0][group] + columns.allocs[1][group] > 0;
    if (!any) continue;
    if (matches !== null && !matchesGroup(grouped, group, matches)) continue;
    rows.push(group);
  }
  const chosen = view.sort ?? (comparing() ? "change" : state.measure);
  // Over the whole run these are what is live at the end.
  const key = !comparing() && whole && ["left", "growth"].includes(chosen) ? "live" : chosen;
  const value = (group) => {
    if (!comparing()) return key === "name" ? 0 : columns[key][0][group];
    const [before, after] = columns[state.measure];
    return key === "before" ? before[group] : key === "after" ? after[group] : key === "share" ? (after[group] - before[group]) / Math.max(before[group], 1) : Math.abs(after[group] - before[group]);
  };
  const sign = view.down ? -1 : 1;
  if (key === "name") rows.sort((a, b) => sign * (grouped.title[a][0] < grouped.title[b][0] ? 1 : -1));
  else rows.sort((a, b) => sign * (value(a) - value(b)) || a - b);
  return { grouped, columns, rows, key, whole };
}

/** By the names that are shown, or by any frame of its first stacks. */
function matchesGroup(grouped, group, matches) {
  if (grouped.title[group].some(matches) || matches(grouped.module[group])) return true;
  return grouped.rows[group].slice(0, 20).some((row) => stackMatches(table["row.node"][row], matches));
}

const stackCache = new Map();
let stackCacheFor = "";

function stackMatches(node, matches) {
  if (stackCacheFor !== state.search) { stackCache.clear(); stackCacheFor = state.search; }
  const { of, name, module } = functionTable();
  const passed = [];
  let answer = false;
  for (let at = node; at !== 0; at = table["node.parent"][at]) {
    if (stackCache.has(at)) { answer = stackCache.get(at); break; }
    passed.push(at);
    const called = of[table["node.frame"][at]];
    if (matches(name[called]) || matches(module[called]) || matches(strings[table["frame.file"][table["node.frame"][at]]])) { answer = true; break; }
  }
  passed.forEach((at) => stackCache.set(at, answer));
  return answer;
}

/** The columns of the table with numbers: id, title, unit, and the value of a group. */
function tableHeads(columns) {
  const unit = measure().unit;
  if (comparing()) {
    const [before, after] = columns[state.measure];
    return [
      { id: "before", title: "Before", unit, of: (group) => before[group] },
      { id: "after", title: "After", unit, of: (group) => after[group] },
      { id: "change", title: "Change", of: (group) => after[group] - before[group], unit: (change) => (change === 0 ? "0" : `${change > 0 ? "▲" : "▼"} ${signed(change, unit)}`), changes: true },
      { id: "share", title: "%", of: (group) => [before[group], after[group]], unit: ([from, to]) => (from === 0 ? (to > 0 ? "new" : "–") : to === 0 ? "gone" : percent(to - from, from)), changes: true },
    ];
  }
  const fits = (column) => (hasRange() ? !column.whole : !column.range) && (hasPeak() || column.id !== "peak") && (hasEvents() || !["temporary", "life"].includes(column.id));
  return COLUMNS.filter(fits).map((column) => ({ ...column, of: (group) => columns[column.id][0][group] }));
}

function paintTable(view) {
  for (const button of view.groups.children) button.setAttribute("aria-pressed", String(button.dataset.value === state.group));
  const { grouped, columns, rows, key } = tableRows(view);
  const heads = tableHeads(columns);
  fill(view.about, comparing() ? `${measure().title}, ${counted(rows.length, "row")}. ` : `${counted(rows.length, "row")}: `, GROUPS.find((group) => group.id === state.group).about, ". Click a row for its stacks.");
  const order = (id) => (key === id ? (view.down ? "descending" : "ascending") : "none");
  const head = ({ id, title, about }) => h("th", { scope: "col", title: about, class: id === "name" ? "place" : "number", "aria-sort": order(id) },
    h("button", { type: "button", onclick: () => sortBy(view, id, key) }, title, h("span", { class: "arrow", "aria-hidden": "true" }, key === id ? (view.down ? " ↓" : " ↑") : "")));
  const sorted = heads.find((one) => one.id === key && !one.changes);
  const greatest = Math.max(1, ...rows.slice(0, view.shown).map((group) => Math.max(0, sorted?.of(group) ?? 0)));
  const cell = (group) => (one) => {
    const value = one.of(group);
    const change = one.changes ? columns[state.measure][1][group] - columns[state.measure][0][group] : 0;
    const kind = one === sorted ? "sorted" : change > 0 ? "more" : change < 0 ? "less" : "";
    return h("td", { class: `number ${kind}`, "data-title": one.title, style: one === sorted ? { "--share": `${Math.max(0, value / greatest * 100).toFixed(1)}%` } : undefined }, one.unit(value));
  };
  const body = rows.slice(0, view.shown).flatMap((group) => {
    const open = view.open.has(group);
    const toggle = () => { if (open) view.open.delete(group); else view.open.add(group); paintTable(view); view.body.querySelector(`[data-group="${group}"]`)?.focus(); };
    const [first, ...callers] = grouped.short[group];
    const [firstFull, ...callersFull] = grouped.title[group];
    // The whole row reacts to the mouse; its button is for keys and screen readers. Selected text is left alone.
    const click = () => { if (String(getSelection()) === "") toggle(); };
    const line_ = h("tr", { class: open ? "open" : "", onclick: click },
      h("td", { class: "place" }, h("button", { type: "button", class: "row", "data-group": group, "aria-expanded": String(open) },
        h("span", { class: "fold", "aria-hidden": "true" }, open ? "▾" : "▸"), named(first, firstFull, "first"),
        callers.map((name, at) => [h("i", {}, " ← "), named(name, callersFull[at])]),
        state.group !== "module" && h("span", { class: "where" }, h("bdi", {}, linesOf(grouped, group))),
        state.group !== "module" && grouped.module[group] && h("span", { class: "of" }, h("bdi", {}, grouped.module[group])))),
      heads.map(cell(group)));
    return open ? [line_, h("tr", { class: "stacks" }, h("td", { colspan: heads.length + 1 }, stacksOf(grouped.rows[group], firstFull, grouped.called[group])))] : [line_];
  });
  fill(view.body,
    h("table", { class: "sites rows" }, h("thead", {}, h("tr", {}, head({ id: "name", title: "Call site" }), heads.map(head))), h("tbody", {}, body)),
    rows.length === 0 && h("p", { class: "none" }, state.search ? `Nothing matches “${state.search}”. ${searchHint(state.search)}` : "Nothing was allocated here."),
    rows.length > view.shown && h("button", { type: "button", class: "plain more-rows", onclick: () => { view.shown += 5 * PAGE; paintTable(view); } }, `show ${count(Math.min(5 * PAGE, rows.length - view.shown))} more of ${count(rows.length - view.shown)}`));
}

/** File and lines of the function that a group is named by. */
function linesOf(grouped, group) {
  grouped.lines ??= [];
  return (grouped.lines[group] ??= sourceLines([...new Set(grouped.rows[group].map((row) => table["node.frame"][blamedNodes(table["row.node"][row], 1)[0] ?? table["row.node"][row]]))]));
}

/** Saves all rows of the table as they are sorted and searched. */
function saveTable(view) {
  const { grouped, columns, rows } = tableRows(view);
  const heads = tableHeads(columns).filter((one) => one.id !== "share");
  const units = (one) => (one.id === "life" ? ` (${page.axis.unit})` : one.unit === bytes || one.changes && measure().unit === bytes || one.id === "growth" ? " (bytes)" : "");
  const head = ["Call site", "Module", ...heads.map((one) => one.title + units(one))];
  const line_ = (group) => [grouped.title[group].join(" < "), grouped.module[group], ...heads.map((one) => Math.round(one.of(group)))];
  download(`${baseName(page.recordings.at(-1).path) || "heaptape"}-${state.group}.csv`, [head, ...rows.map(line_)]);
}

function sortBy(view, id, key) {
  view.down = key === id ? !view.down : true;
  view.sort = id;
  paintTable(view);
}

/** The greatest stacks of a group, whole: each once, with the threads that have it. */
function stacksOf(rows, name, called) {
  const [unit, values_, shown] = [measure().unit, values(), shownRows()];
  const [of, node, threads] = [table["row.process"], table["row.node"], table["row.threads"]];
  const stacks = new Map();
  for (const row of rows) {
    if (!shown[row]) continue;
    const key = `${of[row]} ${node[row]}`;
    const one = stacks.get(key) ?? { process: page.processes[of[row]], node: node[row], value: 0, bytes: 0, threads: [] };
    stacks.set(key, one);
    one.value += values_[row];
    one.bytes += table["row.bytes"][row];
    if (values_[row] !== 0) one.threads.push(one.process.groups[threads[row]]?.name);
  }
  const own = [...stacks.values()].sort((a, b) => b.value - a.value || b.bytes - a.bytes);
  const total = own.reduce((sum, one) => sum + Math.max(0, one.value), 0);
  const list = h("div", { class: "stack-list" }, own.slice(0, STACKS).map((one) => {
    const title = [`${unit(one.value)}${own.length > 1 ? `, ${percent(one.value, total)} of the row` : ""}`,
      one.process.groups.length > 1 && (one.threads.length > 4 ? `${one.threads.length} threads` : one.threads.join(", ")),
      page.processes.length > 1 && `${COMPARING() ? (one.process.recording === 0 ? "before, " : "after, ") : ""}${one.process.name} (pid ${one.process.pid})`].filter(Boolean).join(" · ");
    return h("div", { class: "stack" }, h("p", {}, title, " ", copyButton(() => stackText(one.node), "copy")), stackLines(one.node));
  }), own.length > STACKS && h("p", { class: "muted" }, `and ${counted(own.length - STACKS, "stack")} more; group by stack to see them`));
  return [list, called >= 0 && h("p", { class: "leak-more" }, h("button", { type: "button", class: "plain", onclick: () => showCallers(name) }, "callers and callees"))];
}

/** A stack as text, innermost first. */
function stackText(node) {
  return stackOf(node).map((frame) => [frame.function, frame.file ? `${frame.file}${frame.line ? `:${frame.line}` : ""}` : frame.module && `(${baseName(frame.module)})`].filter(Boolean).join(" ")).join("\n");
}

/** Where a frame is: file and line, or its module. With the source in the page, a button that shows it. */
function placeOf(frame, lines = "") {
  if (!frame.file) return frame.module && h("span", { class: "where", title: frame.module }, h("bdi", {}, baseName(frame.module)));
  const place = h("bdi", {}, lines || `${baseName(frame.file)}${frame.line ? `:${frame.line}` : ""}`);
  if (sourceAround(frame) === null) return h("span", { class: "where", title: frame.file }, place);
  return h("button", { type: "button", class: "where plain", title: `${frame.file}: show the source`, "aria-expanded": "false", onclick: (event) => {
    const button = event.currentTarget, item = button.closest("li, p, td");
    const open = item.querySelector(".source");
    button.setAttribute("aria-expanded", String(open === null));
    if (open) open.remove(); else item.append(sourceOf(frame));
    event.stopPropagation();
  } }, place);
}

/** Lines of the source around a frame: the number of the first, and the lines; null if they are not in the page. */
function sourceAround(frame) {
  const pieces = page.sources?.[frame.file] ?? [];
  return pieces.find(([first, lines]) => first <= frame.line && frame.line < first + lines.length) ?? null;
}

const SOURCE_AROUND = 4;

function sourceOf(frame) {
  const [first, lines] = sourceAround(frame);
  const from = Math.max(first, frame.line - SOURCE_AROUND);
  return h("pre", { class: "source" }, lines.slice(from - first, frame.line + SOURCE_AROUND + 1 - first).map((text_, at) =>
    h(from + at === frame.line ? "mark" : "span", {}, `${String(from + at).padStart(6)}  ${text_}\n`)));
}

/** A button that copies a text. */
function copyButton(text_, title) {
  const button = h("button", { type: "button", class: "plain", onclick: async () => {
    const done = await copied(text_());
    button.textContent = done ? "copied" : "this browser does not copy";
    setTimeout(() => { button.textContent = title; }, 2000);
  } }, title);
  return button;
}

async function copied(text_) {
  try {
    await navigator.clipboard.writeText(text_);
    return true;
  } catch {
    // Some browsers refuse that to files.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
    area.value = text_;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** A stack, innermost first; frames that are not the program's are dim. */
function stackLines(node, most = Infinity) {
  const frames = stackOf(node);
  return h("ol", {}, frames.slice(0, most).map((frame) => h("li", { class: frame.flags & (PROGRAM | MADE_UP) ? "" : "dim" },
    named(frame.short, frame.function), placeOf(frame),
    Boolean(frame.flags & INLINED) && h("span", { class: "where" }, "inlined"),
    Boolean(frame.flags & TAIL_CALL) && h("span", { class: "where" }, "tail call"))),
    frames.length > most && h("li", { class: "dim" }, `… ${counted(frames.length - most, "outer frame")}`));
}
