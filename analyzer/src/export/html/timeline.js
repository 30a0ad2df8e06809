// Live bytes over the run on a canvas, with marks, and the range that a reader draws on it.

const TRACK_HEIGHT = 15;

function drawTimeline() {
  const section = document.getElementById("timeline");
  if (!hasEvents()) {
    fill(section, h("h2", { id: "timeline-title" }, "Timeline"), h("p", { class: "none" }, "A profile holds sums only: there is no order and no time in it."), h("div", { class: "parts" }));
    whenChosen((changed) => { if (changed.has("process")) showParts(section); });
    showParts(section);
    return;
  }
  const canvas = h("canvas", { tabindex: "0", role: "slider", "aria-label": "Range of the run: drag, or use the arrow keys; shift moves the end; Escape shows the whole run",
    "aria-valuemin": 0, "aria-valuemax": page.axis.slots, "aria-orientation": "horizontal" });
  const key = h("p", { class: "key" });
  const kinds = h("div", { class: "choice", role: "group", "aria-label": "Timeline by" }, stackedKinds().map((kind) => h("button", { type: "button", "data-value": kind.id, title: kind.about, onclick: () => choose({ stacked: kind.id }) }, kind.title)));
  const legend = h("div", { class: "legend", "aria-label": "Colors of the timeline" });
  const title = h("h2", { id: "timeline-title" });
  fill(section, h("div", { class: "head" }, title, key, !COMPARING() && kinds), h("div", { class: "plot" }, canvas), legend);
  const view = { canvas, title, key, kinds, legend, left: 0, width: 1, drag: null };
  whenWidthChanges(canvas.parentElement, () => paintTimeline(view));
  whenChosen((changed) => { if (["from", "to", "baseFrom", "baseTo", "process", "thread", "stacked", "theme"].some((name) => changed.has(name))) paintTimeline(view); });
  listenToTimeline(view);
}

/** What the resident memory of profiles consists of at their last snapshots, which the recorder divided. */
function showParts(section) {
  const sums = RESIDENT.map(([name, text]) => ({ text, bytes: shownProcesses().reduce((sum, process) => sum + (new Map(process.residents.at(-1)?.parts ?? []).get(name) ?? 0), 0) }));
  const known = sums.filter((part) => part.bytes > 0);
  fill(section.querySelector(".parts"), ...(known.length === 0 ? [] : [
    h("p", {}, "Resident memory at the last snapshot, by use:"),
    h("table", {}, ...known.map((part) => h("tr", {}, h("td", { class: "number" }, bytes(part.bytes)), h("td", {}, part.text)))),
  ]));
}

/** Threads and processes that began, in the order of their start. */
function timelineTracks() {
  const shown = shownProcesses().filter((process) => process.has_events);
  if (shown.length > 1) {
    const tracks = [...shown].sort((a, b) => b.recorded_events - a.recorded_events).slice(0, 6).sort((a, b) => a.span[0] - b.span[0]);
    return tracks.map((process) => ({ label: COMPARING() ? (process.recording === 0 ? "before" : "after") : `${process.name} ${process.pid}`, span: process.span, ticks: process.threads.map((thread) => thread.span[0]).filter((_, at) => at > 0) }));
  }
  if (page.axis.unit !== "ns") return [];
  const threads = shown.flatMap((process) => process.threads);
  if (threads.length < 2) return [];
  return threads.slice(0, 6).sort((a, b) => a.span[0] - b.span[0]).map((thread) => ({ label: threadLabel(threads, thread), span: thread.span, ticks: [] }));
}

