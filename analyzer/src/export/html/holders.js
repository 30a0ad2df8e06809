// Who holds what is live at the end: a map whose areas are the bytes of each root, in it the blocks that it leads to with all that those
// hold, and so on; and the same as a table. The nearest root of a block counts, the most certain ones first.

const HOLDERS_LISTED = 15;
/** Share of the map below which an area is drawn without its parts. */
const SMALL_AREA = 24 * 16;
/** Height of the line that names an area with parts, and the space around those. */
const AREA_TITLE = 17, AREA_EDGE = 2;
/** Ways in which the blocks of a card are held that it shows. */
const PATHS_SHOWN = 2;

/** Who holds the blocks of several leaks together; nothing if that was not recorded. */
function heldOfAll(leaks) {
  const known = leaks.map((leak) => leak.held).filter(Boolean);
  if (known.length === 0) return null;
  const by = new Map();
  for (const root of known.flatMap((held) => held.by)) by.set(root.name, { ...root, bytes: root.bytes + (by.get(root.name)?.bytes ?? 0) });
  const sum = (value) => known.reduce((all, held) => all + value(held), 0);
  return { by: [...by.values()].sort((a, b) => b.bytes - a.bytes), lost_bytes: sum((held) => held.lost_bytes), cycle_bytes: sum((held) => held.cycle_bytes) };
}

