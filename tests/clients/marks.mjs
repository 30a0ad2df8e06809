// Reads a page as its own script does, and prints the marks that it draws on its timeline: position and name of each, and the legend:
// node marks.mjs PAGE SCRIPTS...
import fs from "node:fs";
import vm from "node:vm";

const [file, ...scripts] = process.argv.slice(2);
const html = fs.readFileSync(file, "utf8");
const part = (id) => html.match(new RegExp(`<script[^>]* id="${id}"[^>]*>([^]*?)</script>`))[1];
const element = () => ({ text: "", setAttribute() {}, append(...children) { this.text += children.join(""); } });
const document = { getElementById: (id) => ({ textContent: part(id) }), createElement: element };
const context = vm.createContext({ document, atob, Blob, Response, DecompressionStream, TextDecoder, Uint8Array, console });
const source = scripts.map((script) => fs.readFileSync(script, "utf8")).join("\n");
// A pen that notes what it draws, on a canvas of 1,000 columns.
const say = `load().then(() => {
  const lines = [], texts = [];
  const pen = { setLineDash() {}, beginPath() {}, stroke() {}, lineTo() {}, moveTo: (x) => lines.push(x), fillText: (text, x) => texts.push([text, x]),
    measureText: (text) => ({ width: text.length * 6 }) };
  paintMarks(pen, {}, (units) => units / page.axis.length * 1000, 14, 200);
  console.log(JSON.stringify({ lines, texts, length: page.axis.length, legend: markLegend()?.text ?? null }));
});`;
vm.runInContext(`${source}\n${say}`, context);
