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

/** Nanoseconds for people. */
function duration(nanos) {
  if (nanos < 1e3) return `${Math.round(nanos)} ns`;
  if (nanos < 1e6) return `${figures(nanos / 1e3)} µs`;
  if (nanos < 999.5e6) return `${figures(nanos / 1e6)} ms`;
  if (nanos < 60e9) return `${figures(nanos / 1e9)} s`;
  const seconds = Math.floor(nanos / 1e9);
  const two = (value) => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h${two(Math.floor(seconds / 60) % 60)}m`;
}

function figures(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
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
  const share = part * 100 / whole;
  return `${share.toFixed(Math.abs(share) < 10 ? 1 : 0)} %`;
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

/** A step of 1, 2 or 5 times a power of ten (of two for bytes), so that about that many fit. */
function niceStep(length, ticks, binary) {
  const rough = length / Math.max(ticks, 1);
  if (binary && rough >= 1024) {
    const unit = 1024 ** Math.floor(Math.log(rough) / Math.log(1024));
    return unit * niceStep(rough / unit, 1, false);
  }
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const figure = [1, 2, 5, 10].find((figure) => figure * power >= rough * 0.999) ?? 10;
  return figure * power;
}
