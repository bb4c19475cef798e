// One problem on one device: its best, what it is compared with, and all that was tried.

import { card, copyButton, figure, h, table } from "../parts/elements.js";
import { convergence, ladder, occupancyCurve, roofline } from "../parts/figures.js";
import * as format from "../parts/format.js";
import { landscapeCards } from "../parts/landscape.js";
import { openTrial } from "../parts/trial.js";
import { Rows } from "../parts/rows.js";
import { ask, asked, at, everything, query, send } from "../parts/service.js";
import { parametersOf } from "../parts/source.js";
import { trialOf } from "../parts/statistics.js";
import { profileCard } from "../parts/profile.js";
import { takeAway } from "../parts/take.js";

const { time, rate, times } = format;

/** The part of a best that each rung of its ladder is. */
function rungs(best) {
  const own = { name: `${best.kernel}, tuned`, kernel: best.kernel, config: best.config, ms: best.timing?.median_ms, ci: best.timing?.ci95_ms, gflops: best.gflops, best: true };
  const others = Object.entries(best.baselines ?? {}).filter(([, one]) => one?.timing).map(([what, one]) => ({
    name: what === "default" ? `${one.name}, untuned` : one.name, kernel: what === "vendor" ? "vendor" : one.name, config: one.config,
    ms: one.timing.median_ms, ci: one.timing.ci95_ms, gflops: one.gflops,
  }));
  const same = (one) => one.kernel === own.kernel && one.ms === own.ms;
  return [own, ...others.filter((one) => !same(one))].filter((one) => one.gflops != null);
}

function hero(problem, best, device) {
  const name = [problem.m, problem.n, problem.k].join(" × ") + (problem.batch > 1 ? ` × ${problem.batch}` : "");
  const told = [problem.dtype, problem.precision, format.layout(problem), device?.id].filter(Boolean).join(" · ");
  if (!best) return h("h1", {}, name, h("small", {}, `${told} · not tuned yet`));
  const { timing, baselines } = best;
  const ms = timing?.median_ms;
  const rival = baselines?.vendor?.timing?.median_ms;
  const kernel = h("a", { href: at(`ui/kernels/${best.kernel}`) }, best.kernel);
  const ci = timing?.ci95_ms;  // none where there were too few samples
  const spread = ci ? `± ${time((ci[1] - ci[0]) / 2)}, ` : "";
  return [
    h("h1", {}, name, h("small", {}, `${told} · tuned ${format.when(best.tuned_at)} by `, kernel, ` · ${best.match}${best.provisional ? ", so far" : ""}`)),
    figure(time(ms), timing ? `${spread}${timing.samples} samples${timing.limited ? ", wide" : ""}` : "not measured here"),
    figure(rate(best.gflops), ms && device ? `${format.percent(format.floor(device, problem) / ms)} of the floor` : ""),
    figure(times(rival, ms), `the vendor's: ${baselines?.vendor?.name ?? "none"}`, rival > ms ? "win" : "wait"),
    figure(times(baselines?.naive?.timing?.median_ms, ms), "naive"),
    figure(best.error?.relative_l2?.toExponential(1) ?? "–", "error against float64"),
  ];
}

/** The best's config: each parameter with what its kernel's source says of it, and a way there. */
async function configChips({ kernel, config }) {
  const words = await asked(`kernels/${kernel}/source`).then((answer) => answer.text()).then(parametersOf).catch(() => ({}));
  return h("ul", { class: "chips", "aria-label": "Config" }, Object.entries(config).map(([name, value]) => h("li", {},
    h("a", { href: at(`ui/kernels/${kernel}#parameters`), title: words[name] ? `${name}: ${words[name]}` : null }, h("em", {}, name), ` ${value}`))));
}

const curl = (problem) => `curl '${at(`best-config?${query(format.filters(problem))}`)}'`;

async function tune(problem, device, seconds) {
  const { m, n, k, batch, ...rest } = problem;
  const job = await send("tune", { shapes: [{ m, n, k, batch }], ...rest, device, budget: { seconds }, retune: true });
  location.assign(at(`ui/jobs/${job.id}`));
}

function tuneForm(problem, device, best, failed) {
  const seconds = h("input", { type: "number", min: 1, max: 600, value: 20, "aria-label": "seconds", id: "seconds" });
  const submit = (event) => {
    event.preventDefault();
    tune(problem, device, Number(seconds.value)).catch(failed);
  };
  return h("form", { id: "tune-form", onsubmit: submit }, seconds, h("button", { type: "submit" }, best ? "Tune again" : "Tune"));
}

function historyCard(history) {
  const rows = history.map((one) => [format.when(one.at), h("span", { class: "nowrap" }, one.event), h("span", { class: "nowrap" }, one.kernel), time(one.median_ms), one.environment]);
  return card("History", { span: 7, id: "history", text: "What was ever the best here, over drivers and compilers." },
    table(["When", "What", "Kernel", "Time#", "Environment"], rows));
}

