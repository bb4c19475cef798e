// The landscape of one kernel's trials with its pickers, what matters, and the parameters: as the address asks for them.

import { keep, kept } from "./address.js";
import { card, choice, h } from "./elements.js";
import { landscapeChart, matters, parallel } from "./figures.js";
import { measured, valuesOf, varied } from "./statistics.js";
import { openTrial } from "./trial.js";

const ofKernel = (trials, kernel) => trials.filter((trial) => trial.kernel === kernel);

/** What the address asks for, by the names of GET /landscape. */
function asked() {
  const held = (kept("held") ?? "").split(",").filter(Boolean).map((each) => each.split("="));
  const fixed = Object.fromEntries(held.map(([name, value]) => [name, Number(value)]));
  return { x: kept("x"), y: kept("y"), aggregate: kept("aggregate") === "median" ? "median" : "best", fixed };
}

/** Which trials are shown, and how; each choice goes to the address. */
class Landscape {
  constructor(trials, kernels, kernel) {
    Object.assign(this, { trials, kernels, kernel, ...asked() });
    this.told = h("p", { class: "quiet" });
    const kernelChosen = this.#chosen((value) => { this.kernel = value; }, () => this.#pickers());
    this.picks = h("span", { class: "picks" });
    this.others = h("span", { class: "picks" });
    this.element = h("div", { class: "picks" }, choice("kernel", kernels, kernel, kernelChosen), this.picks);
    this.charts = [];
    this.#settle();
    this.#pickers();
  }

  mine() {
    return ofKernel(this.trials, this.kernel);
  }

  unfixed() {
    return this.mine().filter((trial) => Object.entries(this.fixed).every(([name, value]) => trial.config[name] === value));
  }

  #values(name) {
    return valuesOf(this.mine(), name);
  }

  /** Make the state one of these trials. */
  #settle() {
    const names = varied(this.mine());
    const other = (axis, first) => first !== axis && names.includes(first) ? first : names.find((name) => name !== axis);
    if (!names.includes(this.x)) this.x = other(this.y, "BN");
    if (!names.includes(this.y) || this.y === this.x) this.y = other(this.x, "BM");
    const others = names.filter((name) => name !== this.x && name !== this.y);
    this.fixed = Object.fromEntries(Object.entries(this.fixed).filter(([name, value]) => others.includes(name) && this.#values(name).includes(value)));
    this.told.textContent = `${this.unfixed().length.toLocaleString("en")} configs of ${this.kernel} that were tried: the ${this.aggregate} time of each ${this.y} × ${this.x} over all other parameters. A click opens a cell's best.`;
  }

  /** What a picker calls: the others follow, each but the one in use, in which the keyboard has its place. */
  #chosen(change, then = () => {}) {
    return (value) => {
      change(value);
      this.#settle();
      then();
      this.charts.forEach((chart) => chart.draw());
      const held = Object.entries(this.fixed).map(([name, each]) => `${name}=${each}`).join(",");
      keep({ kernel: this.kernel, x: this.x, y: this.y, aggregate: this.aggregate, held });
    };
  }

  /** One axis; the parameter of the other one changes places with its own. */
  #axis(member, other) {
    return this.#chosen((value) => {
      if (value === this[other]) this[other] = this[member];
      this[member] = value;
    }, () => this.#axes());
  }

  #fix(name) {
    const change = (value) => { if (value === "any") delete this.fixed[name]; else this.fixed[name] = Number(value); };
    return choice(name, ["any", ...this.#values(name).map(String)], String(this.fixed[name] ?? "any"), this.#chosen(change));
  }

  #axes() {
    [this.down.value, this.across.value] = [this.y, this.x];
    this.others.replaceChildren(...varied(this.mine()).filter((name) => name !== this.x && name !== this.y).map((name) => this.#fix(name)));
  }

  /** The pickers of a kernel; the one of kernels itself stays in the document, and so under the keyboard. */
  #pickers() {
    const names = varied(this.mine());
    const picks = [choice("down", names, this.y, this.#axis("y", "x")), choice("across", names, this.x, this.#axis("x", "y"))];
    [this.down, this.across] = picks.map((label) => label.querySelector("select"));
    const time = choice("time", ["best", "median"], this.aggregate, this.#chosen((value) => { this.aggregate = value; }));
    this.picks.replaceChildren(...picks, time, this.others);
    this.#axes();
  }
}

/** Three cards of the trials of the address' kernel, else of the winner's; `rows` show what is brushed alone. */
export function landscapeCards(trials, rows, winner) {
  const size = (name) => ofKernel(trials, name).length;
  const kernels = [...new Set(trials.map((trial) => trial.kernel))].filter((name) => varied(ofKernel(trials, name)).length > 1);
  const kernel = [kept("kernel"), winner].find((name) => kernels.includes(name)) ?? kernels.toSorted((one, other) => size(other) - size(one))[0];
  if (!kernel) return [];
  const state = new Landscape(trials, kernels, kernel);
  const land = landscapeChart(() => ({ x: state.x, y: state.y, aggregate: state.aggregate, trials: state.unfixed() }), (cell) => cell.best && openTrial(cell.best));
  const lines = parallel(() => ({ trials: state.mine(), names: varied(state.mine()) }), (brushed) => {
    rows.also = brushed ? (trial) => brushed.has(trial.id) : () => true;
    rows.refresh();
  });
  const matter = matters(() => measured(state.mine()));
  state.charts.push(land, lines, matter);
  return [
    card("Landscape", { span: 7, id: "landscape" }, state.told, state.element, land.element),
    card("What matters", { span: 5, id: "matters", text: "Share of the variance of log time that each parameter explains alone." }, matter.element),
    card("Parameters of the fastest", { span: 12, id: "parallel", text: "A line for each of the thousand fastest. Draw along an axis to keep what passes there: the trials below follow." }, lines.element),
  ];
}
