// The landscape of one kernel's trials with its pickers, what matters, and the parameters: as the address asks for them.

import { keep, kept } from "./address.js";
import { Brush } from "./brush.js";
import { card, choice, h } from "./elements.js";
import { axesOf, landscapeChart, matters, parallel } from "./figures.js";
import { percent } from "./format.js";
import { ask, query } from "./service.js";
import { configKey, configsOf, measured, valuesOf, varied } from "./statistics.js";
import { openTrial } from "./trial.js";

const ofKernel = (trials, kernel) => trials.filter((trial) => trial.kernel === kernel);

/** What the address asks for, by the names of GET /landscape. */
function asked() {
  const held = (kept("held") ?? "").split(",").filter(Boolean).map((each) => each.split("="));
  const fixed = Object.fromEntries(held.map(([name, value]) => [name, Number(value)]));
  return { x: kept("x"), y: kept("y"), aggregate: kept("aggregate") === "median" ? "median" : "best", fixed };
}

/** The cells in which the space allows no config, by GET /landscape: asked for once each, `come` is called with them. */
export class Forbidden {
  constructor(come) {
    Object.assign(this, { come, found: new Map() });
  }

  of(filters) {
    const asked = query(filters);
    if (!this.found.has(asked)) {
      this.found.set(asked, []);
      ask(`landscape?${asked}`).then(({ cells }) => {
        this.found.set(asked, cells.filter(({ state }) => state === "illegal"));
        this.come();
      }).catch(() => {}); // the picture is whole without them
    }
    return this.found.get(asked);
  }
}

/** What a forest says of each parameter of a kernel, by GET /importance: asked for once, `come` is called with it. */
class Forest {
  constructor(problem, come) {
    Object.assign(this, { problem, come, found: new Map() });
  }

  of(kernel) {
    if (!this.found.has(kernel)) {
      this.found.set(kernel, null);
      ask(`importance?${query({ ...this.problem, kernel })}`).then((found) => {
        this.found.set(kernel, found);
        this.come();
      }).catch(() => {}); // the picture has each parameter alone without it
    }
    return this.found.get(kernel);
  }

  /** By parameter what is lost where its values are shuffled. */
  lost(kernel) {
    const { parameters = [] } = this.of(kernel) ?? {};
    return Object.fromEntries(parameters.filter(({ shuffled }) => shuffled != null).map(({ name, shuffled }) => [name, shuffled]));
  }

  words(kernel) {
    const alone = "Share of the variance of log time that each parameter explains alone";
    const { explained, measured: count } = this.found.get(kernel) ?? {};
    if (count == null) return `${alone}.`;
    if (explained == null) return `${alone}; ${count} configs are too few for more.`;
    return `${alone}; and by how much a forest of trees, which explains ${percent(explained)} of configs that it has not seen, foretells them worse once a parameter's values are shuffled: what its interplay with the others matters, too.`;
  }
}

