// What a job has sent so far, and the parts of a page that show it: of one that runs, has run, or was recorded.

import { keep, kept } from "./address.js";
import { Chart, axis } from "./chart.js";
import { card, choice, figure, h, table } from "./elements.js";
import { conditions, convergence, landscapeChart, whiskers } from "./figures.js";
import { config, percent, problem, rate, shapePage, time, times } from "./format.js";
import { RUNNING, share } from "./jobs.js";
import { Forbidden } from "./landscape.js";
import { Rows } from "./rows.js";
import { ask, at } from "./service.js";
import { configsOf, measured, varied } from "./statistics.js";
import { openTrial } from "./trial.js";

const PHASES = ["waiting", "search", "finals", "report"];
const DRAWN_EVERY_MS = 100; // at most: a trial that comes after a pause is drawn at once
const MORE_S = 20;

/** Bars of the fastest of each kernel so far, which change places as trials come. */
function race(trials) {
  const bests = () => {
    const found = new Map();
    for (const trial of measured(trials())) if (!(found.get(trial.kernel)?.ms <= trial.ms)) found.set(trial.kernel, trial);
    return [...found.values()].sort((one, other) => one.gflops - other.gflops);
  };
  return new Chart({
    label: "The fastest of each kernel so far", size: "low", clicked: (event) => openTrial(event.data.trial),
    option: (c) => ({
      grid: { left: 8, right: 150, top: 4, bottom: 4, containLabel: true },
      xAxis: axis(c, { type: "value", show: false, min: 0 }),
      yAxis: axis(c, { type: "category", data: bests().map(({ kernel }) => kernel), axisLabel: { color: c.ink }, splitLine: { show: false } }),
      tooltip: { formatter: ({ data: { trial } }) => `${trial.kernel}\n${config(trial.config)}` },
      series: [{ type: "bar", name: "fastest", barMaxWidth: 18,
        data: bests().map((trial, place, all) => ({ value: trial.gflops, trial, itemStyle: { color: trial.kernel === "vendor" ? c.gold : place === all.length - 1 || all.at(-1).kernel === "vendor" && place === all.length - 2 ? c.green : c.plain, borderRadius: [0, 4, 4, 0] } })) }, whiskers(c, bests())],
    }),
    figures: () => table(["Kernel", "Config", "Time#", "Rate#"], bests().toReversed().map((one) => [one.kernel, config(one.config), time(one.ms), rate(one.gflops)])),
  });
}

