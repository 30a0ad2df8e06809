// What was never freed, or only at exit, one card for each blamed function (or stack): verdict, evidence, and how its live bytes went.

const CARDS = 12;

/** Explanations of verdicts. Other verdicts are shown by their name alone. */
const VERDICTS = {
  "growing": "Live bytes rise through the run",
  "probably-growing": "Live bytes rise through the run, which was shorter than a second",
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
const SERIOUS = ["growing", "probably-growing", "slow"];
const AT_EXIT = "freed-at-exit";

let leaksView = null;

/** Shows the card of a leak, whatever was chosen. */
function showLeak(leak) {
  const at = leakGroups(page.leaks, false).findIndex((group) => group.includes(leak));
  Object.assign(leaksView, { verdict: null, byStack: false, shown: Math.max(CARDS, at + 1) });
  choose({ process: "all", search: "" });
  requestAnimationFrame(() => {
    paintLeaks(leaksView);
    const card = leaksView.cards.children[at];
    card?.scrollIntoView({ behavior: "auto", block: "center" });
    card?.focus({ preventScroll: true });
  });
}

function drawLeaks() {
  const section = document.getElementById("leaks");
  const view = leaksView = { section, verdict: null, shown: CARDS, byStack: false };
  view.chips = h("div", { class: "choice", role: "group", "aria-label": "Verdicts" });
  view.kinds = h("div", { class: "choice", role: "group", "aria-label": "Cards" }, [[false, "by function"], [true, "by stack"]].map(([byStack, title]) =>
    h("button", { type: "button", "data-stack": String(byStack), onclick: () => { view.byStack = byStack; view.shown = CARDS; paintLeaks(view); } }, title)));
  view.about = h("p", { class: "key" });
  view.cards = h("div", { class: "cards" });
  fill(section, h("div", { class: "head" }, h("h2", { id: "leaks-title" }, "Never freed, or only at exit"), h("div", { class: "options" }, view.chips, view.kinds)), view.about, view.cards);
  whenChosen((changed) => { if (changed.has("process") || changed.has("search")) { view.shown = CARDS; paintLeaks(view); } });
  paintLeaks(view);
}

function paintLeaks(view) {
  const matches = matcher(state.search);
  const shown = page.leaks.filter((leak) => isShown(leak.process) && (matches === null || stackMatches(leak.node, matches)));
  for (const button of view.kinds.children) button.setAttribute("aria-pressed", String(button.dataset.stack === String(view.byStack)));
  const total = shownProcesses().reduce((sum, process) => sum + process.live_bytes + process.inherited_bytes, 0);
  const kinds = new Map();
  for (const leak of shown) kinds.set(leak.verdict, { title: leak.title, bytes: (kinds.get(leak.verdict)?.bytes ?? 0) + amountOf(leak) });
  // The sums of all, also of those that have no card.
  const isSplit = page.leaks.some((leak) => leak.probably_growing);
  if (state.process === "all" && !state.search && !isSplit) for (const { verdict, bytes: all } of page.verdicts) if (kinds.has(verdict)) kinds.get(verdict).bytes = all;
  if (view.verdict !== null && !kinds.has(view.verdict)) view.verdict = null;
  const chip = (verdict, title, hint) => h("button", { type: "button", title: hint, "aria-pressed": String(view.verdict === verdict), onclick: () => { view.verdict = verdict; view.shown = CARDS; paintLeaks(view); } }, title);
  fill(view.chips, kinds.size > 1 && [chip(null, "all"), [...kinds].map(([verdict, kind]) => chip(verdict, `${kind.title} ${bytes(kind.bytes)}`, VERDICTS[verdict]))]);
  const [stacks, blocks, more] = page.more_leaks;
  fill(view.about, shown.length === 0 ? (state.search ? `No leak matches “${state.search}”. ${searchHint(state.search)}` : "Everything was freed.") : "What grows comes first, then the largest.",
    stacks > 0 && ` ${counted(stacks, "smaller stack")} with ${bytes(more)} in ${counted(blocks, "block")} are only in the table above.`,
    page.kept[1] > 0 && ` ${bytes(page.kept[0])} in ${counted(page.kept[1], "block")} that the runtime keeps on purpose are not listed.`);
  const cards = leakGroups(shown.filter((leak) => view.verdict === null || leak.verdict === view.verdict), view.byStack);
  fill(view.cards, cards.slice(0, view.shown).map((leaks, at) => leakCard(leaks, at + 1, total)),
    cards.length > view.shown && h("button", { type: "button", class: "plain more-rows", onclick: () => { view.shown += 2 * CARDS; paintLeaks(view); } }, `show ${count(Math.min(2 * CARDS, cards.length - view.shown))} more of ${count(cards.length - view.shown)}`));
}

/** Bytes that were never freed or, of what was freed only at exit, to which it grew. */
const amountOf = (leak) => (leak.verdict === AT_EXIT ? leak.grown : leak.bytes);

/** Leaks of the same process and blamed function, in the order of the first of each. */
function leakGroups(leaks, byStack) {
  if (byStack) return leaks.map((leak) => [leak]);
  const { of } = functionTable();
  const groups = new Map();
  for (const leak of leaks) {
    const [own] = blamedNodes(leak.node, 1);
    // What was freed is not summed up with what was not.
    const key = `${leak.process} ${leak.verdict === AT_EXIT} ${own === undefined ? "none" : of[table["node.frame"][own]]}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(leak);
  }
  const weight = (group) => group.reduce((sum, leak) => sum + leak.weight, 0);
  return [...groups.values()].sort((a, b) => weight(b) - weight(a));
}

/** One card: the sums of its leaks, and the evidence of the first, which weighs most. */
function leakCard(leaks, number, total) {
  const [leak] = leaks;
  const process = page.processes[leak.process];
  const [own] = blamedNodes(leak.node, 1).map(frameOf);
  const sum = (value) => leaks.reduce((all, one) => all + value(one), 0);
  const all_bytes = sum(amountOf), all_blocks = sum((one) => one.blocks);
  const atExit = leak.verdict === AT_EXIT;
  const stackOf_ = (one) => [
    leaks.length > 1 && h("p", {}, bytes(amountOf(one)), !atExit && ` in ${counted(one.blocks, "block")}`, one.verdict !== leak.verdict && `, ${one.title}`),
    stackLines(one.node)];
  const few = () => stackOfProgram(leaks, 4);
  const body = h("div", { class: "leak-stack" }, few());
  const closed = leaks.length > 1 ? `all ${leaks.length} stacks` : `all ${stackOf(leak.node).length} frames`;
  const all = h("button", { type: "button", class: "plain", "aria-expanded": "false", onclick: () => {
    const open = all.getAttribute("aria-expanded") === "true";
    all.setAttribute("aria-expanded", String(!open));
    all.textContent = open ? closed : "fewer frames";
    fill(body, open ? few() : leaks.map(stackOf_));
  } }, closed);
  const find = h("button", { type: "button", class: "plain", onclick: () => {
    choose({ measure: "left", search: own?.function ?? "", listed: false });
    document.getElementById("flame").scrollIntoView({ behavior: "auto" });
  } }, "show in flame graph");
  const copy = copyButton(() => leaks.map((one) => stackText(one.node)).join("\n\n"), leaks.length > 1 ? "copy the stacks" : "copy the stack");
  const whole = leaks.length === 1 ? leak.evidence?.live_bytes : summed(leaks);
  return h("article", { class: "card leak", tabindex: "-1", "aria-label": `Leak ${number}: ${bytes(all_bytes)} in ${own?.short ?? "an unknown function"}, ${leak.title}` },
    h("div", { class: "leak-head" },
      h("span", { class: "leak-number" }, String(number)),
      h("h3", {}, bytes(all_bytes), h("span", { class: "muted" }, atExit ? " at most" : ` in ${counted(all_blocks, "block")}`, leaks.length > 1 && ` from ${leaks.length} stacks`)),
      h("span", { class: `verdict ${SERIOUS.includes(leak.verdict) ? "serious" : ""}`, title: VERDICTS[leak.verdict] }, leak.title)),
    whole && sparkline(whole),
    h("ul", { class: "evidence" }, evidenceOf(leak, leaks.length > 1 && !atExit ? all_bytes : leak.bytes, total, process, leaks).map((line_) => h("li", {}, line_))),
    pathLists(leaks), body, h("div", { class: "leak-more" }, all, find, copy));
}

/** The live bytes of several leaks over the run, if all have them on the same points. */
function summed(leaks) {
  const lines = leaks.map((leak) => leak.evidence?.live_bytes).filter(Boolean);
  if (lines.length !== leaks.length || lines.some((one) => one.length !== lines[0].length)) return leaks[0].evidence?.live_bytes;
  return lines[0].map((_, at) => lines.reduce((sum, one) => sum + one[at], 0));
}

/** The innermost frames that are blamed for the first of some leaks; the lines of the first frame are those of all. */
function stackOfProgram(leaks, most) {
  const shown = blamedNodes(leaks[0].node, most).map(frameOf);
  const firsts = leaks.map((leak) => blamedNodes(leak.node, 1)[0]).filter((node) => node !== undefined).map((node) => table["node.frame"][node]);
  const lines = leaks.length > 1 ? sourceLines(firsts) : "";
  return h("ol", {}, shown.map((frame, at) => h("li", {}, named(frame.short, frame.function), at === 0 && lines !== "" ? placeOf(frame, lines) : placeOf(frame))));
}

/** The evidence of a leak that is shown for `leaks` with `all` bytes. */
function evidenceOf(leak, all, total, process, leaks) {
  const found = [], stacks = leaks.length;
  const several = page.processes.length > 1;
  if (leak.verdict !== AT_EXIT) found.push(`${percent(all, total)} of all bytes live at the end${several ? `, in ${COMPARING() ? (process.recording === 0 ? "before: " : "after: ") : ""}${process.name} (pid ${process.pid})` : ""}`);
  const held = heldText(heldOfAll(leaks));
  if (held !== "") found.push(h("span", {}, h("bdi", {}, held)));
  const why = leak.evidence;
  if (!why) {
    found.push("The recording has only sums, without order and times, so there is no more evidence.");
    return found;
  }
  if (stacks > 1) found.push(`The largest of the ${stacks} stacks${leak.verdict === AT_EXIT ? "" : ` has ${bytes(leak.bytes)}`}:`);
  const when = (moment_) => (moment_.time_ns !== null ? duration(moment_.time_ns) : `event ${count(moment_.event ?? 0)}`);
  const life = (value) => (why.unit === "ns" ? duration(value) : counted(value, "event"));
  // Sums that were sampled repeatedly have no sizes and no lifetimes.
  const sizes = why.smallest === null ? "" : leak.blocks === 1 ? `, ${bytes(why.smallest)}` : why.smallest === why.largest ? `; ${bytes(why.smallest)} each` : `; ${bytes(why.smallest)} to ${bytes(why.largest)}`;
  if (leak.verdict !== AT_EXIT) found.push(leak.blocks === 1 ? `Allocated ${when(why.first)} after the start${sizes}` : `Allocated ${when(why.first)} to ${when(why.last)} after the start${sizes}`);
  if (why.bytes_per_second >= 1 && SERIOUS.includes(leak.verdict)) found.push(`Grows by ${bytes(why.bytes_per_second)} a second`);
  if (why.freed > 0) found.push(`${count(why.freed)} of ${counted(why.allocs, "allocation")} here were freed${why.mean_life === null ? "" : `, after ${life(why.mean_life)} on average, ${life(why.longest_life ?? 0)} at most`}`);
  else if (why.allocs === 1) found.push("The only allocation here");
  else found.push(`None of ${counted(why.allocs, "allocation")} here was freed${why.resized > 0 ? `, ${count(why.resized)} resized` : ""}`);
  for (const site of why.freed_at.slice(0, 1)) found.push(h("span", {}, "Other blocks of this site were mostly freed in ", h("bdi", {}, site.functions.join(" ← "))));
  if (why.threads.length > 0) {
    const names = why.threads.map((number) => threadLabel(process.threads, process.threads.find((thread) => thread.number === number) ?? { number, name: "" })).sort();
    if (process.threads.length > 1) found.push(h("span", {}, "By ", h("bdi", {}, names.join(", "))));
  }
  if (why.most_bytes > amountOf(leak)) found.push(`${bytes(why.most_bytes)} alive at once at most`);
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
