// The tiled product of two small matrices, tile by tile, with the numbers that GET /trace tells.

import { keep, kept } from "../parts/address.js";
import { choice, figure, h, svg } from "../parts/elements.js";
import { count } from "../parts/format.js";
import { ask, query } from "../parts/service.js";

const CELL = 30;
const STEPS_MS = { slow: 3600, even: 1800, fast: 600 };
const SLIDE_MS = 450;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, index) => from + index);
const heading = (name, [x, y]) => svg("text", { x, y: y - 7, class: "dim" }, name);

function square(value, [x, y], [fill, ink], more = {}) {
  return svg("g", { transform: `translate(${x} ${y})`, ...more }, svg("rect", { width: CELL - 2, height: CELL - 2, rx: 4, fill, stroke: "var(--line)" }),
    svg("text", { x: CELL / 2 - 1, y: CELL / 2 + 3, "text-anchor": "middle", class: `${ink} ${String(value).length > 3 ? "tiny" : ""}` }, value));
}

/** A matrix as squares with their numbers; `tint` says how each is filled. */
function squares(name, rows, [x, y], tint, clicked) {
  return svg("g", { "data-matrix": name }, heading(name, [x, y]), rows.map((row, i) => row.map((value, j) =>
    square(value, [x + j * CELL, y + i * CELL], tint(i, j), { onclick: clicked && (() => clicked(i, j)) }))));
}

/** A shared tile: its squares come from where they lie in the whole matrix, zeros stand where the matrix has ended. */
function shared(name, tile, side, [x, y], [fromX, fromY], tint) {
  const cell = (i, j) => {
    const value = tile[i]?.[j];
    const made = square(value ?? 0, [x + j * CELL, y + i * CELL], value === undefined ? ["none", "dim"] : tint(i, j));
    if (value !== undefined && !still.matches) {
      const place = (left, top) => ({ transform: `translate(${left + j * CELL}px, ${top + i * CELL}px)` });
      made.animate([place(fromX, fromY), place(x, y)], { duration: SLIDE_MS, easing: "ease-out" });
    }
    return made;
  };
  return svg("g", { "data-matrix": name }, heading(name, [x, y]), range(0, side).map((i) => range(0, side).map((j) => cell(i, j))));
}

/** A figure that counts up to each new value. */
function ticking(told, className) {
  const made = figure("0", told, className);
  const [shown] = made.children;
  let value = 0;
  let frame = 0;
  const to = (wanted) => {
    const [from, began] = [value, performance.now()];
    cancelAnimationFrame(frame);
    value = wanted;
    const tick = (now) => {
      const along = still.matches ? 1 : Math.min(1, Math.max(0, now - began) / SLIDE_MS);
      shown.textContent = count(Math.round(from + (wanted - from) * along));
      if (along < 1) frame = requestAnimationFrame(tick);
    };
    tick(began);
  };
  return { element: made, to };
}

/** The sum of one thread in a step, in numbers, and what the article prints in its place where that is another. */
function told(trace, at, i, j) {
  const phase = trace.phases[at];
  const [row, column] = [i - trace.row * trace.tile, j - trace.column * trace.tile];
  const of = (member, place) => place < 0 ? 0 : trace.phases[place][member][row][column];
  const [before, after] = [of("sums", at - 1), of("sums", at)];
  const terms = range(phase.k_from, phase.k_to).map((k) => `${trace.a[i][k]}·${trace.b[k][j]}`);
  const said = `Step ${at + 1}: the thread of C[${i}][${j}] has ${before} + ${terms.join(" + ")} = ${after}.`;
  const printed = phase.printed && of("printed", at);
  const slip = phase.printed && printed !== after
    ? `The article prints ${printed} here: it adds ${printed - of("printed", at - 1)} where the products are ${after - before}.` : "";
  return [said, slip];
}

