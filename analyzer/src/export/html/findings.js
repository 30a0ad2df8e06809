// The answer: what `heaptape leaks` says first, and the worst findings of all kinds, each a link to its evidence.

const FINDINGS = 3;
/** From which share of a whole, and from how many bytes or blocks on, something is a finding. */
const LARGE_SHARE = 0.1, LARGE_BYTES = 64 << 10, PINNED_BYTES = 1 << 20, MANY_BLOCKS = 10000;
/** Verdicts that come first, and those that are no leak. */
const WORST = ["growing", "probably-growing", "slow"];
const HARMLESS = ["one-time", "bounded-cache", "young-at-end", "inherited"];

function drawFindings() {
  const found = findings();
  // At most two leaks while there is something else to see.
  const others = found.filter((one) => !one.isLeak);
  const leaks = found.filter((one) => one.isLeak);
  const first = new Set([...leaks.slice(0, Math.max(FINDINGS - 1, FINDINGS - others.length)), ...others].slice(0, FINDINGS));
  const section = document.getElementById("findings");
  const item = (one) => h("li", {}, h("a", { href: `#${one.to}`, onclick: (event) => { event.preventDefault(); one.go(); } },
    h("span", { class: `verdict ${one.serious ? "serious" : ""}` }, one.kind), " ", h("b", {}, one.size), " ", one.what,
    one.name && [" ", named(one.name, one.full ?? one.name, "finding-name")], one.where && [" ", h("span", { class: "where" }, h("bdi", {}, one.where))]));
  section.hidden = page.headline.length === 0 && first.size === 0;
  fill(section, page.headline.map((line_, at) => h("p", { class: at === 0 ? "headline" : "headline more-headline" }, h("bdi", {}, line_))),
    first.size > 0 && h("ol", { class: "findings", "aria-label": "Worst findings" }, found.filter((one) => first.has(one)).map(item)));
}

/** Everything that is worth a line, worst first. */
function findings() {
  if (COMPARING()) return changed();
  const leaks = leakGroups(page.leaks, false).map(leakFinding);
  const worst = leaks.filter((one) => one.rank === 0);
  const rest = leaks.filter((one) => one.rank === 1 && one.bytes >= LARGE_BYTES);
  const found = [...worst, ...atExit(leaks), pinned(), temporary(), ...rest].filter(Boolean);
  // Who holds the peak is no news if it leaks.
  const most = holder();
  return most === null || found.some((one) => one.full === most.full) ? found : [...found, most];
}

function leakFinding(group) {
  const [leak] = group;
  const nodes = group.map((one) => blamedNodes(one.node, 1)[0]).filter((node) => node !== undefined);
  const own = nodes.length > 0 ? frameOf(nodes[0]) : null;
  const sum = group.reduce((all, one) => all + amountOf(one), 0), blocks = group.reduce((all, one) => all + one.blocks, 0);
  return {
    isLeak: true, kind: leak.title, serious: SERIOUS.includes(leak.verdict), bytes: sum, size: bytes(sum),
    rank: WORST.includes(leak.verdict) ? 0 : leak.verdict === AT_EXIT ? 2 : HARMLESS.includes(leak.verdict) ? 3 : 1,
    what: leak.verdict === AT_EXIT ? "at most, in" : `in ${counted(blocks, "block")}:`, name: own?.short ?? "", full: own?.function,
    where: sourceLines(nodes.map((node) => table["node.frame"][node])), to: "leaks", go: () => showLeak(leak),
  };
}

/** What grew and was freed only at exit, if it is as much as the command line would say. */
function atExit(leaks) {
  const peak = page.processes.reduce((sum, process) => sum + process.peak_bytes, 0);
  return page.grown_bytes >= Math.max(LARGE_BYTES, peak / 100) ? leaks.filter((one) => one.rank === 2).slice(0, 1) : [];
}

/** Free memory that cannot be returned because live blocks are on its pages. */
function pinned() {
  let held = 0, all = 0;
  for (const process of page.processes) {
    for (const [name, size_] of process.residents.at(-1)?.parts ?? []) {
      all += size_;
      if (name === "held_free") held += size_;
    }
  }
  if (held < PINNED_BYTES || held < all * LARGE_SHARE) return null;
  return { kind: "pinned", size: bytes(held), what: `of free memory (${percent(held, all)} of what is resident) stays in use because live blocks are on its pages`, to: "timeline", go: () => { choose({ stacked: "resident" }); goTo("timeline"); } };
}

/** The function with the most of some numbers of rows. */
function largest(values_) {
  const grouped = grouping("function");
  const sums_ = new Float64Array(grouped.title.length);
  let all = 0;
  values_.forEach((value, row) => { sums_[grouped.of[row]] += value; all += value; });
  let best = 0;
  sums_.forEach((value, group) => { if (value > sums_[best]) best = group; });
  if (!(sums_[best] > 0)) return null;
  const frames = grouped.rows[best].map((row) => blamedNodes(table["row.node"][row], 1)[0]).filter((node) => node !== undefined).map((node) => table["node.frame"][node]);
  return { value: sums_[best], all, name: grouped.short[best][0], full: grouped.title[best][0], where: sourceLines(frames) };
}

/** Blocks that could live on the stack. */
function temporary() {
  const most = hasEvents() ? largest(table["row.temporary"]) : null;
  const allocs = table["row.allocs"].reduce((sum, value) => sum + value, 0);
  if (most === null || most.value < MANY_BLOCKS || most.value < allocs * LARGE_SHARE) return null;
  return { ...most, kind: "temporary", size: count(most.value), what: `blocks (${percent(most.value, allocs)} of all allocations) were freed right after they were allocated:`, to: "sites", go: () => { choose({ measure: "temporary", group: "function" }); goTo("sites"); } };
}

/** Who holds most at the peak: there is always that to say. */
function holder() {
  const most = hasPeak() ? largest(sumsOf(0, page.axis.slots).peak) : null;
  if (most === null) return null;
  return { ...most, kind: "at the peak", size: bytes(most.value), what: `(${percent(most.value, most.all)}) held by`, to: "callers", go: () => { choose({ measure: "peak", program: false }); showCallers(most.full); } };
}

/** Of a comparison what changed most. */
function changed() {
  const grouped = grouping("function");
  const id = hasPeak() ? "peak" : "bytes";
  const { before, after } = sides(id);
  const sums_ = grouped.title.map((_, group) => ({ group, before: 0, after: 0 }));
  grouped.of.forEach((group, row) => { sums_[group].before += before[row]; sums_[group].after += after[row]; });
  const most = sums_.filter((one) => Math.abs(one.after - one.before) >= LARGE_BYTES).sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before));
  return most.slice(0, FINDINGS).map((one) => ({
    kind: one.after > one.before ? "more" : "less", serious: one.after > one.before, size: signed(one.after - one.before, bytes),
    what: `${id === "peak" ? "at the peak" : "allocated"}, ${bytes(one.before)} → ${bytes(one.after)}:`, name: grouped.short[one.group][0], full: grouped.title[one.group][0],
    to: "callers", go: () => { choose({ measure: id }); showCallers(grouped.title[one.group][0]); },
  }));
}

function goTo(id) {
  document.getElementById(id).scrollIntoView({ behavior: "auto" });
}
