// A recorded tune, played as its job's page would have shown it: for whoever has no device, or has not tuned anything yet.

import { keep, kept } from "../parts/address.js";
import { choice, figure, h } from "../parts/elements.js";
import { flops, percent, problem, time, times } from "../parts/format.js";
import { Live } from "../parts/live.js";
import { ask, at } from "../parts/service.js";

const TICK_MS = 100;
const PACES = ["5", "20", "60"]; // trials a second
let playing = 0;

/** The trials of the file, as a job's events have them. */
function trialsOf({ problem: meant, kernels, trials }) {
  return trials.map(([kernel, round, values, ...told], place) => {
    const config = Object.fromEntries(kernels[kernel].map((name, index) => [name, values[index]]));
    const [ms, stage, reason] = told.length === 1 ? [told[0]] : [null, ...told];
    const gflops = ms && flops(meant) / ms / 1e6;
    return { id: place + 1, problem: meant, kernel, round, config, ms, gflops, stage, reason, state: ms ? "measured" : "rejected" };
  });
}

const fastest = (trials) => trials.filter(({ ms, kernel }) => ms && kernel !== "vendor").reduce((one, other) => one?.ms <= other.ms ? one : other, null);

/** The job as it stood once so many trials were there. */
function jobAfter(all, count) {
  const seen = all.slice(0, count);
  const isOver = count >= all.length;
  const of = (name) => { const found = seen.find(({ kernel }) => kernel === name); return found && { median_ms: found.ms }; };
  const last = all.at(-1);
  const best = { problem: last.problem, kernel: last.kernel, config: last.config, median_ms: last.ms, gflops: last.gflops, naive: of("naive"), vendor: of("vendor") };
  const phase = { search: "search", final: "finals", report: "report" }[seen.at(-1)?.round];
  const progress = { done: count, total: all.length, search_best_ms: fastest(seen.filter(({ round }) => round === "search"))?.ms, phase };
  return { kind: "recorded", state: isOver ? "succeeded" : "running", progress, result: isOver ? { best: [best] } : null };
}

class Recorded extends Live {
  constructor(job) {
    super(job);
    this.over = null; // a recording has no seconds
    this.by = "trials";
  }

  words() {
    const { state, progress: { done, total } } = this.job;
    return state === "succeeded" ? "The recording has ended." : `${done} of ${total} recorded trials`;
  }

  facts() {
    const { progress: { done, total, search_best_ms: best } } = this.job;
    const naive = this.trials.find(({ kernel }) => kernel === "naive");
    return [figure(time(best), "fastest in the search", "win"), figure(String(done), `of ${total} recorded trials`),
      figure(times(naive?.ms, best), "naive's speed"), figure(percent(this.rejected()), "rejected")];
  }

  link(one) {
    return problem(one.problem);
  }
}

/** Play, pause, any place, and the pace. */
class Player {
  constructor(all) {
    this.all = all;
    this.live = new Recorded(jobAfter(all, 0));
    this.count = 0;
    this.pace = Number(PACES[1]);
    this.button = h("button", { type: "button", class: "first", id: "play", onclick: () => (playing ? this.pause() : this.play()) }, "Play");
    this.place = h("input", { type: "range", min: 0, max: all.length, step: 1, value: 0, id: "place", "aria-label": "Recorded trials shown", oninput: () => { this.pause(); this.#show(Number(this.place.value)); this.#kept(); } });
    this.controls = h("div", { class: "picks" }, this.button, this.place, choice("trials a second", PACES, PACES[1], (value) => { this.pace = Number(value); }));
  }

  play() {
    if (this.count >= this.all.length) this.count = 0;
    this.button.textContent = "Pause";
    keep({ trial: null });
    playing = setInterval(() => {
      this.#show(Math.min(this.all.length, this.count + this.pace * TICK_MS / 1000));
      if (this.count >= this.all.length) this.pause();
    }, TICK_MS);
  }

  pause() {
    clearInterval(playing);
    playing = 0;
    this.button.textContent = "Play";
    this.#kept();
  }

  /** Show the first so many and stay there. */
  stand(count) {
    this.#show(Math.min(Math.max(count, 0), this.all.length));
  }

  #kept() {
    keep({ trial: Math.floor(this.count) });
  }

  #show(count) {
    this.count = count;
    const whole = Math.floor(count);
    this.place.value = whole;
    this.live.trials = this.all.slice(0, whole);
    this.live.key = problem(this.all[0].problem);
    this.live.told(jobAfter(this.all, whole));
    this.live.soon();
  }
}

export async function show(main) {
  clearInterval(playing);
  playing = 0;
  document.title = "Recorded tune · Tilewise";
  const file = await ask("static/recorded/h200.json");
  const { device, vendor, recorded_on: day, compared_on: other, space } = file;
  const player = new Player(trialsOf(file));
  const { live } = player;
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "A recorded tune", h("small", {}, `${problem(file.problem)} on an ${device.name}, ${day}; nothing runs here now.`)),
      h("div", { class: "actions" }, h("a", { href: at(".") }, "Tune on your own device"))),
    h("p", { id: "recorded" }, `This is a recording. The search is the tuner's own; what it asks for is answered from the times that all ${space.toLocaleString("en")} configs of register_tiled took on the ${device.name} `
      + `(${device.architecture}, ${device.driver}, ${device.compiler.split(" -")[0]}) on ${day}, three samples each. naive, tiled and the vendor's library, ${vendor}, stand beside it as measured on ${other} on the same kind of device. The pace is yours, not the device's.`),
    player.controls, live.steps, live.bar, live.said, live.figures, live.elements());
  const asked = kept("trial");
  if (asked !== null) player.stand(Number(asked) || 0);
  else if (matchMedia("(prefers-reduced-motion: reduce)").matches) player.stand(Infinity);
  else player.play();
}
