// How large blocks are and how long they live: bars that are also a table.

function drawHistograms() {
  const section = document.getElementById("shapes");
  if (!hasEvents()) { section.hidden = true; return; }
  const view = { section, by: "allocs" };
  whenChosen((changed) => { if (["process", "from", "to"].some((name) => changed.has(name))) paintHistograms(view); });
  paintHistograms(view);
}

function paintHistograms(view) {
  const choices = [["allocs", "allocations"], ["bytes", "bytes"], ["live_bytes", "live bytes"]];
  const sides = COMPARING() ? [0, 1] : [null];
  const of = (side) => shownProcesses().filter((process) => side === null || process.recording === side);
  const sizes = sides.map((side) => addUp(of(side).flatMap((process) => process.sizes.map((row) => [row.from, row[view.by], sizeLabel(row)]))));
  const lives = sides.map((side) => addUp(of(side).flatMap((process) => process.lifetimes.classes.map((freed, at) => [at, freed, lifeLabel(at, process.lifetimes.unit)]).filter(([, freed], at, all) => freed > 0 || all.slice(0, at).some(([, before]) => before > 0)))));
  const freed = shownProcesses().reduce((sum, process) => sum + process.lifetimes.died, 0);
  const lived = shownProcesses().reduce((sum, process) => sum + process.lifetimes.sum, 0);
  const interpolated = shownProcesses().reduce((sum, process) => sum + process.lifetimes.interpolated, 0);
  const error = shownProcesses().reduce((sum, process) => sum + process.lifetimes.mean_error * process.lifetimes.interpolated, 0) / interpolated;
  fill(view.section,
    h("div", { class: "pair" },
      h("div", { class: "card" }, h("div", { class: "head" }, h("h2", {}, "Sizes"),
        h("div", { class: "choice", role: "group", "aria-label": "Counted" }, choices.map(([id, title]) => h("button", { type: "button", "aria-pressed": String(view.by === id), onclick: () => { view.by = id; paintHistograms(view); } }, title)))),
      histogram("Block size", sizes, view.by === "allocs" ? count : bytes)),
      h("div", { class: "card" }, h("div", { class: "head" }, h("h2", {}, "Lifetimes")),
        histogram("Lived", lives, count),
        freed > 0 && h("p", { class: "key" }, `${counted(freed, "block")} freed, after ${position(lived / freed)} on average${hasRange() ? "; in the whole run, not only in the range" : ""}.`),
        interpolated > 0 && h("p", { class: "key" }, `${percent(interpolated, freed)} of the lifetimes are interpolated between timestamps, within ${round(duration(error))} on average; each counts as the longest that it may be.`))));
}

function sizeLabel(row) {
  const whole = (size) => (size >= 1024 ? bytes(size) : String(size));
  return row.from === row.to ? `${row.from} B` : row.to < 1024 ? `${row.from}–${row.to} B` : row.from === 0 ? "0 B" : `${round(whole(row.from))} –`;
}

function lifeLabel(at, unit) {
  const below = 10 ** at;
  return unit === "ns" ? `< ${round(duration(below))}` : `< ${short(below)} events`;
}

function addUp(rows) {
  const known = new Map();
  for (const [key, value, label] of rows) known.set(key, [(known.get(key)?.[0] ?? 0) + value, label]);
  return known;
}

function histogram(what, sides, unit) {
  const keys = [...new Set(sides.flatMap((side) => [...side.keys()]))].sort((a, b) => a - b);
  const greatest = Math.max(1, ...sides.flatMap((side) => [...side.values()].map(([value]) => value)));
  const totals = sides.map((side) => [...side.values()].reduce((sum, [value]) => sum + value, 0));
  if (keys.length === 0) return h("p", { class: "none" }, "None.");
  const label = (key) => sides.map((side) => side.get(key)?.[1]).find(Boolean);
  const bar = (side, at, key) => {
    const value = side.get(key)?.[0] ?? 0;
    return h("div", { class: `bar ${sides.length > 1 && at === 0 ? "before" : ""}` }, h("span", { class: "bar-fill", style: { width: `${value > 0 ? Math.max(0.4, value / greatest * 100) : 0}%` } }));
  };
  return h("table", { class: "histogram" },
    h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, what), h("th", { scope: "col" }, "Bar"), sides.map((_, at) => h("th", { scope: "col" }, sides.length > 1 ? ["before", "after"][at] : "Number")), h("th", { scope: "col" }, "Share"))),
    h("tbody", {}, keys.map((key) => h("tr", {}, h("th", { scope: "row" }, label(key)), h("td", { class: "bars" }, sides.map((side, at) => bar(side, at, key))),
      sides.map((side) => h("td", { class: "number" }, unit(side.get(key)?.[0] ?? 0))),
      h("td", { class: "number muted" }, percent(sides[sides.length - 1].get(key)?.[0] ?? 0, totals[totals.length - 1]))))));
}
