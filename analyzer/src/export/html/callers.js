// One function with its callers and callees: what it allocates itself, what it allocates with all that it calls, who calls it, and what it calls.

/** Rows of each table. */
const NEIGHBORS = 12;
/** Functions that the input suggests. */
const SUGGESTED = 500;

function drawCallers() {
  const section = document.getElementById("callers");
  const view = { section };
  view.input = h("input", { type: "search", id: "focus", list: "functions", autocomplete: "off", spellcheck: "false", placeholder: "Name of a function", "aria-label": "Function whose callers and callees are shown",
    onchange: (event) => choose({ focus: event.target.value.trim() }) });
  view.list = h("datalist", { id: "functions" });
  view.body = h("div", {});
  fill(section, h("div", { class: "head" }, h("h2", { id: "callers-title" }, "Callers and callees"), view.input, view.list), view.body);
  whenChosen((changed) => { if (["measure", "process", "thread", "from", "to", "baseFrom", "baseTo", "program", "focus", "merged", "without"].some((name) => changed.has(name))) paintCallers(view); });
  paintCallers(view);
}

/** Shows a function's callers and callees, and goes there. */
function showCallers(name) {
  choose({ focus: name });
  document.getElementById("callers").scrollIntoView({ behavior: "auto" });
}

/** Of each function what it allocates with all that it calls. A function that calls itself counts once. */
function functionTotals() {
  const nodes = mergedNodes(state.program);
  const totals = new Float64Array(functions.name.length);
  const { after } = sides(state.measure);
  const leaves = table["row.node"];
  const last = new Int32Array(totals.length).fill(-1);
  for (let row = 0; row < after.length; row++) {
    if (!(after[row] > 0)) continue;
    for (let at = nodes.into[leaves[row]]; at !== 0; at = nodes.parent[at]) {
      const called = nodes.called[at];
      if (last[called] === row) continue;
      last[called] = row;
      totals[called] += after[row];
    }
  }
  return totals;
}

/** The blamed function with the largest value: where most people would look first. */
function usualFocus() {
  const grouped = grouping("function");
  const sums_ = new Float64Array(grouped.title.length);
  sides(state.measure).after.forEach((value, row) => { sums_[grouped.of[row]] += value; });
  let best = 0;
  sums_.forEach((value, group) => { if (value > sums_[best]) best = group; });
  return sums_[best] > 0 ? grouped.title[best][0] : "";
}

/** Callers and callees of some functions of one name, each with what the function allocates by way of it. */
function neighbors(called) {
  const nodes = mergedNodes(state.program);
  const { before, after } = sides(state.measure);
  const found = { a: 0, b: 0, self: 0, callers: new Map(), callees: new Map() };
  const add = (map, key, a, b) => { const one = map.get(key) ?? { a: 0, b: 0 }; one.a += a; one.b += b; map.set(key, one); };
  const leaves = table["row.node"];
  for (let row = 0; row < after.length; row++) {
    const a = Math.max(0, after[row]), b = before === null ? 0 : Math.max(0, before[row]);
    if (a === 0 && b === 0) continue;
    const [callers, callees] = [new Set(), new Set()];
    let inner = -1, any = false;
    for (let at = nodes.into[leaves[row]]; at !== 0; at = nodes.parent[at]) {
      const own = nodes.called[at];
      if (called.has(own)) {
        any = true;
        if (inner === -1) found.self += a;
        else if (!called.has(inner)) callees.add(inner);
      } else if (called.has(inner)) callers.add(own);
      inner = own;
    }
    if (!any) continue;
    if (called.has(inner)) callers.add(-1);
    found.a += a;
    found.b += b;
    callers.forEach((one) => add(found.callers, one, a, b));
    callees.forEach((one) => add(found.callees, one, a, b));
  }
  return found;
}

function paintCallers(view) {
  functionTable();
  const totals = functionTotals();
  const order = [...totals.keys()].filter((called) => totals[called] > 0 && functions.name[called] !== "").sort((a, b) => totals[b] - totals[a]);
  fill(view.list, order.slice(0, SUGGESTED).map((called) => h("option", { value: functions.name[called] })));
  const name = state.focus || usualFocus();
  view.input.value = name;
  const called = new Set([...functions.name.keys()].filter((number) => functions.name[number] === name));
  if (called.size === 0) {
    fill(view.body, h("p", { class: "none" }, name === "" ? "Nothing was allocated here." : `No function is called “${name}”. The list of the input has the largest ones.`));
    return;
  }
  const unit = measure().unit;
  const found = neighbors(called);
  const change = (one) => comparing() && h("td", { class: `number ${one.a > one.b ? "more" : one.a < one.b ? "less" : ""}` }, one.a === one.b ? "0" : signed(one.a - one.b, unit));
  const side = (title, hint, all, none) => {
    const rows = [...all].sort((x, y) => y[1].a - x[1].a || y[1].b - x[1].b);
    const row = ([number, one]) => h("tr", number >= 0 ? { onclick: () => choose({ focus: functions.name[number] }) } : {},
      h("td", { class: "place" }, number < 0 ? h("span", { class: "muted" }, "(nobody: the outermost frame)")
        : [h("button", { type: "button", class: "row" }, named(functions.short[number], functions.name[number], "first")), h("span", { class: "of" }, h("bdi", {}, functions.module[number]))]),
      h("td", { class: "number sorted", style: { "--share": `${(one.a / Math.max(1, found.a) * 100).toFixed(1)}%` } }, unit(one.a)),
      h("td", { class: "number" }, percent(one.a, found.a)), change(one));
    return h("div", { class: "card" }, h("h3", {}, title, " ", h("span", { class: "key" }, hint)),
      rows.length === 0 ? h("p", { class: "none" }, none)
        : h("table", { class: "neighbors" }, h("thead", { class: "unseen" }, h("tr", {}, ["Function", measure().title, "Share", comparing() && "Change"].filter(Boolean).map((head) => h("th", { scope: "col" }, head)))),
          h("tbody", {}, rows.slice(0, NEIGHBORS).map(row))),
      rows.length > NEIGHBORS && h("p", { class: "key" }, `${counted(rows.length - NEIGHBORS, "function")} more.`));
  };
  const [one] = called;
  const where = sourceLines([...called].flatMap((number) => functions.frames[number]));
  fill(view.body,
    h("div", { class: "card focus" },
      h("p", {}, named(functions.short[one], functions.name[one], "first"), h("span", { class: "of" }, [where, functions.module[one]].filter(Boolean).join(" · "))),
      h("p", { class: "key" }, h("b", {}, unit(found.a)), ` ${measure().title.toLowerCase()} with all that it calls`, found.self > 0 && [", ", h("b", {}, unit(found.self)), " in its own calls"],
        comparing() && `; ${unit(found.b)} before`)),
    h("div", { class: "pair" },
      side("Callers", "who calls it, and for how much", found.callers, "No caller has any of it."),
      side("Callees", "what it calls, and for how much", found.callees, "It calls nothing that allocates: all is in its own calls.")));
}
