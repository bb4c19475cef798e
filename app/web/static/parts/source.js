// A kernel's source: its lines with links, its words coloured, and what differs between two of them.

import { h } from "./elements.js";
import { Folding } from "./folding.js";

const WORDS = new Set(("auto bool break case char class const constexpr continue do double else enum extern float for half if inline int long namespace "
  + "return short signed sizeof static struct switch template typedef typename union unsigned using void volatile while "
  + "__global__ __device__ __shared__ __kernel __local __restrict__ __launch_bounds__").split(" "));
const TOKENS = /(?<comment>\/\/.*|\/\*.*?\*\/)|(?<macro>^\s*#\s*\w+)|(?<number>\b\d[\w.]*\b)|(?<word>\b[A-Za-z_]\w*\b)/g;

/** A line of C as text and coloured words. */
export function coloured(line) {
  const parts = [];
  let done = 0;
  for (const found of line.matchAll(TOKENS)) {
    const [kind] = Object.entries(found.groups).find(([, text]) => text !== undefined);
    if (kind === "word" && !WORDS.has(found[0])) continue;
    parts.push(line.slice(done, found.index), h("span", { class: `tok-${kind}` }, found[0]));
    done = found.index + found[0].length;
  }
  parts.push(line.slice(done));
  return parts;
}

/** The lines of a source, each an address of its own, and what folds them. */
export function listing(text) {
  const lines = text.split("\n");
  const here = location.hash.slice(1);
  const rows = lines.map((line, index) => {
    const id = `L${index + 1}`;
    return h("span", { class: "row", data: { line: index + 1 } },
      h("a", { id, href: `#${id}`, class: id === here && "here", "aria-label": `line ${index + 1}` }, String(index + 1)), h("span", { class: "fold" }), coloured(line), "\n");
  });
  const { element } = new Folding(rows, lines);
  return [element, h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": "Source" }, h("code", {}, rows))];
}

/** What a source says of its parameters above its code, by their names. */
export function parametersOf(text) {
  const found = {};
  let name = null;
  for (const line of text.split("\n")) {
    const [, said, words] = /^\/\/ ([A-Z][A-Z_0-9]*) {2,}(\S.*)$/.exec(line) ?? [];
    const [, more] = /^\/\/ {6,}(\S.*)$/.exec(line) ?? [];
    if (!line.startsWith("//")) break;
    if (said) [name, found[said]] = [said, words];
    else if (more && name) found[name] += ` ${more}`;
    else name = null;
  }
  return found;
}

/** The shortest edit of one text to another, line by line: [sign, line] with " ", "-" or "+". */
export function difference(before, after) {
  const [one, other] = [before.split("\n"), after.split("\n")];
  const width = other.length + 1;
  const common = new Uint16Array((one.length + 1) * width); // longest common part of what follows
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = one[i] === other[j]
        ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const edits = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) { edits.push([" ", one[i]]); i += 1; j += 1; }
    else if (j >= other.length || (i < one.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) { edits.push(["-", one[i]]); i += 1; }
    else { edits.push(["+", other[j]]); j += 1; }
  }
  return edits;
}

const TINTS = { "+": "good", "-": "bad" };

/** A unified diff, without the names of its files. */
export function diffListing(diff) {
  const lines = diff.split("\n").filter((line) => !/^(---|\+\+\+) /.test(line));
  return h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": "What changes" },
    h("code", {}, lines.map((line) => h("span", { class: TINTS[line[0]] ?? "quiet" }, `${line}\n`))));
}

/** What differs, with three lines around each change. */
export function differenceListing(before, after) {
  const edits = difference(before, after);
  const near = (index) => edits.slice(Math.max(0, index - 3), index + 4).some(([sign]) => sign !== " ");
  const tint = { "+": "good", "-": "bad", " ": "quiet" };
  const shown = edits.flatMap(([sign, line], index) => near(index) ? [h("span", { class: tint[sign] }, `${sign} ${line}\n`)]
    : index && near(index - 1) ? [h("span", { class: "quiet" }, "  ⋯\n")] : []);
  return h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": "What differs" }, h("code", {}, shown));
}
