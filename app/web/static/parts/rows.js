// Many trials in one grid: filtered, sorted, and only those rows in the document that are in view.

import { keep, kept } from "./address.js";
import { h } from "./elements.js";
import { config, rate, time } from "./format.js";

const HEIGHT = 30;
const BEYOND = 8; // rows above and below what is in view
const COLUMNS = [
  ["Kernel", (trial) => trial.kernel], ["Config", (trial) => config(trial.config)], ["Round", (trial) => trial.round],
  ["Time", (trial) => trial.ms ?? Infinity], ["GFLOP/s", (trial) => -(trial.gflops ?? -1)],
];

/** What a filter lets through: `kernel:tiled BK=16 state:rejected round:final`, and words that the config or reason has. */
export function filterOf(text) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const member = /^(kernel|state|round|stage):(.+)$/.exec(word);
    if (member) return (trial) => String(trial[member[1]] ?? "").startsWith(member[2] === "failed" ? "rejected" : member[2]);
    const value = /^([A-Za-z_]+)(<=|>=|=|<|>)(-?\d+)$/.exec(word);
    if (!value) return (trial) => `${trial.kernel} ${config(trial.config)} ${trial.reason ?? ""}`.includes(word);
    const [, name, sign, wanted] = value;
    const least = Number(wanted);
    return ({ config: values }) => ({
      "=": values[name] === least, "<": values[name] < least, ">": values[name] > least,
      "<=": values[name] <= least, ">=": values[name] >= least,
    })[sign];
  });
  return (trial) => tests.every((test) => test(trial));
}

/** The order that the address asks for: a column's name, with - the other way round; else by time. */
function sorting() {
  const asked = kept("sort") ?? "";
  const column = COLUMNS.findIndex(([name]) => name === asked.replace(/^-/, ""));
  return column < 0 ? { column: 3, down: 1 } : { column, down: asked.startsWith("-") ? -1 : 1 };
}

const csvCell = (value) => /[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");

/** Trials as CSV: a column for each parameter that any of them has. */
export function csvOf(trials) {
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial.config)))];
  const head = ["id", "kernel", "round", "state", "median_ms", "gflops", "stage", "reason", ...names];
  const rows = trials.map((one) => [
    one.id, one.kernel, one.round, one.state, one.ms, one.gflops, one.stage, one.reason, ...names.map((name) => one.config[name]),
  ]);
  return [head, ...rows].map((row) => row.map(csvCell).join(",")).join("\n");
}

export class Rows {
  constructor({ opened }) {
    Object.assign(this, { opened, all: [], shown: [], also: () => true, pool: [], ...sorting() });
    this.text = h("input", { type: "search", placeholder: "kernel:tiled BK=16 state:failed", oninput: () => this.#filtered(), spellcheck: "false", value: kept("filter") });
    this.told = h("span", { class: "quiet", role: "status" });
    this.sheet = h("div", { class: "sheet", role: "rowgroup" });
    this.view = h("div", { class: "rows", tabindex: 0, role: "table", "aria-label": "Trials", onscroll: () => this.#soon() }, this.sheet);
    this.head = h("div", { class: "rowhead" }, COLUMNS.map(([name], index) =>
      h("span", { class: index > 2 && "n" }, h("button", { type: "button", onclick: () => this.#sortBy(index) }, name))));
    const csv = h("button", { type: "button", onclick: () => this.#save() }, "CSV");
    this.element = h("div", {}, h("div", { class: "heading" }, h("label", { class: "tall" }, "Filter ", this.text), this.told, csv), this.head, this.view);
    new ResizeObserver(() => this.#soon()).observe(this.view);
  }

  show(trials) {
    this.all = trials;
    this.refresh();
  }

  refresh() {
    const passes = filterOf(this.text.value);
    const key = COLUMNS[this.column][1];
    this.shown = this.all.filter((trial) => this.also(trial) && passes(trial)).map((trial) => [key(trial), trial])
      .sort(([one], [other]) => this.down * (one < other ? -1 : one > other ? 1 : 0)).map(([, trial]) => trial);
    this.told.textContent = `${this.shown.length.toLocaleString("en")} of ${this.all.length.toLocaleString("en")} trials`;
    this.sheet.style.height = `${this.shown.length * HEIGHT}px`;
    this.view.setAttribute("aria-rowcount", this.shown.length);
    this.#draw();
  }

  #filtered() {
    keep({ filter: this.text.value });
    this.refresh();
  }

  #sortBy(index) {
    this.down = index === this.column ? -this.down : 1;
    this.column = index;
    keep({ sort: `${this.down < 0 ? "-" : ""}${COLUMNS[index][0]}` });
    this.refresh();
  }

  #soon() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.#draw(); });
  }

  #draw() {
    const first = Math.max(0, Math.floor(this.view.scrollTop / HEIGHT) - BEYOND);
    const last = Math.min(this.shown.length, first + Math.ceil(this.view.clientHeight / HEIGHT) + 2 * BEYOND);
    while (this.pool.length < last - first) this.pool.push(this.#row());
    this.pool.forEach((row, index) => this.#fill(row, first + index < last ? first + index : null));
  }

  #row() {
    const opener = h("button", { type: "button", class: "link", onclick: () => this.opened(row.trial) });
    const cells = COLUMNS.map((_, index) => h("span", { role: "cell", class: index > 2 && "n" }, index ? null : opener));
    const row = { cells, opener, element: h("div", { role: "row" }, cells) };
    this.sheet.append(row.element);
    return row;
  }

  #fill(row, index) {
    row.element.hidden = index === null;
    if (index === null) return;
    const trial = this.shown[index];
    row.element.style.transform = `translateY(${index * HEIGHT}px)`;
    row.element.setAttribute("aria-rowindex", index + 1);
    if (row.trial === trial) return;
    row.trial = trial;
    const failed = trial.ms == null;
    const texts = [trial.kernel, config(trial.config), trial.round, time(trial.ms), failed ? trial.reason ?? trial.stage : rate(trial.gflops)];
    texts.forEach((text, place) => { (place ? row.cells[place] : row.opener).textContent = text; });
    row.cells[4].className = failed ? "n why" : "n";
    row.element.title = failed ? `${trial.stage}: ${trial.reason}` : "";
  }

  #save() {
    const link = h("a", { href: URL.createObjectURL(new Blob([csvOf(this.shown)], { type: "text/csv" })), download: "trials.csv" });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}
