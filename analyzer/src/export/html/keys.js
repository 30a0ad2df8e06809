// Colors of the page, keys, and the dialog that explains both.

const THEMES = ["auto", "light", "dark"];

function drawTheme() {
  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = localStorage.getItem("heaptape-theme") ?? "auto"; } catch { /* Some viewers keep nothing. */ }
  const show = () => {
    if (!THEMES.includes(theme)) theme = "auto";
    document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", `Colors: ${{ auto: "as the system", light: "light", dark: "dark" }[theme]}; click to change`);
    button.title = button.getAttribute("aria-label");
    forgetPalette();
    for (const listener of listeners) listener(new Set(["theme"]));
  };
  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem("heaptape-theme", theme); } catch { /* As above. */ }
    show();
  };
  button.addEventListener("click", next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  // Paper is light, also when the screen is dark.
  const printing = (now) => { document.documentElement.dataset.theme = now ? "light" : theme; forgetPalette(); for (const listener of listeners) listener(new Set(["theme"])); };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  show();
  return next;
}

function drawKeys(nextTheme) {
  const dialog = document.getElementById("keys");
  const keys = [
    ["/", "search functions, files and modules; a regular expression between slashes"],
    ["1 … 7", `show ${MEASURES.map((one) => one.title.toLowerCase()).join(", ")}`],
    ["i", "invert the flame graph: callers first, or the allocating function first"],
    ["p", "hide libraries, or show all frames"],
    ["l", "the flame graph as a table to open line by line, and back"],
    ["s", "the timeline in total, by functions, by modules, by threads"],
    ["0", "the whole run, all processes, threads and functions, no search"],
    ["t", "colors: as the system, light, dark"],
    ["Timeline", "drag a range; drag its edges; shift-drag moves it; ← → move it, with shift its end, with ctrl far; Esc: the whole run"],
    ["Flame graph", "click a frame to zoom; arrows go from frame to frame, Enter zooms in, Backspace out, Esc shows all; of the frame that you zoomed to you can copy the stack, merge it into its caller, or leave it out"],
    ["?", "this page"],
  ];
  const terms = [
    ["Live", "allocated and not freed yet, in requested bytes"],
    ["Peak", "the first point in time with the most live bytes; of several processes the one at which all together had most"],
    ["Temporary", "freed with no event of the same thread between: such a block could live on the stack"],
    ["Lost", "events that were dropped for want of space; emitted = recorded + lost + sampled out"],
    ["Site", "the innermost functions of the program itself, without allocator wrappers and containers"],
  ];
  const list = (rows) => h("dl", {}, rows.map(([name, about]) => h("div", {}, h("dt", {}, name), h("dd", {}, about))));
  fill(dialog, h("form", { method: "dialog" }, h("h2", { id: "keys-title" }, "Keys"), list(keys), h("h2", {}, "Terms"), list(terms), h("button", {}, "Close")));
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "Escape" && event.target.id === "search") { choose({ search: "" }); event.target.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const at = Number(event.key) - 1;
    if (event.key === "/") document.getElementById("search").focus();
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "t") nextTheme();
    else if (event.key === "i") choose({ inverted: !state.inverted });
    else if (event.key === "s") choose({ stacked: stackedKinds()[(stackedKinds().findIndex((kind) => kind.id === state.stacked) + 1) % stackedKinds().length].id });
    else if (event.key === "l") choose({ listed: !state.listed });
    else if (event.key === "p") choose({ program: !state.program });
    else if (event.key === "0") choose({ from: 0, to: page.axis.slots, baseFrom: 0, baseTo: 0, process: "all", thread: "all", search: "", merged: [], without: [] });
    else if (MEASURES[at] !== undefined) choose({ measure: MEASURES[at].id });
    else return;
    event.preventDefault();
  });
}
