// The head of the page: what was recorded, its key figures, the ledger, and the bar that chooses what is shown.

function drawHeader() {
  const [before, after] = page.recordings;
  const about = document.getElementById("about");
  document.getElementById("what").textContent = COMPARING() ? "comparison" : "heap recording";
  fill(about, COMPARING() ? [describe(before, "before"), describe(after, "after")] : describe(before, null));
  fill(document.getElementById("figures"), figuresOf());
  drawLedger();
  drawFoot();
}

function describe(recording, role) {
  const own = page.processes.filter((process) => process.recording === page.recordings.indexOf(recording));
  const first = own[0];
  const facts = [
    recording.host && ["host", recording.host],
    recording.started_ms !== null && ["started", moment(recording.started_ms)],
    first?.has_events && page.axis.unit === "ns" && ["ran", duration(Math.max(...own.map((process) => process.span[1])))],
    own.length > 1 ? ["processes", count(own.length)] : first && first.pid !== 0 && ["pid", String(first.pid)],
    first && own.length === 1 && ["ended", first.ending],
    recording.cwd && ["in", recording.cwd],
    ["recording", recording.path],
    page.axis.partial && ["time range", "not the whole run"],
  ].filter(Boolean);
  return h("div", { class: "describe" },
    h("h1", { title: recording.command || recording.path },
      role && h("span", { class: `role role-${role}` }, role),
      h("bdi", {}, recording.command || first?.name || recording.path)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, value))))));
}

function figuresOf() {
  const together = (recording) => {
    const own = page.processes.filter((process) => process.recording === recording);
    return peakTogether(own) ? fullestOf(own, 0, page.axis.slots).bytes : null;
  };
  const totals = page.recordings.map((recording, number) => ({ ...recording.totals, peak: together(number) ?? recording.totals.peak_bytes, joint: together(number) !== null }));
  const figure = (title, value, shown, extra) => {
    const [before, after] = totals.map(value);
    if (!COMPARING()) {
      return h("div", { class: "figure" }, h("div", { class: "figure-title" }, title), h("div", { class: "figure-value" }, shown(before)), h("div", { class: "figure-extra" }, extra?.(totals[0]) ?? ""));
    }
    const change = after - before;
    const kind = change > 0 ? "more" : change < 0 ? "less" : "same";
    return h("div", { class: "figure" }, h("div", { class: "figure-title" }, title), h("div", { class: "figure-value" }, shown(after)),
      h("div", { class: `figure-extra ${kind}` }, change === 0 ? "unchanged" : `${change > 0 ? "▲" : "▼"} ${signed(change, shown)} (${before > 0 ? percent(change, before) : "new"})`));
  };
  const ended = page.processes.every((process) => process.complete);
  const several = page.processes.length > 1 && !COMPARING();
  return h("div", { class: "figures" },
    figure("Peak", (one) => one.peak, bytes, (one) => !several ? `${counted(one.peak_blocks, "block")} at most`
      : one.joint ? "of all processes together" : "of the largest process"),
    figure("Live at the end", (one) => one.live_bytes, bytes, (one) => `${counted(one.live_blocks, "block")} ${ended ? "never freed" : "still live"}`),
    figure("Allocated", (one) => one.bytes_allocated, bytes, (one) => `${bytes(one.bytes_allocated / Math.max(one.allocs + one.resizes, 1))} on average`),
    figure("Allocations", (one) => one.allocs, count, (one) => `${counted(one.resizes, "resize")}, ${counted(one.frees, "free")}`));
}

/** The accounting, emitted = recorded + lost (+ sampled out), and what else is missing. */
function drawLedger() {
  const problems = [];
  let lost = 0;
  const sums = page.recordings.map((recording, number) => {
    const totals = recording.totals;
    lost += totals.lost_events;
    for (const one of recording.missing) problems.push(one);
    const own = page.processes.filter((process) => process.recording === number);
    const exact = recording.lost_is_exact && own.every((process) => process.lost_is_exact);
    for (const process of own) {
      for (const one of process.missing) problems.push(page.processes.length > 1 ? `${process.name} (pid ${process.pid}): ${one}` : one);
    }
    const term = (value, name, kind) => h("span", { class: `term ${kind ?? ""}` }, h("b", {}, count(value)), " ", name);
    return h("p", { class: "sum" },
      COMPARING() && h("span", { class: `role role-${number === 0 ? "before" : "after"}` }, number === 0 ? "before" : "after"),
      term(totals.emitted_events, "events emitted"), h("i", {}, "="),
      term(totals.recorded_events, "recorded"), h("i", {}, "+"),
      term(totals.lost_events, exact ? "lost" : "lost, at least", totals.lost_events > 0 ? "bad" : ""),
      totals.sampled_out_events > 0 && [h("i", {}, "+"), term(totals.sampled_out_events, "sampled out: bytes are estimates")],
      totals.unknown_frees > 0 && h("span", { class: "aside" }, `${counted(totals.unknown_frees, "free")} of unknown addresses`),
      totals.inherited_blocks > 0 && h("span", { class: "aside" }, `${bytes(totals.inherited_bytes)} inherited by forked children`));
  });
  const ledger = document.getElementById("ledger");
  const whole = problems.length === 0 && lost === 0;
  ledger.className = whole ? "whole" : "gaps";
  const shown = problems.slice(0, 6);
  if (whole) {
    const exact = sums.length === 1 && page.recordings[0].totals;
    const isPlain = exact && exact.sampled_out_events === 0 && exact.unknown_frees === 0 && exact.inherited_blocks === 0;
    fill(ledger, h("div", { class: "ledger-head" }, isPlain ? `✓ Nothing is missing: ${count(exact.emitted_events)} events emitted, all recorded` : ["✓ Nothing is missing", sums]));
    return;
  }
  fill(ledger,
    h("div", { class: "ledger-head" },
      h("strong", {}, lost > 0 ? `! ${counted(lost, "event")} lost` : "! Something is missing"),
      h("div", { class: "ledger-sums" }, sums)),
    shown.length > 0 && h("ul", {}, shown.map((one) => h("li", {}, h("bdi", {}, one)))),
    problems.length > shown.length && h("details", {}, h("summary", {}, `${count(problems.length - shown.length)} more`), h("ul", {}, problems.slice(shown.length).map((one) => h("li", {}, h("bdi", {}, one))))));
}