function paintTimeline(view) {
  const { canvas } = view;
  const colours = palette();
  const tracks = timelineTracks();
  const width = Math.max(canvas.parentElement.clientWidth, 100);
  const plot = width < 600 ? 150 : 210;
  const rates = 34;
  const height = 14 + plot + 8 + rates + 20 + tracks.length * TRACK_HEIGHT + (tracks.length > 0 ? 6 : 0);
  const pen = size(canvas, width, height);
  pen.font = `11px ${colours.sans}`;
  const names = Math.max(0, ...tracks.map((track) => pen.measureText(track.label).width));
  const left = width < 600 ? 60 : Math.min(160, Math.max(70, names + 14)), right = 10;
  Object.assign(view, { left, width: width - left - right });
  const x = (units) => left + units / page.axis.length * view.width;
  const top = 14, bottom = top + plot;

  const series = page.recordings.map((_, recording) => ({ live: liveLine(recording), most: liveLine(recording, "most"), allocs: liveLine(recording, "allocs") }));
  const alone = shownProcesses().length === 1 && state.thread === "all";
  // Several processes need not have their peaks at the same time: the peak of one is drawn.
  const most = series.map((one) => (alone ? one.most : one.live));
  const stacked = state.stacked !== "total" && !COMPARING();
  const bySnapshot = stacked && state.stacked === "resident";
  const peak = Math.max(1, bySnapshot ? residentPeak() : 0, ...most.map((line) => line.reduce((a, b) => Math.max(a, b), 0)));
  const step = niceStep(peak, plot / 40, true);
  // The axis ends with a step above everything.
  const highest = Math.ceil(peak * 1.04 / step) * step;
  const y = (value) => bottom - value / highest * plot;
  view.title.textContent = bySnapshot ? "Resident memory over the run" : "Live bytes over the run";

  pen.textBaseline = "middle";
  for (let value = 0; value <= highest; value += step) {
    const at = Math.round(y(value)) + 0.5;
    line(pen, colours.line, left, at, width - right, at);
    pen.fillStyle = colours.muted;
    pen.textAlign = "right";
    pen.fillText(axisBytes(value), left - 8, at);
  }
  paintTimeAxis(pen, colours, x, bottom + 8 + rates + 10, view.width);
  paintLosses(pen, colours, x, top, bottom);
  paintMarks(pen, colours, x, top, bottom);

  const slices = page.axis.slices;
  const sliceX = (at) => left + at / slices * view.width;
  if (stacked) paintAreas(pen, colours.dark, (slot) => left + slot / page.axis.slots * view.width, y);
  series.forEach(({ live }, recording) => {
    const after = !COMPARING() || recording === 1;
    const path = new Path2D();
    path.moveTo(left, y(0));
    // After the end of its last process a side has no bytes: its curve ends there.
    const until = COMPARING() ? lastSlice(recording) : slices;
    for (let at = 0; at < until; at++) {
      path.lineTo(sliceX(at), y(at === 0 ? 0 : live[at - 1]));
      path.lineTo(sliceX(at + 0.5), y(most[recording][at]));
      path.lineTo(sliceX(at + 1), y(live[at]));
    }
    const edge = new Path2D(path);
    path.lineTo(sliceX(until), y(0));
    path.closePath();
    if (after && !stacked) {
      pen.globalAlpha = 0.16;
      pen.fillStyle = colours.accent;
      pen.fill(path);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = after ? colours.accent : colours.before;
    pen.lineWidth = 1.5;
    pen.setLineDash(after ? [] : [5, 3]);
    pen.stroke(edge);
    pen.setLineDash([]);
  });
  if (bySnapshot) {
    paintMapped(pen, colours.text, (share) => left + share * view.width, y);
    paintSnapshots(pen, colours.text, x, bottom);
  }
  paintRates(pen, colours, series, sliceX, bottom + 8, rates);
  if (!bySnapshot) paintPeak(pen, colours, x, y, most, width - right);
  paintTracks(pen, colours, tracks, x, bottom + 8 + rates + 22, left);
  paintRange(pen, colours, view, top, height);
  sayRange(view, peak);
  for (const button of view.kinds.children) button.setAttribute("aria-pressed", String(button.dataset.value === state.stacked));
  fill(view.legend, stacked ? areaLegend(colours.dark) : tracks.length > 0 && h("span", { class: "muted" }, shownProcesses().length > 1 ? "The bars show when each process ran; a mark in one is the start of a thread." : "The bars show when each thread allocated, from its first event to its last."), markLegend());
}

/** Slices of the axis up to the end of a recording's last shown process. */
function lastSlice(recording) {
  const own = shownProcesses().filter((process) => process.recording === recording && process.has_events);
  const end = Math.max(0, ...own.map((process) => process.span[1]));
  return Math.min(page.axis.slices, Math.ceil(end / page.axis.length * page.axis.slices));
}

/** Allocations a slice, under the plot; of a comparison those of the recording after. */
function paintRates(pen, colours, series, sliceX, top, height) {
  const allocs = series[series.length - 1].allocs;
  const most = allocs.reduce((a, b) => Math.max(a, b), 1);
  pen.fillStyle = colours.bars;
  // Columns of two pixels at least; each shows the largest of its slices.
  const columns = Math.max(1, Math.floor((sliceX(allocs.length) - sliceX(0)) / 2));
  const wide = allocs.length / columns;
  for (let column = 0; column < columns; column++) {
    let value = 0;
    for (let at = Math.floor(column * wide); at < (column + 1) * wide && at < allocs.length; at++) value = Math.max(value, allocs[at]);
    if (value === 0) continue;
    const tall = Math.max(1, Math.sqrt(value / most) * (height - 4));
    pen.fillRect(sliceX(column * wide), top + height - tall, Math.max(1, sliceX(wide) - sliceX(0) - 0.5), tall);
  }
  pen.fillStyle = colours.muted;
  pen.textAlign = "right";
  pen.fillText(COMPARING() ? "allocs after" : "allocs", sliceX(0) - 8, top + height / 2);
}

function paintTimeAxis(pen, colours, x, at, width) {
  const step = niceStep(page.axis.length, width / 90, false);
  pen.fillStyle = colours.muted;
  for (let value = 0; value <= page.axis.length; value += step) {
    const label = round(position(value));
    const half = pen.measureText(label).width / 2;
    pen.textAlign = "center";
    pen.fillText(value === 0 ? "0" : label, Math.min(x(value), x(page.axis.length) - half), at);
  }
}

/** Where events are missing: hatched, so that it is seen without colour. */
function paintLosses(pen, colours, x, top, bottom) {
  for (const process of shownProcesses()) {
    for (const loss of process.losses) {
      const from = x(loss.span[0]);
      const width = Math.max(3, x(loss.span[1]) - from);
      pen.save();
      pen.beginPath();
      pen.rect(from, top, width, bottom - top);
      pen.clip();
      pen.globalAlpha = 0.15;
      pen.fillStyle = colours.bad;
      pen.fillRect(from, top, width, bottom - top);
      pen.globalAlpha = 0.8;
      for (let at = from - (bottom - top); at < from + width; at += 7) line(pen, colours.bad, at, bottom, at + (bottom - top), top);
      pen.restore();
    }
  }
}

/** The marks of the shown processes, in their order. */
function timelineMarks() {
  return shownProcesses().flatMap((process) => process.marks).sort((a, b) => a.at - b.at);
}

/** A line for each mark of the program, with its name where there is space. */
function paintMarks(pen, colours, x, top, bottom) {
  const right = x(page.axis.length);
  let free = -Infinity;
  pen.textAlign = "left";
  for (const mark of timelineMarks()) {
    const at = Math.round(x(mark.at)) + 0.5;
    pen.setLineDash([2, 3]);
    line(pen, colours.muted, at, top - 4, at, bottom);
    pen.setLineDash([]);
    const label = clip(pen, mark.name, Math.min(140, right - at - 4));
    if (at < free || label === "") continue;
    pen.fillStyle = colours.muted;
    pen.fillText(label, at + 4, top - 7);
    free = at + 12 + pen.measureText(label).width;
  }
}

/** The names of the marks, for the legend: the canvas has no space for all. */
function markLegend() {
  const marks = timelineMarks();
  if (marks.length === 0) return null;
  const more = shownProcesses().reduce((sum, process) => sum + process.more_marks, marks.length - 6);
  const names = marks.slice(0, 6).map((mark) => `${mark.name} (${position(mark.at)})`).join(", ");
  return h("span", { class: "muted" }, `Dashed lines are marks of the program: ${names}${more > 0 ? ` and ${more} more` : ""}.`);
}

function paintPeak(pen, colours, x, y, most, right) {
  const shown = shownProcesses().filter((process) => process.has_events && process.peak_at !== null);
  most.forEach((line_, recording) => {
    const own = shown.filter((process) => process.recording === recording);
    let best = 0;
    line_.forEach((value, at) => { if (value > line_[best]) best = at; });
    if (!(line_[best] > 0)) return;
    const exact = own.length === 1 && state.thread === "all";
    const joint = state.thread === "all" && peakTogether(own) ? fullestOf(own, 0, page.axis.slots) : null;
    const at = exact ? x(own[0].peak_at) : joint ? x(slotStart(joint.slot + 1)) : x(page.axis.length * (best + 0.5) / line_.length);
    const value = exact ? own[0].peak_bytes : joint ? joint.bytes : line_[best];
    pen.fillStyle = colours.text;
    pen.beginPath();
    pen.arc(at, y(value), 3.5, 0, 7);
    pen.fill();
    const label = `${COMPARING() ? (recording === 0 ? "before " : "after ") : ""}peak ${bytes(value)}`;
    pen.font = `600 11px ${colours.sans}`;
    const wide = pen.measureText(label).width;
    pen.textAlign = "left";
    // Two peaks of one moment: one label on each side.
    const labelLeft = COMPARING() && recording === 0 && at - 8 - wide > x(0) || at + 8 + wide > right ? at - 8 - wide : at + 8;
    pen.strokeStyle = colours.page;
    pen.lineWidth = 4;
    pen.strokeText(label, labelLeft, y(value));
    pen.fillText(label, labelLeft, y(value));
    pen.font = `11px ${colours.sans}`;
  });
}

function paintTracks(pen, colours, tracks, x, top, left) {
  tracks.forEach((track, number) => {
    const at = top + number * TRACK_HEIGHT;
    const from = x(track.span[0]);
    pen.fillStyle = colours.bars;
    pen.fillRect(from, at + 4, Math.max(2, x(track.span[1]) - from), TRACK_HEIGHT - 9);
    pen.fillStyle = colours.accent;
    pen.fillRect(from, at + 2, 2, TRACK_HEIGHT - 5);
    track.ticks.forEach((tick) => pen.fillRect(x(tick), at + 4, 1, TRACK_HEIGHT - 9));
    pen.fillStyle = colours.muted;
    pen.textAlign = "right";
    pen.fillText(clip(pen, track.label, left - 12), left - 8, at + TRACK_HEIGHT / 2);
  });
}

function paintRange(pen, colours, view, top, height) {
  const edge = (slot) => view.left + slot / page.axis.slots * view.width;
  if (hasBase()) {
    const [from, to] = [edge(state.baseFrom), edge(state.baseTo)];
    pen.strokeStyle = colours.before;
    pen.lineWidth = 2;
    pen.setLineDash([6, 4]);
    pen.strokeRect(from, top - 6, to - from, height - top);
    pen.setLineDash([]);
    pen.fillStyle = colours.before;
    pen.textAlign = "left";
    pen.fillText("before", from + 4, top + 2);
  }
  if (!hasRange()) return;
  const [from, to] = [edge(state.from), edge(state.to)];
  pen.globalAlpha = 0.62;
  pen.fillStyle = colours.page;
  pen.fillRect(view.left, top - 6, from - view.left, height - top);
  pen.fillRect(to, top - 6, view.left + view.width - to, height - top);
  pen.globalAlpha = 1;
  for (const at of [from, to]) {
    line(pen, colours.text, Math.round(at) + 0.5, top - 6, Math.round(at) + 0.5, height);
    pen.fillStyle = colours.text;
    pen.fillRect(Math.round(at) - 2.5, top + 20, 6, 22);
  }
}

function sayRange(view, peak) {
  const losses = shownProcesses().reduce((all, process) => all + process.losses.length, 0);
  const keys = [
    COMPARING() && h("span", { class: "swatch before" }, "before"),
    COMPARING() && h("span", { class: "swatch after" }, "after"),
    losses > 0 && h("span", { class: "swatch lost" }, counted(losses, "gap")),
    h("span", { class: "hint" }, hasRange() ? `${position(slotStart(state.from))} – ${position(slotStart(state.to))}: everything below is for this range` : "drag over a time range to see what happened in it"),
  ];
  fill(view.key, keys);
  view.canvas.setAttribute("aria-valuenow", state.from);
  view.canvas.setAttribute("aria-valuetext", hasRange() ? `${position(slotStart(state.from))} to ${position(slotStart(state.to))}` : `the whole run; ${bytes(peak)} at most`);
}

function listenToTimeline(view) {
  const { canvas } = view;
  const slots = page.axis.slots;
  const slot = (event) => Math.max(0, Math.min(slots, (event.clientX - canvas.getBoundingClientRect().left - view.left) / view.width * slots));
  const near = (event, edge) => Math.abs(slot(event) - edge) / slots * view.width < 7;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const at = slot(event);
    const ranged = hasRange();
    // The other edge stays, or the whole range moves with shift held.
    if (ranged && event.shiftKey && at > state.from && at < state.to) view.drag = { move: at, from: state.from, to: state.to };
    else view.drag = { anchor: ranged && near(event, state.from) ? state.to : ranged && near(event, state.to) ? state.from : at, start: event.clientX };
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = slot(event);
    canvas.style.cursor = hasRange() && (near(event, state.from) || near(event, state.to)) ? "ew-resize" : "crosshair";
    if (view.drag === null) { showMoment(view, event, at); return; }
    hideTip();
    if (view.drag.move !== undefined) {
      const by = Math.max(-view.drag.from, Math.min(slots - view.drag.to, Math.round(at - view.drag.move)));
      choose({ from: view.drag.from + by, to: view.drag.to + by });
    } else if (Math.abs(event.clientX - view.drag.start) > 3) {
      const [low, high] = [Math.min(at, view.drag.anchor), Math.max(at, view.drag.anchor)];
      choose({ from: Math.min(Math.floor(low + 0.25), slots - 1), to: Math.max(Math.ceil(high - 0.25), Math.floor(low + 0.25) + 1) });
    }
  });
  const stop = () => { view.drag = null; };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", stop);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => choose({ from: 0, to: slots }));
  canvas.addEventListener("keydown", (event) => {
    const step = event.ctrlKey ? Math.ceil(slots / 16) : 1;
    const by = event.key === "ArrowRight" || event.key === "ArrowUp" ? step : event.key === "ArrowLeft" || event.key === "ArrowDown" ? -step : 0;
    if (event.key === "Escape") choose({ from: 0, to: slots });
    else if (by === 0) return;
    else if (!hasRange()) choose(by > 0 ? { from: 0, to: Math.ceil(slots / 8) } : { from: slots - Math.ceil(slots / 8), to: slots });
    else if (event.shiftKey) choose({ to: Math.max(state.from + 1, Math.min(slots, state.to + by)) });
    else {
      const moved = Math.max(-state.from, Math.min(slots - state.to, by));
      choose({ from: state.from + moved, to: state.to + moved });
    }
    event.preventDefault();
  });
}

