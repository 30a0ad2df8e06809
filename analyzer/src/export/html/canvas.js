// Drawing: colours of the theme, canvases as sharp as the screen, and the tip beside the pointer.

let colours_ = null;

/** Colours and fonts as the style sheet has them now. */
function palette() {
  if (colours_ !== null) return colours_;
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  colours_ = Object.fromEntries(["page", "card", "text", "muted", "line", "accent", "before", "bars", "bad", "mark", "sans", "mono", "more", "less"].map((name) => [name, value(name)]));
  colours_.dark = value("dark") === "1";
  return colours_;
}

function forgetPalette() {
  colours_ = null;
}

/** Sets a canvas's size in CSS pixels, and returns its cleared drawing context. */
function size(canvas, width, height) {
  const sharp = Math.min(window.devicePixelRatio || 1, 3);
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** Calls back when an element is another width: a drawing changes its height itself. */
function whenWidthChanges(element, changed) {
  let width = -1;
  new ResizeObserver(() => {
    if (element.clientWidth === width || element.clientWidth === 0) return;
    width = element.clientWidth;
    requestAnimationFrame(changed);
  }).observe(element);
}

function line(pen, colour, fromX, fromY, toX, toY) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

/** As much of a text as fits, with an ellipsis; nothing when not even two characters do. */
function clip(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return low < 2 ? "" : text.slice(0, low) + "…";
}

/** Lines of [class, text] beside a point of the window. */
function showTip(lines, x, y) {
  const tip = document.getElementById("tip");
  fill(tip, lines.map(([kind, text]) => h("div", { class: kind }, h("bdi", {}, text))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}
