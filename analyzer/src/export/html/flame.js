// The flame graph: stacks as nested bars on a canvas, the widest first. Callers stand on top, or the allocating functions when it is
// inverted. A bar is as wide as what was measured below it; colours are of modules (of change, when two recordings are compared).

const BAR = 20;

function drawFlame() {
  const section = document.getElementById("flame");
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Flame graph. Arrow keys go from frame to frame, Enter zooms in, Backspace out. The table of sites below has the same numbers." });
  const view = { canvas, section, root: null, zoom: null, bars: [], focus: null, hover: null, matched: null };
  const choice = (name, value, title, hint) => h("button", { type: "button", "data-name": name, "data-value": String(value), title: hint, onclick: () => choose({ [name]: value }) }, title);
  const options = h("div", { class: "options" },
    h("div", { class: "choice", role: "group", "aria-label": "Direction" },
      choice("inverted", false, "Callers first", "From main to the function that allocates"),
      choice("inverted", true, "Inverted", "From the function that allocates to its callers")),
    h("div", { class: "choice", role: "group", "aria-label": "Frames" },
      choice("program", false, "All frames", "Every frame that was recorded"),
      choice("program", true, "Hide libraries", "Without allocator wrappers, containers and runtime libraries")),
    h("div", { class: "choice sized", role: "group", "aria-label": "Width of bars" },
      choice("sized", "after", "Sized by after"), choice("sized", "before", "before"), choice("sized", "change", "change")));
  const shape = h("div", { class: "choice", role: "group", "aria-label": "Form" }, choice("listed", false, "Graph", "Bars as wide as what is below them"), choice("listed", true, "Table", "The same as a table to open line by line"));
  options.append(shape);
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Zoom" });
  const legend = h("div", { class: "legend", "aria-label": "Colors" });
  const none = h("p", { class: "none", hidden: true });
  const body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Functions from the top down" });
  view.topDown = { body, lines: LINES, opened: new Set(), closed: new Set(), more: false };
  fill(section, h("div", { class: "head" }, h("h2", { id: "flame-title" }, "Flame graph"), options), crumbs, h("div", { class: "plot flame-plot" }, canvas), body, none, legend);
  Object.assign(view, { crumbs, legend, none, options });
  const rebuild = () => {
    const path = view.zoom?.path.slice(1).map((node) => node.called) ?? [];
    view.root = flameTree();
    view.zoom = view.root;
    // The same path in the new tree, as far as it exists.
    for (const called of path) {
      const next = view.zoom.children.find((child) => child.called === called);
      if (next === undefined) break;
      view.zoom = next;
    }
    view.focus = null;
    paintFlame(view);
  };
  whenChosen((changed) => {
    if (changed.has("inverted") || changed.has("program")) view.zoom = null;
    if (["measure", "process", "thread", "from", "to", "baseFrom", "baseTo", "inverted", "program", "sized", "merged", "without"].some((name) => changed.has(name))) rebuild();
    else if (changed.has("search") || changed.has("listed") || changed.has("theme")) paintFlame(view);
  });
  whenWidthChanges(canvas.parentElement, () => paintFlame(view));
  rebuild();
  listenToFlame(view);
}

/** Hues of modules, greatest first. Libraries of the runtime have hardly any color, and are distinguished by its lightness. */
const HUES = [230, 60, 155, 310, 95, 25, 195, 275, 130, 345];
let moduleHues = null;

function hueOf(module) {
  if (moduleHues === null) {
    const weights = new Map();
    const { of, module: modules, flags } = functionTable();
    const bytes_ = table["row.bytes"];
    // Each module counts for the stacks whose innermost frame of the program is in it.
    table["row.node"].forEach((node, row) => {
      let at = node;
      while (at !== 0 && !(flags[of[table["node.frame"][at]]] & PROGRAM)) at = table["node.parent"][at];
      if (at !== 0) {
        const name = modules[of[table["node.frame"][at]]];
        weights.set(name, (weights.get(name) ?? 0) + bytes_[row] + 1);
      }
    });
    moduleHues = new Map([...weights].sort((a, b) => b[1] - a[1]).map(([name], at) => [name, at < HUES.length ? HUES[at] : null]));
  }
  return moduleHues.get(module) ?? null;
}

/** A number between -1 and 1 that a name always has. */
function grain(name) {
  let hash = 0;
  for (let at = 0; at < name.length; at++) hash = (hash * 31 + name.charCodeAt(at)) | 0;
  return ((hash >>> 8) % 1000) / 500 - 1;
}

