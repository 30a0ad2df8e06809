// What is in the page: JSON, and packed tables. `page` is the JSON; `table` has the columns by name, as typed
// arrays; `strings` the names. Nothing here is ever used as markup.

let page = null;
let strings = [];
const table = {};
/** First cell of each row, and the cell after the last. */
let cellsFrom = null;

const COMPARING = () => page.recordings.length === 2;

/** Bits of a frame's flags. */
const PROGRAM = 1, INLINED = 2, OUTERMOST = 4, MADE_UP = 8;
/** Bit offset of a role's rank in the flags, its bits, the first rank of generated code, and that which is blamed only where a stack has no other. */
const RANK = 4, RANKS = 7, INTERPRETER = 4, NAMELESS = 5, WRAPPER = 6;
/** Flag of an allocation function, and the frames outside of the blamed ones among which one is looked for. */
const ALLOCATOR = 1 << 7, BEHIND = 16;
/** Flag of a function that left by a jump to that of the next inner frame. */
const TAIL_CALL = 1 << 8;

function text(id) {
  return document.getElementById(id).textContent;
}

/** base64 of zlib -> bytes. */
async function unpack(packed) {
  const raw = atob(packed);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** LEB128 numbers, one column after the other. What is beyond 2^53 is rounded. */
function readColumns(bytes, index) {
  let at = 0;
  for (const [name, count] of index) {
    const column = new Float64Array(count);
    for (let row = 0; row < count; row++) {
      let byte = bytes[at++];
      let value = byte & 127;
      for (let scale = 128; byte > 127; scale *= 128) {
        byte = bytes[at++];
        value += (byte & 127) * scale;
      }
      column[row] = value;
    }
    table[name] = column;
  }
}

async function load() {
  page = JSON.parse(text("data"));
  // It has a chip of its own.
  for (const leak of page.leaks) if (leak.probably_growing) leak.verdict = "probably-growing";
  const [names, columns] = await Promise.all([unpack(text("strings")), unpack(text("columns"))]);
  strings = JSON.parse(new TextDecoder().decode(names));
  readColumns(columns, page.columns);
  // What does not change is kept small.
  for (const name of ["frame.function", "frame.module", "frame.flags", "node.frame", "frame.short", "row.process", "row.threads", "row.node", "cell.slot"]) {
    table[name] = Int32Array.from(table[name]);
  }
  const back = table["node.back"];
  table["node.parent"] = Int32Array.from(back, (distance, node) => node - distance);
  const counts = table["row.cells"];
  cellsFrom = new Int32Array(counts.length + 1);
  for (let row = 0; row < counts.length; row++) cellsFrom[row + 1] = cellsFrom[row] + counts[row];
  let from = 0;
  page.processes.forEach((process, number) => {
    process.number = number;
    const points = table["line.points"][number];
    const column = (name) => table[name].subarray(from, from + points);
    process.line = {
      live: column("line.live_bytes"),
      most: column("line.most_bytes"),
      blocks: column("line.live_blocks"),
      allocs: column("line.allocs"),
    };
    from += points;
  });
}

/** A frame as the page shows it. */
function frameOf(node) {
  const frame = table["node.frame"][node];
  return {
    function: strings[table["frame.function"][frame]],
    short: strings[table["frame.short"][frame]],
    module: strings[table["frame.module"][frame]],
    file: strings[table["frame.file"][frame]],
    line: table["frame.line"][frame],
    flags: table["frame.flags"][frame],
  };
}

/** The frames of a stack, innermost first. */
function stackOf(node) {
  const frames = [];
  for (let at = node; at !== 0; at = table["node.parent"][at]) frames.push(frameOf(at));
  return frames;
}

/** Nodes of the innermost frames of a stack that are blamed, innermost first, at most `most`: the rule of program_frames.rs. */
function blamedNodes(node, most) {
  const empty = () => Array.from({ length: WRAPPER }, () => []);
  const best = (ranked) => ranked.findIndex((nodes) => nodes.length > 0);
  let found = empty(), behind = empty(), since = 0;
  const parent = table["node.parent"], frame = table["node.frame"], flags = table["frame.flags"];
  for (let at = node; at !== 0 && since <= BEHIND; at = parent[at]) {
    const own = flags[frame[at]], rank = (own >> RANK) & RANKS;
    if (own & ALLOCATOR && best(found) >= 0) [behind, found, since] = [found, empty(), 0];
    else if (rank < WRAPPER && found[rank].length < most) found[rank].push(at);
    if (found[0].length >= most) since++;
  }
  const caller = best(found);
  const ranked = (caller >= 0 && caller < NAMELESS) || best(behind) < 0 ? found : behind;
  return ranked[best(ranked)] ?? (node === 0 ? [] : [node]);
}

function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}
