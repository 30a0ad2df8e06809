// Numbers and elements. Elements are made of tags and text; text is never parsed as markup.

/** An element. Properties that begin with `on` are listeners; `style` is an object; children are elements or text. */
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Bytes in three figures. */
function bytes(number) {
  const sign = number < 0 ? "−" : "";
  let value = Math.abs(number), unit = 0;
  if (value < 1024) return `${sign}${Math.round(value)} B`;
  while (value >= 999.5 && unit + 1 < UNITS.length) { value /= 1024; unit++; }
  return `${sign}${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${UNITS[unit]}`;
}

function count(number) {
  const sign = number < 0 ? "−" : "";
  return sign + Math.round(Math.abs(number)).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

function counted(number, one) {
  return `${count(number)} ${one}${number === 1 ? "" : "s"}`;
}

/** A count in four figures, for axes and narrow columns. */
function short(number) {
  const value = Math.abs(number);
  if (value < 10000) return count(number);
  const power = Math.min(Math.floor(Math.log10(value) / 3), 5);
  const scaled = number / 1000 ** power;
  return scaled.toFixed(Math.abs(scaled) < 9.995 ? 2 : Math.abs(scaled) < 99.95 ? 1 : 0) + " " + ["", "k", "M", "G", "T", "P"][power];
}

/** Nanoseconds for people, as the reports of the command line have them. */
function duration(nanos) {
  if (nanos < 999.5) return `${Math.round(nanos)} ns`;
  if (nanos < 999999.5) return `${(nanos / 1e3).toFixed(3)} us`;
  if (nanos < 999999500) return `${(nanos / 1e6).toFixed(3)} ms`;
  if (nanos < 60e9) return `${(nanos / 1e9).toFixed(3)} s`;
  const seconds = Math.floor(nanos / 1e9);
  const two = (value) => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h${two(Math.floor(seconds / 60) % 60)}m`;
}

/** A number of an axis: without figures that say nothing. */
function round(text) {
  return text.replace(/\.0+(?= )|(\.\d*?)0+(?= )/, "$1");
}

/** A position or a distance on the axis. */
function position(units) {
  return page.axis.unit === "ns" ? duration(units) : `${short(units)} events`;
}

function percent(part, whole) {
  if (!(whole > 0)) return "–";
  return `${(part * 100 / whole).toFixed(1)}%`;
}

function signed(number, shown) {
  return number > 0 ? `+${shown(number)}` : shown(number);
}

function moment(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "";
  return new Date(milliseconds).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

/** What is searched for: a substring of a name in any case, or /a regular expression/. */
function matcher(search) {
  const wanted = search.trim();
  if (wanted === "") return null;
  const regular = /^\/(.+)\/i?$/.exec(wanted);
  if (regular) {
    try {
      const expression = new RegExp(regular[1], "i");
      return (name) => expression.test(name);
    } catch {
      return () => false;
    }
  }
  const lower = wanted.toLowerCase();
  return (name) => name.toLowerCase().includes(lower);
}

/** A round step of an axis, so that about `ticks` of them fit: 1, 2 or 5 times a power of ten; for bytes a power of two. */
function niceStep(length, ticks, binary) {
  const rough = length / Math.max(ticks, 1);
  if (binary) return 2 ** Math.round(Math.log2(Math.max(rough, 1)));
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const figure = [1, 2, 5, 10].find((figure) => figure * power >= rough * 0.999) ?? 10;
  return figure * power;
}

/** Bytes on an axis: its steps are powers of two, so that 512 KiB is followed by 1 MiB. */
function axisBytes(number) {
  let value = number, unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) { value /= 1024; unit++; }
  return `${Math.round(value * 100) / 100} ${UNITS[unit]}`;
}

/** What to try when nothing is found: what looks like an expression is searched for as plain text. */
function searchHint(search) {
  const wanted = search.trim();
  const regular = /^\/(.+)\/i?$/.exec(wanted);
  if (regular) {
    try { new RegExp(regular[1], "i"); } catch (error) { return `This is no regular expression: ${error.message.replace(/^Invalid regular expression: /, "")}.`; }
    return "";
  }
  return /[.*+?^$|[\]\\]/.test(wanted) ? `This was searched for as plain text. For a regular expression, write /${wanted}/ .` : "";
}

/** A cell of a CSV file. Text that a spreadsheet would read as a formula begins with a quote, as in `export --format csv`. */
function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Saves a table as a CSV file. */
function download(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",") + "\n").join("");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** A function's short name; the whole one is its tooltip. */
function named(short, full, kind) {
  return h("bdi", { class: kind, title: full === short ? undefined : full }, short);
}
