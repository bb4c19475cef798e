// The ladder of lessons on this device: fourteen rungs, each with its idea, its diff, its times and what to try.

import { keep } from "../parts/address.js";
import { card, h, table } from "../parts/elements.js";
import { untilEnded } from "../parts/events.js";
import { config, count, percent, time } from "../parts/format.js";
import { RUNNING } from "../parts/jobs.js";
import { ask, at, query, send } from "../parts/service.js";
import { diffListing } from "../parts/source.js";

const CLOSE = 0.02; // of a time: two that are this close are not told apart
const SECONDS = 60;

const slow = (run) => run.accesses.filter(({ memory, taken, least }) => memory === "shared" && taken > least);
export const banks = (run) => slow(run).map(({ what, taken, least }) => `${what} ${taken} turns for ${least}`).join(", ")
  || (run.accesses.some(({ memory }) => memory === "shared") ? "no conflicts" : "no shared memory");

/** How many times the turns or sectors that would do a warp's accesses take together. */
function excess(run, memory) {
  const own = run.accesses.filter((one) => one.memory === memory);
  const sum = (member) => own.reduce((total, one) => total + one[member], 0);
  return own.length ? sum("taken") / sum("least") : 1;
}

/** What of the model changed from the rung below, in a sentence; what it does not see is said too. */
export function why(run, before) {
  if (!before) return "";
  const reasons = [
    run.bytes_read < before.bytes_read && `blocks read ${Number((before.bytes_read / run.bytes_read).toPrecision(3))} times fewer bytes`,
    excess(run, "global") < excess(before, "global") && "a warp's loads of global memory take fewer sectors",
    excess(run, "shared") < excess(before, "shared") && "fewer threads meet on a bank of shared memory",
    run.occupancy && before.occupancy && run.occupancy.fraction > before.occupancy.fraction && "more threads share a multiprocessor",
  ].filter(Boolean);
  const found = reasons.join(", ") || "bytes, conflicts and occupancy are as below: the gain is in instructions or waiting";
  const both = run.measured_ms && before.measured_ms;
  return both && before.measured_ms <= run.measured_ms * (1 + CLOSE) ? `${found}; here that gains nothing` : found;
}

const ratio = (run, before) => run?.measured_ms && before?.measured_ms ? `${(before.measured_ms / run.measured_ms).toFixed(2)}×` : "–";

function facts(run, before) {
  return {
    config: h("code", {}, config(run.config)), predicted: `${time(run.predicted_ms)} by the model, which knows no caches`,
    measured: run.measured_ms == null ? "not yet: measure it" : `${time(run.measured_ms)}${before?.measured_ms ? `, ${ratio(run, before)} as fast as the rung below` : ""}`,
    read: `${count(run.bytes_read)} B from global memory, ${Number(run.intensity.toPrecision(3))} operations a byte`,
    banks: banks(run), occupancy: run.occupancy ? `${percent(run.occupancy.fraction)} of an SM's threads, limited by ${run.occupancy.limited_by}` : "not said by the device",
    "why it gains": why(run, before) || "it is the first rung",
  };
}

