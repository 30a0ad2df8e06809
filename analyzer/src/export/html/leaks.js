// What was never freed, one card a stack: verdict, evidence, and how its live bytes went.

const CARDS = 12;

/** Explanations of verdicts. Other verdicts are shown by their name alone. */
const VERDICTS = {
  "growing": "Live bytes rise through the run",
  "slow": "They rise, slowly",
  "container-growth": "A container grew, and still exists",
  "one-time": "Allocated in one short period of the run and kept",
  "bounded-cache": "As much is freed as allocated: a cache or pool that is full",
  "freed-at-exit": "Freed, but only when the process ended",
  "young-at-end": "Young: other blocks of the same call site were not freed at that age either",
  "inherited": "Inherited from the parent by fork",
  "uncertain": "Events are missing: its frees may be among them",
  "too-little": "Live bytes rise, but the run is too short, or they are too few, to call it growth",
};
const SERIOUS = ["growing", "slow"];

function drawLeaks() {
  const section = document.getElementById("leaks");
  const view = { section, verdict: null, shown: CARDS };
  view.chips = h("div", { class: "choice", role: "group", "aria-label": "Verdicts" });
  view.about = h("p", { class: "key" });
  view.cards = h("div", { class: "cards" });
  fill(section, h("div", { class: "head" }, h("h2", { id: "leaks-title" }, "Never freed"), view.chips), view.about, view.cards);
  whenChosen((changed) => { if (changed.has("process") || changed.has("search")) { view.shown = CARDS; paintLeaks(view); } });
  paintLeaks(view);
}

function paintLeaks(view) {
  const matches = matcher(state.search);
  const shown = page.leaks.filter((leak) => isShown(leak.process) && (matches === null || stackMatches(leak.node, matches)));
  const total = shownProcesses().reduce((sum, process) => sum + process.live_bytes + process.inherited_bytes, 0);
  const kinds = new Map();
  for (const leak of shown) kinds.set(leak.verdict, { title: leak.title, bytes: (kinds.get(leak.verdict)?.bytes ?? 0) + leak.bytes });
  if (view.verdict !== null && !kinds.has(view.verdict)) view.verdict = null;
  const chip = (verdict, title, hint) => h("button", { type: "button", title: hint, "aria-pressed": String(view.verdict === verdict), onclick: () => { view.verdict = verdict; view.shown = CARDS; paintLeaks(view); } }, title);
  fill(view.chips, kinds.size > 1 && [chip(null, "all"), [...kinds].map(([verdict, kind]) => chip(verdict, `${kind.title} ${bytes(kind.bytes)}`, VERDICTS[verdict]))]);
  const [stacks, blocks, more] = page.more_leaks;
  fill(view.about, shown.length === 0 ? (state.search ? "No stack that was searched for left anything." : "Everything was freed.") : "By weight: what grows comes before what is merely large.",
    stacks > 0 && ` ${counted(stacks, "smaller stack")} with ${bytes(more)} in ${counted(blocks, "block")} are only in the table above.`,
    page.kept[1] > 0 && ` ${bytes(page.kept[0])} in ${counted(page.kept[1], "block")} that the run-time keeps on purpose are not listed.`);
  const cards = shown.filter((leak) => view.verdict === null || leak.verdict === view.verdict);
  fill(view.cards, cards.slice(0, view.shown).map((leak, at) => leakCard(leak, at + 1, total)),
    cards.length > view.shown && h("button", { type: "button", class: "plain more-rows", onclick: () => { view.shown += 2 * CARDS; paintLeaks(view); } }, `show ${count(Math.min(2 * CARDS, cards.length - view.shown))} more of ${count(cards.length - view.shown)}`));
}

function leakCard(leak, number, total) {
  const process = page.processes[leak.process];
  const frames = stackOf(leak.node);
  const [own] = blamedNodes(leak.node, 1).map(frameOf);
  const body = h("div", { class: "leak-stack" }, stackOfProgram(leak.node, 4));
  const all = h("button", { type: "button", class: "plain", "aria-expanded": "false", onclick: () => {
    const open = all.getAttribute("aria-expanded") === "true";
    all.setAttribute("aria-expanded", String(!open));
    all.textContent = open ? `all ${frames.length} frames` : "fewer frames";
    fill(body, open ? stackOfProgram(leak.node, 4) : stackLines(leak.node));
  } }, `all ${frames.length} frames`);
  const find = h("button", { type: "button", class: "plain", onclick: () => {
    choose({ measure: "left", search: own?.function ?? "" });
    document.getElementById("flame").scrollIntoView({ behavior: "auto" });
  } }, "show in flame graph");
  return h("article", { class: "card leak" },
    h("div", { class: "leak-head" },
      h("span", { class: "leak-number" }, String(number)),
      h("h3", {}, bytes(leak.bytes), h("span", { class: "muted" }, ` in ${counted(leak.blocks, "block")}`)),
      h("span", { class: `verdict ${SERIOUS.includes(leak.verdict) ? "serious" : ""}`, title: VERDICTS[leak.verdict] }, leak.title)),
    leak.evidence && sparkline(leak.evidence.live_bytes),
    h("ul", { class: "evidence" }, evidenceOf(leak, total, process).map((line_) => h("li", {}, line_))),
    body, h("div", { class: "leak-more" }, all, find));
}