function barColour(node, dark) {
  const light = (dark ? 0.4 : 0.86) + grain(node.name) * 0.03;
  if (comparing()) {
    const whole = Math.max(node.a, node.b);
    const share = whole > 0 ? (node.a - node.b) / whole : 0;
    if (Math.abs(share) < 0.005) return `oklch(${light} 0.004 90)`;
    const strength = 0.03 + 0.1 * Math.sqrt(Math.abs(share));
    return `oklch(${light - Math.abs(share) * 0.03} ${strength} ${share > 0 ? 45 : 245})`;
  }
  const hue = hueOf(node.module);
  if (node.called < 0 || hue === null) return node.called < 0 ? `oklch(${light} 0.006 90)` : libraryColour(node.module, dark);
  const program = functions.flags[node.called] & PROGRAM;
  return `oklch(${light} ${program ? 0.062 : 0.025} ${hue + grain(node.name + node.module) * 14})`;
}

/** The color of a library without a hue. */
function libraryColour(module, dark) {
  const light = (dark ? 0.38 : 0.83) + grain(module) * (dark ? 0.06 : 0.07);
  return `oklch(${light.toFixed(3)} 0.014 ${Math.round((grain(module + "/") + 1) * 180)})`;
}

/** The name of a bar, and its size where there is space for both. */
function barLabel(node, pen, width) {
  const name = barName(node);
  if (comparing() || node.called < 0) return name;
  const sized = `${name}  ${measure().unit(node.a)}`;
  return pen.measureText(sized).width <= width ? sized : name;
}

function barName(node) {
  const name = node.called < 0 ? `all: ${measure().unit(node.a)}` : node.short;
  if (!comparing()) return name;
  if (node.b === 0 && node.a > 0) return `+ ${name} (new)`;
  const change = node.a - node.b;
  if (Math.abs(change) < Math.max(node.a, node.b) * 0.005) return `= ${name}`;
  return `${change > 0 ? "▲" : "▼"} ${name} ${signed(change, measure().unit)}`;
}

/** Computes positions of the bars that are at least half a pixel wide: what is zoomed to takes the whole width, its callers above it too. */
function layOut(view, width) {
  view.bars = [];
  const total = view.zoom.weight;
  if (!(total > 0)) return 0;
  const path = view.zoom.path;
  path.slice(0, -1).forEach((node, row) => view.bars.push({ node, x: 0, width, row, above: true }));
  let deepest = path.length;
  const layOut = (node, x, row) => {
    const wide = node.weight / total * width;
    view.bars.push({ node, x, width: wide, row, above: false });
    deepest = Math.max(deepest, row + 1);
    let at = x;
    for (const child of node.children) {
      const childWide = child.weight / total * width;
      if (childWide < 0.5) break;
      layOut(child, at, row + 1);
      at += childWide;
    }
  };
  layOut(view.zoom, 0, path.length - 1);
  return deepest;
}

function paintFlame(view) {
  if (view.root === null) return;
  const { canvas } = view;
  const colours = palette();
  const width = Math.max(canvas.parentElement.clientWidth, 100);
  const rows = layOut(view, width);
  const empty = rows === 0;
  canvas.parentElement.hidden = empty || state.listed;
  view.topDown.body.hidden = empty || !state.listed;
  if (!empty && state.listed) paintTopDown(view);
  view.none.hidden = !empty;
  view.none.textContent = `There is nothing to show: ${measure().title.toLowerCase()} is 0${hasRange() ? " in this range" : ""}.`;
  const pen = size(canvas, width, Math.max(rows, 1) * BAR + 1);
  const matches = matcher(state.search);
  const searched = (node) => matches === null || node.called < 0 || matches(node.name) || matches(node.module);
  let found = 0;
  pen.font = `11.5px ${colours.sans}`;
  pen.textBaseline = "middle";
  for (const bar of view.bars) {
    const { node, x, row } = bar;
    const y = row * BAR;
    const matched = searched(node);
    pen.globalAlpha = bar.above ? 0.55 : matched ? 1 : 0.28;
    pen.fillStyle = barColour(node, colours.dark);
    pen.fillRect(x, y, Math.max(bar.width - (bar.width > 3 ? 1 : 0), 0.5), BAR - 1);
    pen.globalAlpha = bar.above ? 0.7 : matched ? 1 : 0.55;
    if (matches !== null && matched && node.called >= 0 && bar.width > 2) {
      pen.strokeStyle = colours.mark;
      pen.lineWidth = 1.5;
      pen.strokeRect(x + 0.75, y + 0.75, bar.width - 2.5, BAR - 2.5);
    }
    if (bar.width > 22) {
      pen.fillStyle = colours.text;
      pen.textAlign = "left";
      pen.fillText(clip(pen, barLabel(node, pen, bar.width - 9), bar.width - 9), x + 4, y + BAR / 2);
    }
    pen.globalAlpha = 1;
    // What a matching frame calls is counted with it.
    if (matches !== null && node.called >= 0 && matched && !bar.above && !node.path.slice(0, -1).some((caller) => caller.called >= 0 && searched(caller))) found += node.weight;
  }
  if (view.focus !== null) {
    const bar = view.bars.find((one) => one.node === view.focus);
    if (bar !== undefined) {
      pen.strokeStyle = colours.text;
      pen.lineWidth = 2;
      pen.strokeRect(bar.x + 1, bar.row * BAR + 1, Math.max(bar.width - 3, 2), BAR - 3);
    }
  }
  view.matched = matches === null ? null : found;
  sayFlame(view);
}