export class Ladder {
  constructor({ sizes, device, chosen }) {
    Object.assign(this, { sizes, device, chosen: chosen ?? 3, change: null, parameters: {} });
    this.list = h("div");
    this.body = h("div");
    this.said = h("p", { id: "measuring", role: "status" });
    this.tried = h("div", { id: "tried" });
    this.button = h("button", { type: "button", class: "first", id: "measure-all", onclick: () => this.#measure(this.found.lessons) }, "Measure all rungs");
  }

  #address(extra) {
    return `lessons?${query({ ...this.sizes, device: this.device, ...extra })}`;
  }

  async load() {
    const [found, { kernels }] = await Promise.all([ask(this.#address()), ask("kernels")]);
    this.parameters = Object.fromEntries(kernels.map((one) => [one.name, one.parameters]));
    this.found = found;
    return found;
  }

  cards() {
    this.#draw();
    return [
      card("The ladder of lessons", { span: 5, id: "rungs", aside: this.button, text: `Fourteen kernels, one idea each, on ${[this.sizes.m, this.sizes.n, this.sizes.k].join(" × ")}. None ever serves a product.` }, this.list, this.said),
      h("section", { class: "card span7", id: "rung", "aria-live": "polite" }, this.body),
    ];
  }

  #draw() {
    const { lessons } = this.found;
    const below = (one) => lessons[one.number - 2]?.run;
    const open = (one) => (event) => { event.preventDefault(); this.#open(one.number); };
    const link = (one) => h("a", { href: at(this.#page(one.number)), onclick: open(one), "aria-current": one.number === this.chosen ? "step" : null }, `${one.number} ${one.title}`);
    this.list.replaceChildren(table(["Rung", "Model#", "Measured#", "Of below#"], lessons.map((one) => one.run
      ? [link(one), time(one.run.predicted_ms), time(one.run.measured_ms), ratio(one.run, below(one))]
      : [link(one), h("span", { class: "quiet", title: one.refusal }, "not here"), "–", "–"])));
    this.#show(lessons[this.chosen - 1], below(lessons[this.chosen - 1]));
  }

  #page(number) {
    const { m, n, k } = this.sizes;
    return `ui/learn/${number}?${query({ m, n, k, device: this.device })}`;
  }

  #open(number) {
    const { pathname } = new URL(at(this.#page(number)));
    history.replaceState(null, "", `${pathname}${location.search}`); // what else the page shows stays in the address
    keep({ ...this.sizes, device: this.device });
    Object.assign(this, { chosen: number, change: null });
    this.#draw();
  }

  #show(one, before) {
    const rest = one.run ? [
      h("dl", { id: "facts" }, Object.entries(facts(one.run, before)).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      this.#tryForm(one), this.tried] : [h("p", {}, `It does not run here: ${one.refusal}.`)];
    this.body.replaceChildren(h("h2", {}, `${one.number}. ${one.title}`), h("p", { id: "idea" }, one.idea), ...rest,
      h("h3", {}, "What changes from the rung below"), one.diff ? diffListing(one.diff) : "It is the first.", h("p", {}, h("a", { href: at(`ui/kernels/${one.kernel}`) }, "Its whole source")));
    if (one.run) this.#compare(one, one.changed);
  }

  /** Each parameter of the lesson, with what it proposes to change chosen already. */
  #tryForm(one) {
    const proposed = this.change ?? { ...one.run.config, ...(one.changed?.config ?? {}) };
    const pick = ([name, values]) => h("label", { class: "inline" }, name, " ", h("select", { name }, values.map((value) =>
      h("option", { selected: value === proposed[name] }, String(value)))));
    const look = () => this.#look(one, form);
    const form = h("form", { id: "try", onchange: look, onsubmit: (event) => { event.preventDefault(); this.#measure([one]); } },
      h("b", {}, "Try next:"), Object.entries(this.parameters[one.kernel]).map(pick), h("button", { type: "submit" }, "Run it"));
    return form;
  }

  async #look(one, form) {
    this.change = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, Number(value)]));
    const { lessons } = await ask(this.#address({ change: Object.entries(this.change).map(([name, value]) => `${name}=${value}`).join(",") }));
    this.#compare(one, lessons[one.number - 1].changed);
  }

  #compare(one, changed) {
    const { run } = one;
    const same = this.change && Object.entries(this.change).every(([name, value]) => run.config[name] === value);
    if (!changed) {
      this.tried.replaceChildren(h("p", { class: same ? "quiet" : "bad" }, same ? "That is the config above." : "No such config: a rule of the lesson refuses it."));
      return;
    }
    const row = (name, value) => [name, value(run), value(changed)];
    this.tried.replaceChildren(table(["What", `${config(run.config)}#`, `${config(changed.config)}#`], [
      row("model", (each) => time(each.predicted_ms)), row("measured", (each) => time(each.measured_ms)), row("read", (each) => `${count(each.bytes_read)} B`),
      row("banks", banks), row("blocks × threads", (each) => `${count(each.blocks)} × ${count(each.threads)}`)]));
  }

  /** Have lessons measured, a job for each type, and show the times as the jobs end. */
  async #measure(lessons) {
    const here = lessons.filter((one) => one.run);
    this.button.disabled = true;
    try {
      for (const dtype of new Set(here.map((one) => one.problem.dtype))) {
        const own = here.filter((one) => one.problem.dtype === dtype);
        const { m, n, k } = own[0].problem;
        const order = { shapes: [{ m, n, k }], dtype, device: this.found.device, kernels: own.map((one) => one.kernel), strategy: "exhaustive", retune: true, budget: { seconds: Math.max(5, Math.round(SECONDS * own.length / here.length)) } };
        await this.#followed(await send("tune", order));
      }
      this.found = await ask(this.#address());
      this.#draw();
      if (this.change) await this.#look(this.found.lessons[this.chosen - 1], document.getElementById("try"));
    } catch (error) {
      this.said.textContent = error.message;
    }
    this.button.disabled = false;
  }

  #followed({ id }) {
    const link = h("a", { href: at(`ui/jobs/${id}`) }, `job ${id.slice(0, 8)}`);
    return untilEnded(id, ({ state, error, progress: { done, total } }) =>
      this.said.replaceChildren(!RUNNING.has(state) ? "Measured by " : total ? `${done} of at most ${total} trials of ` : "Waiting for the device: ", link, error ? `: ${error.error}` : ""));
  }
}
