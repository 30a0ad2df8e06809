// Perfetto's trace processor, as its page runs it: WebAssembly, with the script of its worker.
//
//   node engine.js FOLDER REQUESTS REPLIES
//
// FOLDER has engine_bundle.js and the .wasm files. Both other files are sequences of messages
// (TraceProcessorRpcStream), each after its length (u32, little endian).
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const [folder, requests, replies] = process.argv.slice(2);
const file = name => fs.readFileSync(path.join(folder, path.basename(String(name))));

function fail(error) {
  // The text of the script, which is one line, comes before the message.
  console.error(String((error && error.stack) || error).slice(-600));
  process.exit(1);
}
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);

const worker = {
  console: { log() {}, warn() {}, error: console.error },
  setTimeout, clearTimeout, performance, TextDecoder, TextEncoder, URL, crypto,
  // Of one realm: the script distinguishes errors of WebAssembly by these classes.
  WebAssembly, Uint8Array, TypeError, RangeError,
  WorkerGlobalScope() {},
  importScripts() {},
  location: { href: "http://engine/engine_bundle.js" },
  XMLHttpRequest: class {
    open(_, name) { this.name = name; }
    send() {
      const bytes = file(this.name);
      this.status = 200;
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
      this.onload?.();
    }
  },
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(file("engine_bundle.js").toString(), worker);

// The module is compiled at once. The script uses it in the tasks that follow.
setTimeout(() => {
  const out = fs.openSync(replies, "w");
  const port = {
    postMessage(bytes) {
      const length = Buffer.alloc(4);
      length.writeUInt32LE(bytes.length);
      fs.writeSync(out, length);
      fs.writeSync(out, bytes);
    },
  };
  worker.onmessage({ data: port });
  const all = fs.readFileSync(requests);
  for (let at = 0; at < all.length;) {
    const end = at + 4 + all.readUInt32LE(at);
    port.onmessage({ data: new Uint8Array(all.subarray(at + 4, end)) });
    at = end;
  }
  process.exit(0);
}, 0);