/** What one job has sent so far, and the page's parts that show it. */
export class Live {
  constructor(job) {
    Object.assign(this, { job, trials: [], key: kept("problem"), picked: kept("problem") != null, waiting: 0, drawnAt: 0 });
    const problemTrials = () => this.trials.filter((trial) => problem(trial.problem) === this.key);
    const search = () => problemTrials().filter((trial) => trial.round === "search" && trial.kernel !== "vendor");
    this.said = h("p", { id: "said", role: "status" });
    this.steps = h("ol", { class: "steps", "aria-label": "Phases" });
    this.bar = h("progress", { max: 1, "aria-labelledby": "said" });
    this.figures = h("div", { class: "hero", id: "figures" });
    this.stop = h("button", { type: "button", class: "stop", id: "stop", onclick: () => this.#stopped() }, "Stop");
    this.more = h("button", { type: "button", id: "extend", onclick: () => this.#extended() }, `Extend +${MORE_S} s`);
    this.result = h("div", { id: "result" });
    this.shapes = h("div", { class: "picks" });
    this.rows = new Rows({ opened: openTrial });
    this.focus = () => this.#focus(configsOf(problemTrials()));
    this.forbidden = new Forbidden(() => this.land?.draw());
    this.device = null; // the one that the job runs on, where it is one
    this.landHeld = h("p", { class: "quiet" });
    this.landHolder = h("div");
    this.land = null; // until two parameters of a kernel have been varied
    this.charts = [race(problemTrials), convergence(search, { size: "", clicked: openTrial, by: () => this.by })];
    this.search = search;
    this.by = kept("by") === "seconds" ? "seconds" : "trials";
    this.over = choice("over", ["trials", "seconds"], this.by, (value) => { this.by = value; keep({ by: value === "trials" ? null : value }); this.draw(); });
    this.sensors = card("Clocks and power", { span: 12, id: "sensors", text: "Of the device at each trial, as its sensors say: a red mark where it lowered its clocks by itself, a triangle where rounds were disturbed and taken again." });
    this.sensors.hidden = true; // until a trial tells of any
  }

  elements() {
    const [racing, converging] = this.charts;
    return h("div", { class: "grid" },
      card("Fastest of each kernel", { span: 5, id: "race", text: "As trials come; in gold the vendor's library. A whisker is the 95 % interval." }, this.shapes, racing.element),
      card("The search", { span: 7, id: "search", aside: this.over, text: "Each trial, and the fastest so far as a line; a red mark was rejected." }, converging.element),
      card("Landscape", { span: 12, id: "landscape" }, this.landHeld, this.landHolder),
      this.sensors,
      card("Result", { span: 12, id: "ended" }, this.result),
      card("Trials", { span: 12, id: "trials" }, this.rows.element));
  }

  /** The kernel with most trials, by its two parameters that varied most. */
  #focus(trials) {
    const counts = new Map();
    for (const trial of trials) counts.set(trial.kernel, (counts.get(trial.kernel) ?? 0) + 1);
    const kernels = [...counts].sort(([, one], [, other]) => other - one).map(([kernel]) => kernel);
    for (const kernel of kernels) {
      const mine = trials.filter((trial) => trial.kernel === kernel);
      const names = varied(mine);
      if (names.length < 2) continue;
      const [y, x] = names.includes("BM") && names.includes("BN") ? ["BM", "BN"] : names;
      this.landHeld.textContent = `${kernel}: the best time of each ${y} × ${x} over all other parameters, as cells are measured; its best round counts, the report, else the finals, else the search. Hatched: no config is allowed.`;
      return { trials: mine, x, y, aggregate: "best" };
    }
    if (!this.land) this.landHeld.textContent = "There is one once two parameters of a kernel have been varied.";
    return null;
  }

  #illegal() {
    const now = this.focus();
    return this.device && now ? this.forbidden.of({ ...now.trials[0].problem, device: this.device, kernel: now.trials[0].kernel, x: now.x, y: now.y }) : [];
  }

  async #stopped() {
    this.stop.disabled = true;
    this.stop.textContent = "Stopping…";
    try {
      this.told(await ask(`jobs/${this.job.id}`, { method: "DELETE" }));
    } catch (error) {
      this.said.textContent = error.message;
    }
  }

  async #extended() {
    this.more.disabled = true;
    try {
      const job = await ask(`jobs/${this.job.id}/extend?seconds=${MORE_S}`, { method: "POST" });
      if (job.id === this.job.id) this.told(job);
      else location.assign(at(`ui/jobs/${job.id}`)); // it ended just now: another goes on
    } catch (error) {
      this.said.textContent = error.message;
    }
    this.more.disabled = false;
  }

  /** Take the job as the service tells of it. */
  told(job) {
    this.job = job;
    if (job.progress.devices?.length === 1) this.device = job.progress.devices[0].device;
    const { state, progress: { done, phase, budget_seconds: budget } } = job;
    const running = RUNNING.has(state);
    const now = running ? Math.max(0, PHASES.indexOf(phase ?? (done ? "search" : "waiting"))) : PHASES.length;
    this.steps.replaceChildren(...PHASES.map((name, place) => h("li", { "aria-current": place === now ? "step" : null }, name)));
    this.bar.value = running ? share(job) : 1;
    this.stop.hidden = !running;
    this.more.hidden = !running || state === "cancelling" || budget == null || this.job.kind !== "tune";
    this.said.className = state === "failed" ? "bad" : "";
    this.said.textContent = this.words();
    this.figures.replaceChildren(...this.facts());
    if (job.result?.best) this.result.replaceChildren(resultTable(job.result.best, this.link));
    else this.result.replaceChildren(h("p", { class: "quiet" }, running ? "Comes with the end: what won, proved and measured once more." : "Nothing was chosen."));
  }