/** Which configs are shown, and how; each choice goes to the address. */
class Landscape {
  constructor(configs, kernels, kernel, problem) {
    Object.assign(this, { configs, kernels, kernel, problem, own: new Map(), ...asked() });
    this.told = h("p", { class: "quiet" });
    this.brush = new Brush(() => axesOf(this.mine(), varied(this.mine())), () => this.#brushed());
    this.forbidden = new Forbidden(() => this.charts[0]?.draw());
    const kernelChosen = this.#chosen((value) => { this.kernel = value; }, () => { this.#pickers(); this.brush.set({}); });
    this.picks = h("span", { class: "picks" });
    this.others = h("span", { class: "picks" });
    this.element = h("div", { class: "picks" }, choice("kernel", kernels, kernel, kernelChosen), this.picks);
    this.charts = [];
    this.#settle();
    this.#pickers();
  }

  mine() {
    if (!this.own.has(this.kernel)) this.own.set(this.kernel, ofKernel(this.configs, this.kernel));
    return this.own.get(this.kernel);
  }

  brushed() {
    return this.brush.isOn ? this.mine().filter((point) => this.brush.keeps(point)) : this.mine();
  }

  unfixed() {
    return this.brushed().filter((point) => Object.entries(this.fixed).every(([name, value]) => point.config[name] === value));
  }

  illegal() {
    return this.forbidden.of({ ...this.problem, kernel: this.kernel, x: this.x, y: this.y, held: this.#held() });
  }

  #held() {
    return Object.entries(this.fixed).map(([name, each]) => `${name}=${each}`).join(",");
  }

  /** Another choice of configs: the landscape and the trials follow. */
  #brushed() {
    this.#tell();
    const [land, lines] = this.charts;
    land.draw();
    lines.sync();
    this.rowsFollow();
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
    this.#tell();
  }

  #tell() {
    const [some, all] = [this.unfixed().length, this.mine().length].map((each) => each.toLocaleString("en"));
    this.told.textContent = `${some} of ${all} configs of ${this.kernel} that were tried: the ${this.aggregate} time of each ${this.y} × ${this.x} over all other parameters. `
      + "A config's time is of its best round: the report, else the finals, else the search. Hatched: no config is allowed. A click opens a cell's best.";
    this.brush.tell(this.brush.isOn ? `${this.brushed().length.toLocaleString("en")} of ${all} configs are kept.` : `All ${all} configs are kept.`);
  }

  /** What a picker calls: the others follow, each but the one in use, in which the keyboard has its place. */
  #chosen(change, then = () => {}) {
    return (value) => {
      change(value);
      this.#settle();
      then();
      this.charts.forEach((chart) => chart.draw());
      keep({ kernel: this.kernel, x: this.x, y: this.y, aggregate: this.aggregate, held: this.#held() });
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

/** Three cards of a problem's trials, of the address' kernel, else of the winner's; `rows` show what is kept alone. */
export function landscapeCards(trials, rows, winner, problem) {
  const configs = configsOf(trials);
  const size = (name) => ofKernel(configs, name).length;
  const kernels = [...new Set(configs.map((point) => point.kernel))].filter((name) => varied(ofKernel(configs, name)).length > 1);
  const kernel = [kept("kernel"), winner].find((name) => kernels.includes(name)) ?? kernels.toSorted((one, other) => size(other) - size(one))[0];
  if (!kernel) return [];
  const state = new Landscape(configs, kernels, kernel, problem);
  state.rowsFollow = () => {
    const staying = state.brush.isOn ? new Set(state.brushed().map(configKey)) : null;
    rows.also = staying ? (trial) => staying.has(configKey(trial)) : () => true;
    rows.refresh();
  };
  const land = landscapeChart(() => ({ x: state.x, y: state.y, aggregate: state.aggregate, trials: state.unfixed(), all: state.mine() }), (cell) => cell.best && openTrial(cell.best), () => state.illegal());
  const lines = parallel(() => ({ trials: state.mine(), names: varied(state.mine()) }), state.brush);
  const [told, forest] = [h("p", { class: "quiet", role: "status" }), new Forest(problem, () => matter.draw())];
  const matter = matters(() => measured(state.mine()), () => {
    const lost = forest.lost(state.kernel);
    told.textContent = forest.words(state.kernel);
    return lost;
  });
  state.charts.push(land, lines, matter);
  state.brush.show();
  if (state.brush.isOn) state.rowsFollow();
  return [
    card("Landscape", { span: 7, id: "landscape" }, state.told, state.element, land.element),
    card("What matters", { span: 5, id: "matters" }, told, matter.element),
    card("Parameters of the fastest", { span: 12, id: "parallel", text: "A line for each of the thousand fastest configs. Draw along an axis, or choose values, to keep what passes there: the landscape and the trials follow." }, lines.element, state.brush.element),
  ];
}