function sayFlame(view) {
  for (const button of view.options.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(String(state[button.dataset.name]) === button.dataset.value));
  }
  const path = view.zoom.path;
  const zoomed = path.length > 1;
  const crumb = (node, last) => last ? h("b", {}, named(node.short, node.name)) : h("button", { type: "button", onclick: () => zoomTo(view, node) }, named(node.short, node.name));
  const shown = path.length > 4 ? [path[0], null, ...path.slice(-2)] : path;
  fill(view.crumbs,
    zoomed && shown.map((node, at) => [at > 0 && h("i", {}, "›"), node === null ? "…" : crumb(node, node === view.zoom)]),
    zoomed && h("button", { type: "button", class: "plain", onclick: () => zoomTo(view, view.root) }, "zoom out"),
    zoomed && h("button", { type: "button", class: "plain", onclick: () => showCallers(view.zoom.name) }, "callers and callees"),
    zoomed && copyButton(() => pathText(view.zoom), "copy the stack"),
    zoomed && h("button", { type: "button", class: "plain", title: "Counts it as its caller, here and below", onclick: () => hide(view, "merged") }, "merge into the caller"),
    zoomed && h("button", { type: "button", class: "plain", title: "Leaves out all stacks with this function, here and below; the timeline still has them", onclick: () => hide(view, "without") }, "leave out"),
    NAMES.flatMap((kind) => state[kind].map((name) => h("button", { type: "button", class: "hidden-function", title: `${name}: click to show it again`, onclick: () => choose({ [kind]: state[kind].filter((one) => one !== name) }) }, `${kind === "merged" ? "merged: " : "left out: "}`, h("bdi", {}, shortOf(name)), " ✕"))),
    view.matched !== null && h("span", { class: "matched" }, `“${state.search}” matches ${measure().unit(view.matched)}, ${percent(view.matched, view.zoom.weight)}`),
    view.matched === 0 && searchHint(state.search) && h("span", { class: "muted" }, searchHint(state.search)));
  view.options.querySelector(".sized").hidden = !comparing();
  const modules = new Map();
  for (const { node, width, above } of view.bars) if (!above && node.called >= 0 && node.module !== "") modules.set(node.module, (modules.get(node.module) ?? 0) + width);
  const swatch = (colour, title, onclick) => h(onclick ? "button" : "span", { type: onclick && "button", class: "module", onclick }, h("span", { class: "swatch-box", style: { background: colour } }), h("bdi", {}, title));
  const dark = palette().dark;
  if (comparing()) {
    const sample = (share, title) => swatch(barColour({ name: "", called: 0, a: 1 + Math.max(share, 0), b: 1 - Math.min(share, 0) }, dark), title);
    fill(view.legend, sample(1, "▲ more than before"), sample(0, "= the same"), sample(-1, "▼ less than before"));
  } else {
    const light = dark ? 0.4 : 0.86;
    fill(view.legend, [...modules].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([module]) => {
      const hue = hueOf(module);
      return swatch(hue === null ? libraryColour(module, dark) : `oklch(${light} 0.062 ${hue})`, module, () => choose({ search: state.search === module ? "" : module }));
    }));
  }
}

/** Merges the function that is zoomed to into its callers, or leaves out its stacks. */
function hide(view, kind) {
  const name = view.zoom.name;
  view.zoom = view.zoom.parent ?? view.zoom;
  choose({ [kind]: [...state[kind], name] });
}

function shortOf(name) {
  return functions.short[functions.name.indexOf(name)] ?? name;
}