  /** The job's state in a sentence. */
  words() {
    const { state, error, progress: { done, total } } = this.job;
    const ended = { cancelled: "The job was stopped.", succeeded: "The job succeeded.", failed: `The job failed: ${error?.error ?? "its log says why"}` };
    return ended[state] ?? (state === "cancelling" ? "Stopping…" : total ? `${done} of at most ${total} trials` : "Waiting for the device…");
  }

  facts() {
    const { state, progress: { done, total, search_best_ms: best, eta_seconds: left, elapsed_seconds: used, budget_seconds: budget } } = this.job;
    return [
      figure(time(best), "fastest in the search", "win"), figure(String(done), `trials, ${total} at most`),
      figure(used == null ? "–" : `${used.toFixed(0)} s`, budget ? `of ${budget} s` : "used"),
      figure(RUNNING.has(state) && left != null ? `${Math.ceil(left)} s` : "–", "left, about"), figure(percent(this.rejected()), "rejected"),
    ];
  }

  /** What leads to all that is known of a problem. */
  link(one) {
    return h("a", { href: at(shapePage(one.problem)) }, problem(one.problem));
  }

  rejected() {
    return this.trials.length ? 1 - measured(this.trials).length / this.trials.length : 0;
  }

  add(trial) {
    const key = problem(trial.problem);
    this.trials.push(trial);
    if (this.key === null || !this.picked) this.key = key;
    this.soon();
  }

  soon() {
    const draw = () => { this.waiting = 0; this.drawnAt = performance.now(); this.draw(); };
    this.waiting ||= setTimeout(draw, Math.max(0, this.drawnAt + DRAWN_EVERY_MS - performance.now()));
  }

  /** A button for each shape, where there are several; those that are there stay, and the keyboard with them. */
  #offerShapes() {
    const keys = [...new Set(this.trials.map((trial) => problem(trial.problem)))];
    const pick = (key) => { Object.assign(this, { key, picked: true }); keep({ problem: key }); this.draw(); };
    for (const key of keys.length > 1 ? keys.slice(this.shapes.childElementCount) : []) {
      this.shapes.append(h("button", { type: "button", onclick: () => pick(key) }, key));
    }
    for (const button of this.shapes.children) {
      button.className = button.textContent === this.key ? "first" : "";
      button.setAttribute("aria-pressed", button.textContent === this.key);
    }
  }

  draw() {
    this.#offerShapes();
    if (!this.land && this.focus()) {
      this.land = landscapeChart(() => this.focus(), (cell) => cell.best && openTrial(cell.best), () => this.#illegal());
      this.landHolder.append(this.land.element);
    }
    if (this.sensors.hidden && this.trials.some((trial) => trial.conditions)) {
      this.sensors.hidden = false;
      this.strip = conditions(() => this.trials);
      this.sensors.append(this.strip.element);
    }
    for (const chart of [...this.charts, this.land, this.strip].filter(Boolean)) chart.draw();
    this.rows.show(this.trials);
  }
}

function resultTable(bests, link) {
  return table(["Problem", "Kernel", "Config", "Time#", "Rate#", "Over naive#", "Over vendor#"], bests.map((one) => [
    link(one), one.kernel, h("code", {}, config(one.config)), time(one.median_ms), rate(one.gflops),
    times(one.naive?.median_ms, one.median_ms), times(one.vendor?.median_ms, one.median_ms)]));
}
