// Threads, and the tree of processes.

const LISTED = 40;

/** Threads that nobody named have their program's name: their number tells them apart. */
function threadLabel(threads, thread) {
  const alone = thread.name !== "" && threads.filter((other) => other.name === thread.name).length === 1;
  return alone ? thread.name : `thread ${thread.number}`;
}

function drawThreads() {
  const section = document.getElementById("threads");
  const view = { section, shown: LISTED };
  whenChosen((changed) => { if (changed.has("process") || changed.has("thread")) { if (changed.has("process")) view.shown = LISTED; paintThreads(view); } });
  paintThreads(view);
}

/** The entry of the filter that a thread belongs to. */
function groupOfThread(thread) {
  return thread.process.groups.find((group) => group.threads.includes(thread.number))?.name ?? "all";
}

/** Where on the axis something was. */
function spanBar(span) {
  const share = (units) => `${Math.max(0, Math.min(100, units / page.axis.length * 100)).toFixed(2)}%`;
  return h("span", { class: "span", title: `${position(span[0])} – ${position(span[1])}` }, h("span", { style: { left: share(span[0]), width: share(Math.max(span[1] - span[0], page.axis.length * 0.004)) } }));
}

function paintThreads(view) {
  const several = shownProcesses().length > 1;
  const rows = shownProcesses().flatMap((process) => process.threads.map((thread) => ({ ...thread, process }))).sort((a, b) => b.bytes - a.bytes);
  const more = shownProcesses().reduce((sum, process) => sum + process.more_threads, 0) + Math.max(0, rows.length - view.shown);
  view.section.hidden = rows.length === 0;
  const number = (value, title, unit = count) => h("td", { class: "number", "data-title": title }, unit(value));
  const times = page.axis.unit === "ns";
  fill(view.section, h("div", { class: "head" }, h("h2", { id: "threads-title" }, "Threads")),
    threadNames().length > 1 && h("p", { class: "key" }, "Click a thread to see its memory alone; threads of the same name count together."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of threads" }, h("table", { class: "rows" },
      h("thead", {}, h("tr", {}, ["Thread", several && "Process", times && "When"].filter(Boolean).map((title) => h("th", { scope: "col" }, title)),
        [["Allocated"], ["Allocations"], ["Resizes"], ["Frees"], ["Cross-thread", "Frees of blocks that another thread allocated"], ["Live", "Of its blocks, at the end"], ["Lost", "Events dropped for want of space"]].map(([title, about]) => h("th", { scope: "col", class: "number", title: about }, title)))),
      h("tbody", {}, rows.slice(0, view.shown).map((thread) => h("tr", { class: `pick ${state.thread === groupOfThread(thread) ? "chosen" : ""}`, onclick: () => choose({ thread: state.thread === groupOfThread(thread) ? "all" : groupOfThread(thread) }) },
        h("th", { scope: "row" }, h("button", { type: "button", class: "row", "aria-pressed": String(state.thread === groupOfThread(thread)) }, h("bdi", {}, thread.name || `thread ${thread.number}`)), thread.tid !== null && h("span", { class: "of" }, `tid ${thread.tid}`)),
        several && h("td", {}, h("bdi", {}, thread.process.name), h("span", { class: "of" }, `${thread.process.pid}`)),
        times && h("td", { class: "when" }, spanBar(thread.span)),
        number(thread.bytes, "Allocated", bytes), number(thread.allocs, "Allocations"), number(thread.resizes, "Resizes"), number(thread.frees, "Frees"), number(thread.frees_of_others, "Cross-thread"), number(thread.live_bytes, "Live", bytes),
        h("td", { class: `number ${thread.lost_events > 0 ? "bad" : ""}`, "data-title": "Lost" }, thread.lost_events === null ? "–" : count(thread.lost_events))))))),
    more > 0 && h("p", { class: "key" }, `${counted(more, "thread")} more, which allocated less.`));
}

function drawProcesses() {
  const section = document.getElementById("processes");
  section.hidden = page.processes.length < 2;
  if (section.hidden) return;
  const view = { section };
  whenChosen((changed) => { if (changed.has("process")) paintProcesses(view); });
  paintProcesses(view);
}

/** Processes with their depth, children after their parents. A loop of parents, which only a forged file has, is broken. */
function processTree() {
  const parentOf = (process) => page.processes.find((other) => other !== process && other.recording === process.recording && (process.parent !== null ? other.folder === process.parent : other.pid === process.ppid && other.pid !== 0));
  const parents = new Map(page.processes.length > 2000 ? [] : page.processes.map((process) => [process, parentOf(process)]));
  const children = new Map();
  for (const process of page.processes) {
    const parent = parents.get(process) ?? null;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(process);
  }
  const ordered = [];
  const seen = new Set();
  const visit = (process, depth) => {
    if (seen.has(process)) return;
    seen.add(process);
    ordered.push([process, depth]);
    if (depth < 200) for (const child of children.get(process) ?? []) visit(child, depth + 1);
  };
  for (const process of children.get(null) ?? []) visit(process, 0);
  for (const process of page.processes) visit(process, 0);
  return ordered;
}

function paintProcesses(view) {
  const rows = processTree();
  const number = (value, title, unit = count) => h("td", { class: "number", "data-title": title }, unit(value));
  const times = page.axis.unit === "ns";
  const row = ([process, depth]) => h("tr", { class: `pick ${state.process === process.number ? "chosen" : ""}`, onclick: () => choose({ process: state.process === process.number ? "all" : process.number }) },
    h("th", { scope: "row", style: { "padding-left": `${0.5 + Math.min(depth, 12) * 1.1}rem` } },
      depth > 0 && h("span", { class: "branch", "aria-hidden": "true" }, "└ "),
      h("button", { type: "button", class: "row", title: process.command, "aria-pressed": String(state.process === process.number) }, h("bdi", {}, process.name)),
      h("span", { class: "of" }, [process.pid || "", process.origin, COMPARING() && (process.recording === 0 ? "before" : "after")].filter(Boolean).join(" · "))),
    times && h("td", { class: "when" }, process.has_events && spanBar(process.span)),
    number(process.recorded_events, "Events"), h("td", { class: `number ${process.lost_events > 0 ? "bad" : ""}`, "data-title": "Lost" }, count(process.lost_events)),
    number(process.bytes_allocated, "Allocated", bytes), number(process.peak_bytes, "Own peak", bytes), number(process.live_bytes, "Live", bytes),
    h("td", { class: process.complete ? "" : "bad" }, process.ending, !process.complete && " · incomplete"));
  fill(view.section, h("div", { class: "head" }, h("h2", { id: "processes-title" }, "Processes")),
    h("p", { class: "key" }, "Click a process to see it alone."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of processes" }, h("table", { class: "rows" },
      h("thead", {}, h("tr", {}, ["Program", times && "When"].filter(Boolean).map((title) => h("th", { scope: "col" }, title)),
        [["Events"], ["Lost"], ["Allocated"], ["Own peak", "Of this process alone, at its own time"], ["Live", "At its end"]].map(([title, about]) => h("th", { scope: "col", class: "number", title: about }, title)), h("th", { scope: "col" }, "End"))),
      h("tbody", {}, rows.slice(0, 1000).map(row)))),
    rows.length > 1000 && h("p", { class: "key" }, `${counted(rows.length - 1000, "process")} more.`));
}
