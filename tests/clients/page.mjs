// Reads a page as its own script does, and prints what it makes of functions and modules, and who holds what:
// node page.mjs PAGE SCRIPTS...
import fs from "node:fs";
import vm from "node:vm";

const [file, ...scripts] = process.argv.slice(2);
const html = fs.readFileSync(file, "utf8");
const part = (id) => html.match(new RegExp(`<script[^>]* id="${id}"[^>]*>([^]*?)</script>`))[1];
const document = { getElementById: (id) => ({ textContent: part(id) }) };
const context = vm.createContext({ document, atob, Blob, Response, DecompressionStream, TextDecoder, Uint8Array, console });
const source = scripts.map((script) => fs.readFileSync(script, "utf8")).join("\n");
const say = `load().then(() => {
  const { name, module } = functionTable();
  const rows = table["row.node"];
  const blamed = Array.from(rows, (node) => blamedNodes(node, 1).map(frameOf)[0]?.function);
  const ends = [0, 1].map(lastSlice);
  const held = page.processes.map((process) => process.held ?? []);
  const cards = typeof pathsOfAll === "undefined" ? [] : page.leaks.map((leak) => ({ bytes: leak.bytes, text: heldText(heldOfAll([leak])), both: heldOfAll([leak, leak]), paths: pathsOfAll([leak, leak]) }));
  console.log(JSON.stringify({ held, cards, kept: page.kept, ends, slices: page.axis.slices, functions: name.map((name, at) => [name, module[at]]), blamed }));
});`;
vm.runInContext(`${source}\n${say}`, context);
