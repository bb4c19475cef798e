// The tiled product of two small matrices, step by step; and what a tile size costs for any.

import { card, choice, figure, h, svg, table } from "../parts/elements.js";
import { bytes, count, percent } from "../parts/format.js";
import { ask, query } from "../parts/service.js";

const CELL = 30;
const STEP_MS = 1100;

/** 1, 2, 3 and on, row by row. */
export const counting = (size) => Array.from({ length: size }, (_, row) => Array.from({ length: size }, (__, column) => row * size + column + 1));

/** How one block makes its tile of C: a step for each tile along k, each thread's sum after it, and elements read by then. */
export function traceOf(size, tile, row, column) {
  const [a, b] = [counting(size), counting(size)];
  const rows = range(row * tile, Math.min(size, (row + 1) * tile));
  const columns = range(column * tile, Math.min(size, (column + 1) * tile));
  const sum = (i, j, until) => range(0, until).reduce((total, k) => total + a[i][k] * b[k][j], 0);
  const steps = range(0, Math.ceil(size / tile)).map((number) => {
    const [from, to] = [number * tile, Math.min(size, (number + 1) * tile)];
    return {
      number, from, to, sums: rows.map((i) => columns.map((j) => sum(i, j, to))),
      naive: 2 * rows.length * columns.length * to, tiled: (rows.length + columns.length) * to,
    };
  });
  return { a, b, rows, columns, steps, whole: { naive: 2 * size ** 3, tiled: 2 * size * size * Math.ceil(size / tile) } };
}

const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, index) => from + index);

/** A matrix as squares with their numbers; `tint` says how each is filled. */
function squares(name, rows, [x, y], tint, clicked) {
  const cell = (value, i, j) => {
    const [fill, ink] = tint(i, j);
    return svg("g", { onclick: clicked && (() => clicked(i, j)), transform: `translate(${x + j * CELL} ${y + i * CELL})` },
      svg("rect", { width: CELL - 2, height: CELL - 2, rx: 4, fill, stroke: "var(--line)" }),
      svg("text", { x: CELL / 2 - 1, y: CELL / 2 + 3, "text-anchor": "middle", class: ink }, value));
  };
  return svg("g", { "data-matrix": name }, svg("text", { x, y: y - 7, class: "dim" }, name), rows.map((row, i) => row.map((value, j) => cell(value, i, j))));
}

/** The step's sum of one thread, in numbers: c = 1*1 + 2*9 + ... */
function told(trace, step, [i, j]) {
  const terms = range(step.from, step.to).map((k) => `${trace.a[i][k]}·${trace.b[k][j]}`);
  const before = step.number ? trace.steps[step.number - 1].sums[i - trace.rows[0]][j - trace.columns[0]] : 0;
  const after = step.sums[i - trace.rows[0]][j - trace.columns[0]];
  return `Step ${step.number + 1}: the thread of C[${i}][${j}] has ${before} + ${terms.join(" + ")} = ${after}`;
}