/** The innermost frames that are blamed. */
function stackOfProgram(node, most) {
  const shown = blamedNodes(node, most).map(frameOf);
  return h("ol", {}, shown.map((frame) => h("li", {}, h("bdi", {}, frame.function),
    frame.file ? h("span", { class: "where", title: frame.file }, h("bdi", {}, `${baseName(frame.file)}:${frame.line}`)) : frame.module && h("span", { class: "where" }, h("bdi", {}, baseName(frame.module))))));
}

function evidenceOf(leak, total, process) {
  const found = [];
  const several = page.processes.length > 1;
  found.push(`${percent(leak.bytes, total)} of all that is left${several ? `, in ${COMPARING() ? (process.recording === 0 ? "before: " : "after: ") : ""}${process.name} (pid ${process.pid})` : ""}`);
  const why = leak.evidence;
  if (!why) {
    found.push("The recording has only sums, without order and times, so there is no more evidence.");
    return found;
  }
  const when = (moment_) => (moment_.time_ns !== null ? duration(moment_.time_ns) : `event ${count(moment_.event ?? 0)}`);
  const life = (value) => (why.unit === "ns" ? duration(value) : counted(value, "event"));
  // Sums that were sampled repeatedly have no sizes and no lifetimes.
  const sizes = why.smallest === null ? "" : leak.blocks === 1 ? `, ${bytes(why.smallest)}` : why.smallest === why.largest ? `; ${bytes(why.smallest)} each` : `; ${bytes(why.smallest)} to ${bytes(why.largest)}`;
  found.push(leak.blocks === 1 ? `Allocated ${when(why.first)} after the start${sizes}` : `Allocated ${when(why.first)} to ${when(why.last)} after the start${sizes}`);
  if (why.bytes_per_second >= 1 && SERIOUS.includes(leak.verdict)) found.push(`Grows by ${bytes(why.bytes_per_second)} a second`);
  if (why.freed > 0) found.push(`${count(why.freed)} of ${counted(why.allocs, "allocation")} here were freed${why.mean_life === null ? "" : `, after ${life(why.mean_life)} on average, ${life(why.longest_life ?? 0)} at most`}`);
  else if (why.allocs === 1) found.push("The only allocation here");
  else found.push(`None of ${counted(why.allocs, "allocation")} here was freed${why.resized > 0 ? `, ${count(why.resized)} resized` : ""}`);
  for (const site of why.freed_at.slice(0, 1)) found.push(h("span", {}, "Other blocks of this site were mostly freed in ", h("bdi", {}, site.functions.join(" ← "))));
  if (why.threads.length > 0) {
    const names = why.threads.map((number) => threadLabel(process.threads, process.threads.find((thread) => thread.number === number) ?? { number, name: "" }));
    if (process.threads.length > 1) found.push(h("span", {}, "By ", h("bdi", {}, names.join(", "))));
  }
  if (why.most_bytes > leak.bytes) found.push(`${bytes(why.most_bytes)} alive at once at most`);
  if (why.examples.length > 0) found.push(`For example at ${why.examples.slice(0, 2).map(([address]) => address).join(", ")}`);
  if (why.missing_events) found.push(`${counted(why.missing_events, "event")} missing from the recording`);
  return found;
}

const SVG = "http://www.w3.org/2000/svg";

/** Live bytes at the end of each slice of the run. */
function sparkline(values_) {
  const most = Math.max(1, ...values_);
  const [width, height] = [320, 40];
  const x = (at) => (at + 1) / values_.length * width;
  const y = (value) => height - 2 - value / most * (height - 6);
  const points = values_.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Live bytes of this stack over the run: ${values_.map((value) => bytes(value)).join(", ")}`);
  for (const [tag, kind, shape] of [["polygon", "area", `0,${height} 0,${y(0)} ${points} ${width},${height}`], ["polyline", "edge", `0,${y(0)} ${points}`]]) {
    const element = document.createElementNS(SVG, tag);
    element.setAttribute("points", shape);
    element.setAttribute("class", kind);
    svg.append(element);
  }
  return svg;
}