/** The functions from a bar outwards, innermost first, as text. */
function pathText(node) {
  const path = node.path.slice(1).map((one) => [one.name, one.where].filter(Boolean).join(" "));
  return (state.inverted ? path : path.reverse()).join("\n");
}

function zoomTo(view, node) {
  view.zoom = node;
  view.focus = node;
  hideTip();
  paintFlame(view);
}

/** How many blocks or calls the value of a node has, or how many bytes its calls have. */
function ofNode(node) {
  const [id, one] = measure().of;
  if (!(node.of > 0)) return "";
  if (one === undefined) return bytes(node.of);
  return `${counted(node.of, one)}, ${bytes(node.a / node.of)} on average`;
}

/** Maximum number of characters of a name in a tooltip. */
const LONGEST = 200;

/** A name without its middle, if it is very long. */
function clamped(name) {
  return name.length <= LONGEST ? name : `${name.slice(0, LONGEST / 2)}…${name.slice(-LONGEST / 2)}`;
}

function tipOf(view, node) {
  const unit = measure().unit;
  // The numbers come before what may be long.
  const lines = [];
  if (comparing()) lines.push(["", `${unit(node.b)} before, ${unit(node.a)} after`], [`strong ${node.a > node.b ? "more" : "less"}`, `${signed(node.a - node.b, unit)}${node.b > 0 ? ` (${percent(node.a - node.b, node.b)})` : ""}`]);
  else {
    lines.push(["strong", `${unit(node.a)}, ${percent(node.a, view.root.a)} of all${view.zoom !== view.root ? `, ${percent(node.a, view.zoom.a)} of what is shown` : ""}`]);
    if (ofNode(node) !== "") lines.push(["", ofNode(node)]);
    const self = node.a - node.children.reduce((sum, child) => sum + child.a, 0);
    if (node.called >= 0 && !state.inverted) lines.push(["muted", node.children.length === 0 ? "all of it in its own calls" : `${unit(Math.max(0, self))} in its own calls, ${unit(node.a - Math.max(0, self))} in what it calls`]);
  }
  lines.push(["strong", clamped(node.short)]);
  const where = node.called < 0 ? "" : node.where;
  if (node.module !== "" || where !== "") lines.push(["muted", [where, node.module].filter(Boolean).join(" · ")]);
  if (node.name !== node.short) lines.push(["muted whole-name", clamped(node.name)]);
  return lines;
}

function listenToFlame(view) {
  const { canvas } = view;
  const barAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, row = Math.floor((event.clientY - box.top) / BAR);
    return view.bars.find((bar) => bar.row === row && bar.x <= x && x < bar.x + Math.max(bar.width, 1));
  };
  canvas.addEventListener("pointermove", (event) => {
    const bar = barAt(event);
    canvas.style.cursor = bar ? "pointer" : "default";
    if (bar) showTip(tipOf(view, bar.node), event.clientX, event.clientY); else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const bar = barAt(event);
    if (bar) zoomTo(view, bar.node === view.zoom && bar.node.parent !== null ? bar.node.parent : bar.node);
  });
  canvas.addEventListener("blur", () => { view.focus = null; hideTip(); paintFlame(view); });
  canvas.addEventListener("keydown", (event) => {
    const at = view.bars.find((bar) => bar.node === (view.focus ?? view.zoom));
    const neighbor = (by) => view.bars.filter((bar) => bar.row === at.row && bar.node.parent === at.node.parent).map((bar) => bar.node)[
      view.bars.filter((bar) => bar.row === at.row && bar.node.parent === at.node.parent).indexOf(at) + by];
    const keys = {
      ArrowDown: () => view.bars.find((bar) => bar.node.parent === at.node && bar.row === at.row + 1)?.node,
      ArrowUp: () => at.node.parent ?? undefined,
      ArrowRight: () => neighbor(1),
      ArrowLeft: () => neighbor(-1),
      Home: () => view.zoom,
    };
    if (at === undefined) return;
    if (event.key === "Enter") zoomTo(view, at.node);
    else if (event.key === "Backspace") zoomTo(view, view.zoom.parent ?? view.zoom);
    else if (event.key === "Escape") zoomTo(view, view.root);
    else if (event.key in keys) {
      view.focus = keys[event.key]() ?? at.node;
      paintFlame(view);
      const bar = view.bars.find((one) => one.node === view.focus);
      const box = canvas.getBoundingClientRect();
      if (bar) showTip(tipOf(view, bar.node), box.left + bar.x, box.top + bar.row * BAR);
    } else return;
    event.preventDefault();
  });
}