class Trace {
  constructor() {
    Object.assign(this, { size: 8, tile: 4, row: 0, column: 0, at: 0, playing: 0, thread: [0, 0] });
    this.picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The matrices" });
    this.said = h("p", { id: "trace-said", role: "status" });
    this.reads = h("div", { class: "hero", id: "reads" });
    this.play = h("button", { type: "button", class: "first", onclick: () => this.#toggle() }, "Play");
    const change = (member) => (value) => { this[member] = Number(value); this.#start(0, 0); };
    this.controls = h("div", { class: "picks" }, choice("size", ["2", "3", "4", "5", "6", "7", "8"], "8", change("size")), choice("tile", ["2", "4"], "4", change("tile")),
      h("button", { type: "button", id: "back", onclick: () => this.#to(this.at - 1) }, "Back"), h("button", { type: "button", id: "step", onclick: () => this.#to(this.at + 1) }, "Step"),
      this.play, h("button", { type: "button", id: "next-tile", onclick: () => this.#nextTile() }, "Next tile of C"));
    this.element = h("div", {}, this.controls, this.said, this.reads, this.picture);
    this.#start(0, 0);
  }

  #start(row, column) {
    Object.assign(this, { row, column, at: 0, trace: traceOf(this.size, this.tile, row, column) });
    this.thread = [this.trace.rows[0], this.trace.columns[0]];
    this.#draw();
  }

  #nextTile() {
    const across = Math.ceil(this.size / this.tile);
    const next = (this.row * across + this.column + 1) % across ** 2;
    this.#start(Math.floor(next / across), next % across);
  }

  #to(place) {
    this.at = Math.min(Math.max(place, 0), this.trace.steps.length - 1);
    this.#draw();
  }

  #toggle() {
    clearInterval(this.playing);
    this.playing = this.playing ? 0 : setInterval(() => this.#to((this.at + 1) % this.trace.steps.length), STEP_MS);
    this.play.textContent = this.playing ? "Pause" : "Play";
  }

  #draw() {
    const { trace, size } = this;
    const step = trace.steps[this.at];
    const [i, j] = this.thread;
    const inside = (value, { from, to }) => value >= from && value < to;
    const [rows, columns] = [new Set(trace.rows), new Set(trace.columns)];
    const plain = ["var(--card)", "dim"];
    const used = ["var(--chip)", ""];
    const wide = size * CELL;
    const c = counting(size).map((line, r) => line.map((_, q) => rows.has(r) && columns.has(q) ? step.sums[r - trace.rows[0]][q - trace.columns[0]] : ""));
    const lit = (on, thread) => thread ? ["var(--gold)", "lit"] : on ? ["var(--green)", "lit"] : null;
    this.picture.replaceChildren(svg("svg", { viewBox: `0 0 ${2 * wide + 60} ${2 * wide + 70}`, width: 2 * wide + 60, height: 2 * wide + 70, role: "img", "aria-label": this.#words(step) },
      squares("B", trace.b, [wide + 40, 20], (r, q) => lit(inside(r, step) && columns.has(q), inside(r, step) && q === j) ?? (columns.has(q) ? used : plain)),
      squares("A", trace.a, [10, wide + 55], (r, q) => lit(inside(q, step) && rows.has(r), inside(q, step) && r === i) ?? (rows.has(r) ? used : plain)),
      squares("C", c, [wide + 40, wide + 55], (r, q) => lit(rows.has(r) && columns.has(q), r === i && q === j) ?? plain, (r, q) => this.#picked(r, q)),
      svg("text", { x: 10, y: 20, class: "dim" }, "Green: in shared memory now."), svg("text", { x: 10, y: 38, class: "dim" }, "Gold: what one thread reads.")));
    this.said.textContent = this.#words(step);
    this.reads.replaceChildren(figure(count(step.naive), "elements read by this block, naive"), figure(count(step.tiled), "elements read by it, tiled", "win"),
      figure(count(trace.whole.naive), "by all blocks, naive"), figure(count(trace.whole.tiled), "by all blocks, tiled", "win"));
  }

  #words(step) {
    return `${told(this.trace, step, this.thread)}.`;
  }

  #picked(i, j) {
    const [row, column] = [Math.floor(i / this.tile), Math.floor(j / this.tile)];
    if (row !== this.row || column !== this.column) this.#start(row, column);
    this.thread = [i, j];
    this.#draw();
  }
}

/** Bytes, operations, blocks and occupancy of any shape and square tile, naive and tiled beside each other. */
function calculator() {
  const fields = { m: 1024, n: 1024, k: 1024, tile: 16 };
  const said = h("div", { id: "calculated" });
  const calculate = async (event) => {
    event?.preventDefault();
    const given = Object.fromEntries(new FormData(form));
    try {
      const [naive, tiled] = await Promise.all(["naive", "tiled"].map((kernel) => ask(`analysis?${query({ ...given, kernel })}`)));
      const row = (name, value) => [name, value(naive), value(tiled)];
      said.replaceChildren(table(["What", "naive#", "tiled#"], [
        row("read from memory", (one) => bytes(one.bytes_read)), row("written", (one) => bytes(one.bytes_written)), row("operations", (one) => count(one.flops_owned)),
        row("flops a byte", (one) => one.intensity.toPrecision(3)), row("blocks", (one) => count(one.blocks)), row("of them at edges", (one) => count(one.edge_tiles)),
        row("shared memory a block", (one) => bytes(one.shared_bytes)), row("occupancy", (one) => one.occupancy ? `${percent(one.occupancy.fraction)}, by ${one.occupancy.limited_by}` : "not said by the device")]));
    } catch (error) {
      said.replaceChildren(h("p", { class: "bad" }, error.message));
    }
  };
  const form = h("form", { id: "calculator", onsubmit: calculate }, Object.entries(fields).map(([name, value]) =>
    h("label", {}, name, h("input", { name, type: "number", min: 1, max: name === "tile" ? 64 : 65536, value, required: true }))), h("button", { type: "submit" }, "Work it out"));
  calculate();
  return card("What a tile costs", { span: 5, id: "cost", text: "Of any product in float32 on this device: arithmetic, nothing is run." }, form, said);
}

export async function show(main) {
  document.title = "Learn · Tilewise";
  const trace = new Trace();
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Learn", h("small", {}, "Why tiles make a product fast: every thread of a block needs the same rows and columns, so the block reads them once."))),
    h("div", { class: "grid" }, card("A product by tiles, step by step", { span: 7, id: "trace", text: "One block makes one tile of C. In each step it loads a tile of A and one of B into shared memory, and each thread adds their products to its sum. Click an element of C to follow its thread." }, trace.element), calculator()));
}