async function launchCards(problem, best, device, registers) {
  const values = Object.entries(best.config).map(([name, value]) => `${name}=${value}`).join(",");
  const asked = query({ ...problem, device, kernel: best.kernel, config: values, registers });
  const [found, held] = await Promise.all(["analysis", "occupancy"].map((what) => ask(`${what}?${asked}`).catch(() => null)));
  return [found && launchCard(found), held && occupancyCard(held, registers)].filter(Boolean);
}

function launchCard({ occupancy, ...found }) {
  const facts = {
    "blocks": `${format.count(found.blocks)}, of which ${format.count(found.edge_tiles)} at edges`, "threads a block": found.threads,
    "shared memory a block": format.bytes(found.shared_bytes), "read from memory": format.bytes(found.bytes_read), "flops a byte": found.intensity.toPrecision(3),
    "blocks an SM": occupancy ? `${occupancy.blocks_per_sm}, limited by ${occupancy.limited_by}` : "the device does not say", "waves": found.waves?.toFixed(2) ?? "–",
    "time at most, by the model": time(found.predicted_ms),
  };
  return card("What a launch does", { span: 5, id: "launch", text: "By the model, from the config alone." },
    h("dl", {}, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])));
}

/** How full a multiprocessor is over each resource that a block of the winner takes. */
function occupancyCard({ occupancy, curves }, registers) {
  const heading = (text) => card("Occupancy", { span: 12, id: "occupancy", text }, h("div", { class: "curves" }, curves.map((curve) => occupancyCurve(curve).element)));
  if (!occupancy) return heading("This device gives no figures of a multiprocessor: there is no occupancy to tell.");
  const known = registers ? `${registers} registers a thread, as the compiler said` : "as if registers were no limit: the trial does not know them";
  return heading(`The winner fills ${format.percent(occupancy.fraction)} of an SM's threads: ${occupancy.blocks_per_sm} blocks, limited by ${occupancy.limited_by}, ${known}. Each curve changes one resource and holds the others, by the model.`);
}

export async function show(main, parts, options) {
  const problem = format.problemOf(parts, options);
  document.title = `${format.problem(problem)} · Tilewise`;
  const { devices } = await ask("devices");
  const device = devices.find((one) => one.id === options.get("device")) ?? devices[0];
  const filters = query({ shape: format.shape(problem), dtype: problem.dtype, precision: problem.precision, trans_a: problem.trans_a, trans_b: problem.trans_b, device: device?.id });
  const [{ bests: [best] }, { bests: all }, { history }] = await Promise.all([
    ask(`bests?${filters}`), ask(`bests?${query({ dtype: problem.dtype, device: device?.id, limit: 1000 })}`), ask(`bests/history?${filters}`)]);
  const failed = (error) => { note.textContent = error.message; };
  const note = h("p", { class: "bad", role: "alert", id: "failed" });
  const actions = h("div", { class: "actions" }, copyButton("Copy curl", () => curl(problem)), copyButton("Copy link", () => location.href), tuneForm(problem, device?.id, best, failed));
  const chips = best ? await configChips(best) : null;
  const grid = h("div", { class: "grid" });
  main.replaceChildren(h("div", { class: "hero" }, hero(problem, best, device), actions), note, chips ?? "", grid);
  if (best) {
    grid.append(
      card("The ladder", { span: 5, id: "ladder", text: "GFLOP/s: higher is better. Gold: the rival. A whisker is the 95 % interval; a click leads to the source." },
        ladder(rungs(best), (rung) => rung.kernel !== "vendor" && location.assign(at(`ui/kernels/${rung.kernel}`))).element),
      card("Roofline", { span: 7, id: "roofline", text: `Every tuned ${problem.dtype} shape on this device: hollow is naive, filled is tuned.` },
        roofline(device, all, { mark: problem, clicked: (one) => location.assign(at(format.shapePage(one.problem, one.device))) }).element));
  }
  await tried(grid, filters, best, problem, device, history);
}

/** What was tried, as it comes, and what follows from it. */
async function tried(grid, filters, best, problem, device, history) {
  const rows = new Rows({ opened: openTrial });
  const trials = (await everything(`trials?${filters}`, "trials")).map(trialOf);
  const search = trials.filter((trial) => trial.round === "search" && trial.kernel !== "vendor");
  if (trials.length) {
    grid.append(...landscapeCards(trials, rows, best?.kernel, { ...problem, device: device.id }),
      card("The search", { span: 12, id: "search", text: "Each trial in the order of trying, the fastest so far as a line; a red mark was rejected." }, convergence(() => search, { clicked: openTrial }).element),
      card("Trials", { span: 12, id: "trials" }, rows.element));
    rows.show(trials);
  } else {
    grid.append(card("Nothing tried yet", { span: 12, text: "Tune it: every candidate is compiled, checked against float64 and timed on the device." }));
  }
  const own = best && trials.find((trial) => trial.registers && trial.kernel === best.kernel && format.config(trial.config) === format.config(best.config));
  if (!best) return;
  grid.append(...await launchCards(problem, best, device.id, own?.registers)); // at once: a chart is drawn where it stands
  grid.append(historyCard(history), await profileCard(problem, device.id, filters), takeAway(problem, device.id));
}