function drawFoot() {
  fill(document.getElementById("foot"),
    h("p", {}, `Written by heaptape ${page.heaptape}. Everything is in this file; it fetches nothing.`),
    page.notes.length > 0 && h("details", {}, h("summary", {}, `${counted(page.notes.length, "note")} about names`), h("ul", {}, page.notes.map((note) => h("li", {}, h("bdi", {}, note))))));
}

/** What is shown, of which process, in which range, and what is searched for. */
function drawToolbar() {
  const measures = MEASURES.filter((one) => (one.id !== "temporary" || hasEvents()) && (one.id !== "growth" || hasEvents()) && (one.id !== "peak" || hasPeak()));
  const option = (one) => h("option", { value: one.id }, one.title);
  const what = h("select", { id: "measure", onchange: (event) => choose({ measure: event.target.value }) }, measures.map(option));
  const names = page.processes.map((process, number) => h("option", { value: number },
    `${COMPARING() ? (process.recording === 0 ? "before: " : "after: ") : ""}${process.name} (${process.pid})`));
  const who = h("select", { id: "process", onchange: (event) => choose({ process: event.target.value === "all" ? "all" : Number(event.target.value) }) },
    h("option", { value: "all" }, COMPARING() ? "both recordings, all processes" : `all ${page.processes.length} processes`), names);
  const search = h("input", { id: "search", type: "search", placeholder: "Search", "aria-label": "Search functions, files and modules; a regular expression between slashes",
    autocomplete: "off", spellcheck: "false", oninput: (event) => choose({ search: event.target.value }) });
  const range = h("button", { type: "button", id: "range", hidden: true, title: "Click to show the whole run (Esc in the timeline)", onclick: () => choose({ from: 0, to: page.axis.slots }) });
  const which = h("select", { id: "thread", onchange: (event) => choose({ thread: event.target.value }) });
  const base = h("button", { type: "button", id: "base", hidden: true, onclick: () => choose(hasBase() ? { baseFrom: 0, baseTo: 0 } : { baseFrom: state.from, baseTo: state.to, from: state.to < page.axis.slots ? state.to : 0, to: state.to < page.axis.slots ? Math.min(page.axis.slots, 2 * state.to - state.from) : page.axis.slots }) });
  const about = h("p", { id: "measure-about" });
  fill(document.getElementById("toolbar"),
    h("label", {}, h("span", {}, "Show"), what),
    page.processes.length > (COMPARING() ? 2 : 1) && h("label", {}, h("span", {}, "of"), who),
    h("label", { id: "threads-label", hidden: true }, h("span", {}, "thread"), which),
    search, range, base, about);
  const update = () => {
    what.value = state.measure;
    who.value = String(state.process);
    const threads = threadNames();
    document.getElementById("threads-label").hidden = threads.length < 2 && state.thread === "all";
    fill(which, h("option", { value: "all" }, `all ${threads.length}`), [...new Set([...threads, ...(state.thread === "all" ? [] : [state.thread])])].map((name) => h("option", { value: name }, name)));
    which.value = state.thread;
    if (search.value !== state.search) search.value = state.search;
    range.hidden = !hasRange();
    range.textContent = hasRange() ? `${position(slotStart(state.from))} – ${position(slotStart(state.to))} ✕` : "";
    range.setAttribute("aria-label", hasRange() ? `Range ${position(slotStart(state.from))} to ${position(slotStart(state.to))}: click to show the whole run` : "");
    base.hidden = COMPARING() || !hasBase() && !hasRange();
    base.textContent = hasBase() ? `against ${position(slotStart(state.baseFrom))} – ${position(slotStart(state.baseTo))} ✕` : "Compare this range with another";
    base.title = hasBase() ? "End the comparison of the two ranges" : "Keeps this range as the one before; then drag over another one";
    const add = (all) => all.reduce((sum, value) => sum + value, 0);
    const { before, after } = sides(state.measure);
    const total = before === null ? [add(after)] : [add(before), add(after)];
    const shown = measure().unit;
    fill(about, h("b", {}, comparing() ? `${shown(total[0])} → ${shown(total[1])}` : shown(total[0])), " ", measure().about[hasRange() ? 1 : 0]);
    about.title = rangeSums().shrunk < 0 && state.measure === "growth" ? `What shrank, by ${bytes(-rangeSums().shrunk)}, is only in the table` : "";
  };
  whenChosen(update);
  update();
}