const SIZES = ["2", "3", "4", "5", "6", "7", "8"];
const TILES = ["2", "4"];
const NUMBERS = ["article", "counted"];
const asked = (name, options, otherwise) => options.includes(kept(name)) ? kept(name) : otherwise;

export class Trace {
  constructor() {
    const [size, tile] = [Number(asked("size", SIZES, "8")), Number(asked("tile", TILES, "4"))];
    Object.assign(this, { size, tile, operands: asked("numbers", NUMBERS, "article"), at: 0, playing: 0, trace: null, pace: asked("pace", Object.keys(STEPS_MS), "even") });
    this.picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The matrices: arrows choose a thread", onkeydown: (event) => this.#key(event) });
    this.said = h("p", { id: "trace-said", role: "status" });
    this.slip = h("p", { id: "slip", class: "bad" });
    this.reads = [ticking("elements read by this block, naive"), ticking("elements read by it, tiled", "win"), ticking("by all blocks, naive"), ticking("by all blocks, tiled", "win")];
    this.play = h("button", { type: "button", class: "first", onclick: () => this.#toggle() }, "Play");
    const change = (member, taken = Number) => (value) => { this[member] = taken(value); this.start(0, 0); };
    this.controls = h("div", { class: "picks" }, choice("size", SIZES, String(size), change("size")), choice("tile", TILES, String(tile), change("tile")),
      choice("numbers", NUMBERS, this.operands, change("operands", String)), choice("pace", Object.keys(STEPS_MS), this.pace, (value) => this.#paced(value)),
      h("button", { type: "button", id: "back", onclick: () => this.#to(this.at - 1) }, "Back"), h("button", { type: "button", id: "step", onclick: () => this.#to(this.at + 1) }, "Step"),
      this.play, h("button", { type: "button", id: "next-tile", onclick: () => this.#nextTile() }, "Next tile of C"));
    this.element = h("div", {}, this.controls, this.said, this.slip, h("div", { class: "hero", id: "reads" }, this.reads.map(({ element }) => element)), this.picture);
  }

  /** Begin where the address says. */
  begin() {
    const last = Math.ceil(this.size / this.tile) - 1;
    const [row, column] = (kept("block") ?? "0,0").split(",").map((place) => Math.min(Math.max(Math.trunc(Number(place)) || 0, 0), last));
    return this.start(row, column ?? 0, null, Math.trunc(Number(kept("step"))) || 1);
  }

  /** Have the address say what is shown, where that is not what is shown at first. */
  #kept() {
    const { size, tile, operands, trace, at } = this;
    const other = (value, first) => value === first ? null : value;
    keep({ size: other(size, 8), tile: other(tile, 4), numbers: other(operands, "article"), block: other(`${trace.row},${trace.column}`, "0,0"), step: other(at + 1, 1) });
  }

  /** Ask for one tile of C, and begin with its first step, or another. */
  async start(row, column, thread = null, step = 1) {
    const { size, tile, operands } = this;
    const wanted = query({ m: size, n: size, k: size, tile, row, column, operands });
    const trace = await ask(`trace?${wanted}`);
    if (`${size} ${tile} ${operands}` !== `${this.size} ${this.tile} ${this.operands}`) return;
    const at = Math.min(Math.max(step - 1, 0), trace.phases.length - 1);
    Object.assign(this, { trace, at, thread: thread ?? [row * tile, column * tile] });
    this.#draw();
  }

  #nextTile() {
    const across = Math.ceil(this.size / this.tile);
    const next = (this.trace.row * across + this.trace.column + 1) % across ** 2;
    this.start(Math.floor(next / across), next % across);
  }

  #to(place) {
    this.at = Math.min(Math.max(place, 0), this.trace.phases.length - 1);
    this.#draw();
  }

  #toggle() {
    if (this.playing) this.playing = clearInterval(this.playing) ?? 0;
    else this.#plays();
    this.play.textContent = this.playing ? "Pause" : "Play";
  }

  #plays() {
    clearInterval(this.playing);
    this.playing = setInterval(() => this.#to((this.at + 1) % this.trace.phases.length), STEPS_MS[this.pace]);
  }

  #paced(value) {
    this.pace = value;
    keep({ pace: value === "even" ? null : value });
    if (this.playing) this.#plays();
  }

  #key(event) {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const [i, j] = this.thread.map((place, index) => Math.min(Math.max(place + move[index], 0), this.size - 1));
    this.#picked(i, j);
  }

  #draw() {
    this.#kept();
    const { trace, at } = this;
    const phase = trace.phases[at];
    const [said, slip] = told(trace, at, ...this.thread);
    [this.said.textContent, this.slip.textContent] = [said, slip];
    const values = [phase.reads_naive, phase.reads_tiled, trace.reads_naive, trace.reads_tiled];
    this.reads.forEach((each, index) => each.to(values[index]));
    this.picture.replaceChildren(this.#drawing(phase, said));
  }

  #drawing(phase, said) {
    const { trace, tile, size, thread: [i, j] } = this;
    const [top, left] = [trace.row * tile, trace.column * tile];
    const mine = { row: (r) => r >= top && r < top + tile, column: (q) => q >= left && q < left + tile, k: (k) => k >= phase.k_from && k < phase.k_to };
    const [wide, box] = [size * CELL, tile * CELL];
    const [across, down] = [Math.max(wide, 2 * box + 30), Math.max(wide, box + 30)];
    const at = { as: [10, 40], bs: [10 + box + 26, 40], b: [across + 40, 20 + down - wide], a: [10 + across - wide, down + 55], c: [across + 40, down + 55] };
    const tint = (on, lit, thread) => on && thread ? ["var(--gold)", "lit"] : on ? ["var(--green)", "lit"] : lit ? ["var(--chip)", ""] : ["var(--card)", "dim"];
    const c = range(0, size).map((r) => range(0, size).map((q) => mine.row(r) && mine.column(q) ? phase.sums[r - top][q - left] : ""));
    const size2 = { width: across + wide + 60, height: down + wide + 65 };
    return svg("svg", { viewBox: `0 0 ${size2.width} ${size2.height}`, ...size2, role: "img", "aria-label": said },
      svg("text", { x: 10, y: 16, class: "dim" }, "shared memory"),
      squares("B", trace.b, at.b, (r, q) => tint(mine.k(r) && mine.column(q), mine.column(q), q === j)),
      squares("A", trace.a, at.a, (r, q) => tint(mine.row(r) && mine.k(q), mine.row(r), r === i)),
      squares("C", c, at.c, (r, q) => tint(mine.row(r) && mine.column(q), false, r === i && q === j), (r, q) => this.#picked(r, q)),
      shared("As", phase.a, tile, at.as, [at.a[0] + phase.k_from * CELL, at.a[1] + top * CELL], (r) => tint(true, true, r === i - top)),
      shared("Bs", phase.b, tile, at.bs, [at.b[0] + left * CELL, at.b[1] + phase.k_from * CELL], (_, q) => tint(true, true, q === j - left)));
  }

  #picked(i, j) {
    const [row, column] = [Math.floor(i / this.tile), Math.floor(j / this.tile)];
    if (row !== this.trace.row || column !== this.trace.column) return this.start(row, column, [i, j]);
    this.thread = [i, j];
    return this.#draw();
  }
}

/** The lines of the tiled lesson that do what the picture shows, in its colours. */
export function tiledSource(source) {
  const lit = (line) => /[AB]s\[\w+\]\[\w+\] = /.test(line) ? "good" : /sum \+=/.test(line) ? "gold" : "quiet";
  const lines = source.split("\n").filter((line) => line && !line.startsWith("//"));
  return h("pre", { class: "source", id: "tiled-lines", tabindex: 0, role: "region", "aria-label": "The lesson's source" },
    h("code", {}, lines.map((line) => h("span", { class: lit(line) }, `${line}\n`))));
}
