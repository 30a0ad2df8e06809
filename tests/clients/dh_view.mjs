// Valgrind's own viewer, dh_view.js, on a data file, without a browser: what it adds up, and the text that it shows.
//   node dh_view.mjs dh_view.js FILE
import fs from "node:fs";
import vm from "node:vm";

const [viewer, file] = process.argv.slice(2);
const texts = [];

// As much of a document as the viewer touches.
class Element {
  constructor(text = "") {
    this.text = text;
    this.childNodes = [];
    this.classList = { add() {}, toggle() {}, contains: () => false };
    this.selectedIndex = 0;
    this.options = [];
    if (text) texts.push(text);
  }
  appendChild(child) {
    child.parentNode = this;
    this.childNodes.push(child);
    if (child.option) this.options.push(child);
    return child;
  }
  replaceChild(child) { child.parentNode = this; }
  cloneNode() { return new Element(); }
  remove() {}
}

const document = {
  body: new Element(),
  createElement(name) { const made = new Element(); made.option = name === "option"; return made; },
  createTextNode: text => new Element(text),
};
const context = vm.createContext({ document, window: {}, console, performance, Intl, location: { search: "" }, URLSearchParams });
const run = code => vm.runInContext(code, context);
run(fs.readFileSync(viewer, "utf8"));
context.text = fs.readFileSync(file, "utf8");
context.document.location = { search: "" };
run("onLoad(); gData = JSON.parse(text); buildTree();");
const sums = run("({ bytes: gRoot._totalBytes, blocks: gRoot._totalBlocks, peak: gRoot._atTGmaxBytes, end: gRoot._atTEndBytes, end_blocks: gRoot._atTEndBlocks })");
texts.length = 0;
run("displayTree(0, 0, 0)");
console.log(JSON.stringify({ ...sums, shown: texts.join("") }));
