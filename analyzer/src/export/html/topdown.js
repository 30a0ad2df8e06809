// The flame graph as a table: a line for each function below its caller, with what it holds in total and in its own calls.

/** Lines that are made at once. */
const LINES = 60;

/** The nodes that are shown below one, with those that are open. */
function topDownRows(view, node, depth, rows) {
  for (const child of node.children) {
    if (rows.length >= view.lines) { view.more = true; return; }
    const key = child.path.map((one) => one.called).join(" ");
    // A chain without a branch opens by itself, up to the first one.
    const open = view.closed.has(key) ? false : view.opened.has(key) || node.children.length === 1 || depth === 0 && child === node.children[0];
    rows.push({ node: child, depth, key, open });
    if (open) topDownRows(view, child, depth + 1, rows);
  }
}

function paintTopDown(view) {
  const part = view.topDown;
  const rows = [];
  part.more = false;
  part.root = view.zoom;
  topDownRows(part, view.zoom, 0, rows);
  const unit = measure().unit, all = view.root.a;
  const row = ({ node, depth, key, open }) => {
    const below = node.children.length > 0;
    const toggle = () => {
      part.opened.delete(key);
      part.closed.delete(key);
      (open ? part.closed : part.opened).add(key);
      paintTopDown(view);
      part.body.querySelector(`[data-key="${key}"]`)?.focus();
    };
    const self = Math.max(0, node.a - node.children.reduce((sum, child) => sum + child.a, 0));
    return h("tr", {},
      h("td", { class: "place", style: { "padding-left": `${0.7 + Math.min(depth, 30) * 0.9}rem` } },
        h("button", { type: "button", class: "row", "data-key": key, disabled: !below, "aria-expanded": below ? String(open) : undefined, onclick: toggle },
          h("span", { class: "fold", "aria-hidden": "true" }, below ? (open ? "▾" : "▸") : ""), named(node.short, node.name, "first")),
        node.where && h("span", { class: "where" }, h("bdi", {}, node.where)), h("span", { class: "of" }, h("bdi", {}, node.module))),
      h("td", { class: "number sorted", style: { "--share": `${(all > 0 ? node.a / all * 100 : 0).toFixed(1)}%` } }, unit(node.a)),
      h("td", { class: "number" }, percent(node.a, all)), h("td", { class: "number" }, unit(self)),
      comparing() && h("td", { class: `number ${node.a > node.b ? "more" : node.a < node.b ? "less" : ""}` }, signed(node.a - node.b, unit)));
  };
  const heads = [[measure().title, "of this function with all that it calls, or that calls it"], ["Share", "of all"], ["Own", "in its own calls alone"], comparing() && ["Change", "after minus before"]].filter(Boolean);
  fill(part.body, h("table", { class: "top-down" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, state.inverted ? "Allocating function, then its callers" : "Function, then what it calls"), heads.map(([title, about]) => h("th", { scope: "col", class: "number", title: about }, title)))),
    h("tbody", {}, rows.map(row))),
    part.more && h("button", { type: "button", class: "plain more-rows", onclick: () => { part.lines += 4 * LINES; paintTopDown(view); } }, "show more lines"));
}
