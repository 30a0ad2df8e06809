// Who holds what is live at the end: a map whose areas are the bytes of each root, divided into the kinds of blocks that it holds, and
// the same as a table. The nearest root of a block counts, the most certain ones first.

const HOLDERS_LISTED = 15;
/** Share of the map below which an area is drawn without its parts. */
const SMALL_AREA = 24 * 16;

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
  fill(view.about, all === 0 ? "Of the shown processes that was not recorded." : "Bytes live at the end by what keeps them: the nearest global, thread-local data, stack or mapping that leads to them.");
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
      h("td", {}, h("bdi", {}, root.parts.slice(0, 3).map((part) => `${part.name} ${bytes(part.bytes)}`).join(", "))))))),
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
    const { x, y, width: wide, height: high } = area;
    pen.fillStyle = fillOf(root.name);
    pen.fillRect(x, y, wide, high);
    const hasTitle = wide > 40 && high > 18;
    const title = hasTitle ? 18 : 0;
    const rest = root.bytes - root.parts.reduce((sum, part) => sum + part.bytes, 0);
    const parts = rest > 0 ? [...root.parts, { name: "others", bytes: rest }].sort((a, b) => b.bytes - a.bytes) : root.parts;
    if (wide * (high - title) > SMALL_AREA && parts.length > 0 && high - title > 8) {
      squarified(parts.map((part) => part.bytes), x + 2, y + title, wide - 4, high - title - 2).forEach((inner, number) => {
        const part = parts[number];
        pen.fillStyle = fillOf(root.name + part.name);
        pen.fillRect(inner.x, inner.y, inner.width, inner.height);
        pen.strokeStyle = colours.card;
        pen.lineWidth = 1;
        pen.strokeRect(inner.x + 0.5, inner.y + 0.5, Math.max(0, inner.width - 1), Math.max(0, inner.height - 1));
        view.areas.push({ ...inner, tip: [["strong", part.name], ["", `${bytes(part.bytes)}${part.blocks === undefined ? "" : ` in ${counted(part.blocks, "block")}`}, held by`], ...tip] });
        if (inner.width < 34 || inner.height < 15) return;
        pen.fillStyle = colours.text;
        pen.font = `11px ${colours.sans}`;
        pen.fillText(clip(pen, `${part.name}  ${bytes(part.bytes)}`, inner.width - 8), inner.x + 4, inner.y + Math.min(10, inner.height / 2));
      });
    }
    pen.strokeStyle = colours.page;
    pen.lineWidth = 2;
    pen.strokeRect(x, y, wide, high);
    if (!hasTitle) return;
    pen.fillStyle = colours.text;
    pen.font = `600 12px ${colours.sans}`;
    pen.fillText(clip(pen, `${root.name}  ${bytes(root.bytes)}`, wide - 8), x + 4, y + 9);
  });
}
