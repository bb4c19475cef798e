// Bytes, operations, blocks and occupancy of any product and square tile: arithmetic, nothing is run.

import { card, h, table } from "../parts/elements.js";
import { bytes, count, percent } from "../parts/format.js";
import { ask, query } from "../parts/service.js";

const FIELDS = { m: 1024, n: 1024, k: 1024, tile: 16 };
// Products that the articles work out by hand, each with the tile that they take for it.
const EXAMPLES = { "55 × 48 × 43": [55, 43, 48, 16], "142 × 110 × 146": [142, 146, 110, 32], "1000 × 800 × 1200": [1000, 1200, 800, 16], "1030 cubed": [1030, 1030, 1030, 16], "1024 cubed": [1024, 1024, 1024, 16] };
const THREAD = { bx: 0, by: 0, tx: 0, ty: 0 };

const exact = (value) => value < 1024 ? `${count(value)} B` : `${count(value)} B, ${bytes(value)}`;
const rest = (size, tile) => size % tile || tile;

/** The rows of naive and tiled beside each other. */
function rows(naive, tiled, { m, n, k, tile }) {
  const row = (name, value) => [name, value(naive), value(tiled)];
  const only = (name, value) => [name, "–", value];
  return [
    row("read from memory", (one) => exact(one.bytes_read)), row("written", (one) => exact(one.bytes_written)),
    row("operations of C's threads", (one) => count(one.flops_owned)), row("of all launched threads", (one) => count(one.flops_launched)),
    row("operations a byte read", (one) => (one.flops_owned / one.bytes_read).toPrecision(3)), row("operations a byte moved", (one) => one.intensity.toPrecision(3)),
    row("blocks", (one) => `${count(one.blocks)} = ${count(one.tiles_n)} × ${count(one.tiles_m)}`), row("of them at edges", (one) => count(one.edge_tiles)),
    row("threads a block", (one) => count(one.threads)), row("shared memory a block", (one) => exact(one.shared_bytes)),
    row("occupancy", (one) => one.occupancy ? `${percent(one.occupancy.fraction)}, by ${one.occupancy.limited_by}` : "not said by the device"),
    only("steps along k", count(Math.ceil(k / tile))), only("in the last tile: rows, columns, k", `${rest(m, tile)}, ${rest(n, tile)}, ${rest(k, tile)}`),
    only("operations of a step of a block", count(2 * tile ** 3)), only("elements that it loads", count(2 * tile ** 2)), only("operations an element loaded", count(tile)),
  ];
}

/** Where a thread's element of C is, and what the thread does if there is none. */
function place({ m, n, tile }, { bx, by, tx, ty }) {
  const [row, col] = [by * tile + ty, bx * tile + tx];
  const out = [row >= m && `row ${row} ≥ ${m}: its element of A's tile is 0`, col >= n && `column ${col} ≥ ${n}: its element of B's tile is 0`].filter(Boolean);
  return `row = ${by}·${tile} + ${ty} = ${row}, col = ${bx}·${tile} + ${tx} = ${col}. ${out.length ? `It has no element of C: ${out.join("; ")}.` : `It computes C[${row}][${col}].`}`;
}

const numbers = (form) => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, Number(value)]));
const field = (least, most) => ([name, value]) => h("label", {}, name, h("input", { name, type: "number", min: least, max: most, value, required: true }));

export function calculator(device) {
  const said = h("div", { id: "calculated" });
  const thread = h("p", { id: "thread-place", role: "status" });
  const showThread = () => { thread.textContent = place(numbers(form), numbers(threadForm)); };
  const calculate = async (event) => {
    event?.preventDefault();
    const given = numbers(form);
    try {
      const [naive, tiled] = await Promise.all(["naive", "tiled"].map((kernel) => ask(`analysis?${query({ ...given, kernel, device })}`)));
      said.replaceChildren(table(["What", "naive#", "tiled#"], rows(naive, tiled, given)));
      showThread();
    } catch (error) {
      said.replaceChildren(h("p", { class: "bad" }, error.message));
    }
  };
  const form = h("form", { id: "calculator", onsubmit: calculate }, Object.entries(FIELDS).map(([name, value]) => field(1, name === "tile" ? 128 : 65536)([name, value])), h("button", { type: "submit" }, "Work it out"));
  const threadForm = h("form", { id: "thread", oninput: showThread }, Object.entries(THREAD).map(field(0, 65536)));
  const take = (sizes) => () => { Object.keys(FIELDS).forEach((name, index) => { form.elements[name].value = sizes[index]; }); calculate(); };
  const examples = h("p", { class: "picks" }, "As in the articles:", Object.entries(EXAMPLES).map(([name, sizes]) => h("button", { type: "button", class: "link", onclick: take(sizes) }, name)));
  calculate();
  return card("What a tile costs", { span: 7, id: "cost", text: "Of any product in float32 on this device: arithmetic, nothing is run." }, form, examples, said,
    h("h3", {}, "Which element is a thread's?"), threadForm, thread);
}