/** What was alive at the moment under the pointer. */
function showMoment(view, event, at) {
  const units = at / page.axis.slots * page.axis.length;
  const slice = Math.min(page.axis.slices - 1, Math.floor(at / page.axis.slots * page.axis.slices));
  const lines = [["strong", position(units)]];
  page.recordings.forEach((_, recording) => {
    const label = COMPARING() ? (recording === 0 ? "before: " : "after: ") : "";
    lines.push(["", `${label}${bytes(liveLine(recording)[slice])} live in ${counted(liveLine(recording, "blocks")[slice], "block")}`]);
  });
  if (state.stacked !== "total" && !COMPARING()) lines.push(...areaTip(Math.min(page.axis.slots - 1, Math.floor(at))));
  const mapped = mappedLine();
  if (mapped.length > 0 && !COMPARING()) lines.push(["", `${bytes(mapped[Math.min(mapped.length - 1, Math.floor(at / page.axis.slots * mapped.length))])} mapped by the program itself`]);
  for (const process of shownProcesses()) {
    for (const loss of process.losses) if (loss.span[0] <= units && units <= loss.span[1]) lines.push(["bad", `${counted(loss.events, "event")} of thread ${loss.thread} lost here`]);
  }
  showTip(lines, event.clientX, event.clientY);
}