/** Who holds the blocks of a leak, in one sentence; nothing if that was not recorded. */
function heldText(held) {
  if (!held) return "";
  const parts = held.by.slice(0, 2).map((root) => `${root.name} (${bytes(root.bytes)})`);
  const others = held.by.slice(2).reduce((sum, root) => sum + root.bytes, 0);
  if (others > 0) parts.push(`others (${bytes(others)})`);
  const said = parts.length > 0 ? [`Held by ${parts.join(", ")}`] : [];
  if (held.lost_bytes > 0) said.push(`lost: ${bytes(held.lost_bytes)}`);
  if (held.cycle_bytes > 0) said.push(`in cycles that nothing else holds: ${bytes(held.cycle_bytes)}`);
  const text = said.join("; ");
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** The ways in which most blocks of several leaks are held, most bytes first. */
function pathsOfAll(leaks) {
  const by = new Map();
  for (const path of leaks.flatMap((leak) => leak.paths ?? [])) {
    const key = path.steps.join("\n"), known = by.get(key);
    by.set(key, { ...path, blocks: path.blocks + (known?.blocks ?? 0), bytes: path.bytes + (known?.bytes ?? 0) });
  }
  return [...by.values()].sort((a, b) => b.bytes - a.bytes).slice(0, PATHS_SHOWN);
}

/** What holds the blocks of a card, from them to the root; nothing if that was not recorded, or is said in a word: a root holds them at once. */
function pathLists(leaks) {
  const blocks = leaks.reduce((sum, leak) => sum + leak.blocks, 0);
  return pathsOfAll(leaks).filter((path) => path.steps.length > 2).map((path) => h("details", { class: "held-path" },
    h("summary", {}, path.blocks < blocks ? `How ${count(path.blocks)} of them are held` : "How they are held"),
    h("ol", {}, path.steps.map((step, at) => h("li", {}, at > 0 && h("span", { class: "muted" }, "← "), h("bdi", {}, step))))));
}

/** The roots of the shown processes, most bytes first. */
function shownHolders() {
  const several = shownProcesses().filter((process) => process.held).length > 1;
  return shownProcesses().flatMap((process) => (process.held ?? []).map((root) => ({ ...root, of: several ? `${process.name} (pid ${process.pid})` : "" }))).sort((a, b) => b.bytes - a.bytes);
}

function drawHolders() {
  const section = document.getElementById("holders");
  section.hidden = !page.processes.some((process) => process.held);
  if (section.hidden) return;
  const canvas = h("canvas", { "aria-hidden": "true" });
  const view = { section, canvas, areas: [], more: false, about: h("p", { class: "key" }), body: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of holders" }) };
  view.plot = h("div", { class: "plot holders-plot" }, canvas);
  fill(section, h("div", { class: "head" }, h("h2", { id: "holders-title" }, "Who holds it")), view.about, view.plot, view.body);
  whenChosen((changed) => { if (changed.has("process") || changed.has("theme")) paintHolders(view); });
  whenWidthChanges(view.plot, () => paintHolders(view));
  canvas.addEventListener("pointermove", (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const area = view.areas.findLast((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + one.height);
    if (area === undefined) return hideTip();
    showTip(area.tip, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip);
  paintHolders(view);
}

function paintHolders(view) {
  const roots = shownHolders();
  const all = roots.reduce((sum, root) => sum + root.bytes, 0);
  view.plot.hidden = view.body.hidden = all === 0;
  fill(view.about, all === 0 ? "Of the shown processes that was not recorded." : "Bytes live at the end by what keeps them: the nearest global, thread-local data, stack or mapping that leads to them. In each area: what it leads to, with all that this holds.");
  if (all === 0) return;
  paintMap(view, roots, all);
  const several = roots.some((root) => root.of !== "");
  const number = (value, title, unit) => h("td", { class: "number", "data-title": title }, value === null ? "–" : unit(value));
  const shown = view.more ? roots : roots.slice(0, HOLDERS_LISTED);
  fill(view.body, h("table", { class: "rows" },
    h("thead", {}, h("tr", {}, ["Held by", several && "Process"].filter(Boolean).map((title) => h("th", { scope: "col" }, title)),
      [["Bytes", "Bytes whose nearest root it is"], ["Blocks"], ["Only by it", "Bytes that nothing else leads to"]].map(([title, about]) => h("th", { scope: "col", class: "number", title: about }, title)), h("th", { scope: "col" }, "What"))),
    h("tbody", {}, shown.map((root) => h("tr", {},
      h("th", { scope: "row" }, h("bdi", { class: isUnheld(root) ? "bad" : "" }, root.name)),
      several && h("td", {}, h("bdi", {}, root.of)),
      number(root.bytes, "Bytes", bytes), number(root.blocks, "Blocks", count), number(root.only_bytes, "Only by it", bytes),
      h("td", {}, h("bdi", {}, root.kinds.map((part) => `${part.name} ${bytes(part.bytes)}`).join(", "))))))),
    roots.length > shown.length && h("button", { type: "button", class: "plain more-rows", onclick: () => { view.more = true; paintHolders(view); } }, `${count(roots.length - shown.length)} more`));
}

const isUnheld = (root) => root.kind === "lost" || root.kind === "cycle";

/** Rectangles for values in descending order, as near to squares as rows allow (Bruls, Huizing, van Wijk: squarified treemaps). */
function squarified(values_, x, y, width, height) {
  const areas = [];
  let rest = values_.reduce((sum, value) => sum + value, 0), at = 0;
  while (at < values_.length && rest > 0 && width > 0 && height > 0) {
    const wide = width >= height, side = wide ? height : width;
    const scale = width * height / rest;
    // The thickness of a row, and the worst ratio of its sides, when it has everything up to `end`.
    const worst = (sum, least, most) => { const thick = sum * scale / side; return Math.max(most * scale / thick / thick, thick * thick / (least * scale)); };
    let sum = values_[at], end = at + 1;
    while (end < values_.length && values_[end] > 0 && worst(sum + values_[end], values_[end], values_[at]) <= worst(sum, values_[end - 1], values_[at])) sum += values_[end++];
    const thick = sum * scale / side;
    let along = 0;
    for (; at < end; at++) {
      const long = values_[at] * scale / thick;
      areas.push(wide ? { x, y: y + along, width: thick, height: long } : { x: x + along, y, width: long, height: thick });
      along += long;
    }
    if (wide) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    rest -= sum;
  }
  return areas;
}

function paintMap(view, roots, all) {
  const width = view.plot.clientWidth;
  if (width === 0) return;
  const height = Math.round(Math.max(180, Math.min(420, width * 0.42)));
  const pen = size(view.canvas, width, height);
  const colours = palette();
  view.areas = [];
  pen.textBaseline = "middle";
  squarified(roots.map((root) => root.bytes), 0, 0, width, height).forEach((area, at) => {
    const root = roots[at];
    const hue = HUES[at % HUES.length];
    const light = colours.dark ? 0.36 : 0.88;
    const fillOf = (name) => (isUnheld(root) ? `oklch(${light + grain(name) * 0.02} 0.07 25)` : `oklch(${light + grain(name) * 0.03} ${at < HUES.length ? 0.055 : 0.012} ${hue})`);
    const tip = [["strong", root.name], ["", `${bytes(root.bytes)} in ${counted(root.blocks, "block")}, ${percent(root.bytes, all)}`], root.only_bytes !== null && ["muted", `only by it: ${bytes(root.only_bytes)}`], root.of !== "" && ["muted", root.of]].filter(Boolean);
    view.areas.push({ ...area, tip });
    paintArea({ pen, colours, view, fillOf }, area, { ...root, of: tip }, root.name, 0);
  });
}

/** Draws a root, or blocks that hold others, and in it what it holds. `of` is what is said of what holds it, `path` the names on the way. */
function paintArea(on, { x, y, width: wide, height: high }, held, path, level) {
  const { pen, colours, view, fillOf } = on;
  const tip = level === 0 ? held.of : [["strong", held.name], ["", `${bytes(held.bytes)}${held.blocks === undefined ? "" : ` in ${counted(held.blocks, "block")}`}${held.parts?.length > 0 ? " with what they hold" : ""}, held by`], ...held.of];
  view.areas.push({ x, y, width: wide, height: high, tip });
  pen.fillStyle = fillOf(path);
  pen.fillRect(x, y, wide, high);
  const hasTitle = wide > 36 && high >= AREA_TITLE;
  const title = hasTitle ? AREA_TITLE : 0;
  const parts = [...held.parts ?? []];
  const rest = held.bytes - parts.reduce((sum, part) => sum + part.bytes, 0);
  // What is left are the blocks themselves, and what is too small to be listed.
  if (parts.length > 0 && rest > 0) parts.push({ name: level === 0 ? "others" : "themselves, and others", bytes: rest });
  parts.sort((a, b) => b.bytes - a.bytes);
  const [inWide, inHigh] = [wide - 2 * AREA_EDGE, high - title - AREA_EDGE];
  if (parts.length > 0 && inWide * inHigh > SMALL_AREA && inHigh > 8)
    squarified(parts.map((part) => part.bytes), x + AREA_EDGE, y + title, inWide, inHigh).forEach((inner, at) =>
      paintArea(on, inner, { ...parts[at], of: tip }, path + "\n" + parts[at].name, level + 1));
  pen.strokeStyle = level === 0 ? colours.page : colours.card;
  pen.lineWidth = level === 0 ? 2 : 1;
  pen.strokeRect(x + 0.5, y + 0.5, Math.max(0, wide - 1), Math.max(0, high - 1));
  if (!hasTitle) return;
  pen.fillStyle = colours.text;
  pen.font = level === 0 ? `600 12px ${colours.sans}` : `11px ${colours.sans}`;
  pen.fillText(clip(pen, `${held.name}  ${bytes(held.bytes)}`, wide - 8), x + 4, y + 9);
}
