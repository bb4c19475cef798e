// What there is at a glance: gains, the roofline, what runs, what was asked for.

import { bestRow } from "./shapes.js";
import { card, copyButton, figure, h, table } from "../parts/elements.js";
import { count, percent, shapePage } from "../parts/format.js";
import { roofline } from "../parts/figures.js";
import { followJobs } from "../parts/events.js";
import { jobTable } from "../parts/jobs.js";
import { missList } from "../parts/misses.js";
import { orderForm } from "../parts/order.js";
import { kept } from "../parts/address.js";
import { ask, at, everything } from "../parts/service.js";

const AGAIN_MS = 5000;
const SAMPLES = [["256x256x256", "a small square"], ["512x64x512", "tall and thin"], ["500x600x400", "sizes that no tile divides"]];
let shown = 0;
let due = 0;

const gain = (best) => best.baselines?.naive?.timing ? best.baselines.naive.timing.median_ms / best.timing.median_ms : null;
const lead = (best) => best.baselines?.vendor?.timing ? best.baselines.vendor.timing.median_ms / best.timing.median_ms : null;

function median(values) {
  const sorted = values.toSorted((one, other) => one - other);
  return sorted.length ? sorted[sorted.length >> 1] : null;
}

function figures(bests, jobs) {
  const gains = bests.map(gain).filter((value) => value != null);
  const leads = bests.map(lead).filter((value) => value != null);
  const trials = jobs.reduce((sum, job) => sum + (job.kind === "tune" ? job.progress.done : 0), 0);
  return [
    figure(count(bests.length), "shapes tuned"), figure(gains.length ? `${median(gains).toFixed(2)}×` : "–", "naive, in the median", "win"),
    figure(leads.length ? percent(leads.filter((value) => value >= 1).length / leads.length) : "–", "of shapes at or above the vendor"),
    figure(count(trials), "trials of the last jobs"),
  ];
}

const first = (devices) => card("Which product?", { span: 12, id: "first", text: "C[m,n] = A[m,k] × B[k,n]. Every candidate is compiled, checked against float64 and timed on your device; the fastest is kept and serves your products." },
  orderForm(devices), h("ul", { class: "chips" }, SAMPLES.map(([shape, told]) => h("li", {}, h("a", { href: at(`ui/shapes/${shape}/float32`) }, shape), ` ${told}`))));

/** A tune to look at before there is one of one's own. */
const recorded = () => card("See one first", { span: 12, id: "see", text: "A tune that was recorded on an NVIDIA H200, played in this page: no device is needed." },
  h("p", {}, h("a", { href: at("ui/recorded") }, "Play the recorded tune"), ": 1024x1024x1024 in float32, beside naive, tiled and cuBLAS."));

/** What there is to do where no device was opened. */
const deviceless = (reasons) => card("No device was opened", { span: 12, id: "deviceless", text: "Nothing can be tuned or multiplied here until one is; what was tuned before is kept." },
  h("ul", {}, (reasons.length ? reasons : ["None was asked for: TILEWISE_DEVICES is none."]).map((why) => h("li", {}, why))),
  h("p", {}, "This command says what is missing, and how to come by it:"), h("pre", { tabindex: 0, role: "region", "aria-label": "Command" }, h("code", {}, "tilewise doctor")), copyButton("Copy", () => "tilewise doctor"),
  h("p", {}, "Meanwhile: ", h("a", { href: at("ui/kernels") }, "the kernels"), ", their sources and what a config makes of them."));

function roofs(devices, bests) {
  const open = (best) => location.assign(at(shapePage(best.problem, best.device)));
  return devices.map((device) => {
    const mine = bests.filter((best) => best.device === device.id && best.gflops != null);
    const like = mine.filter((best) => best.problem.dtype === mine[0].problem.dtype);
    return mine.length ? card(`Roofline of ${device.name}`, { span: 7, id: `roofline-${device.id.replace(":", "-")}`, text: `Every tuned ${like[0].problem.dtype} shape: hollow is naive, filled is tuned. A click opens a shape.` },
      roofline(device, like, { clicked: open }).element) : [];
  });
}

/** Show what tunes have found, those together that end soon after one another, unless somebody is writing an order. */
function showAgain(main) {
  due ||= setTimeout(() => {
    due = 0;
    if (!main.querySelector("form:focus-within")) show(main).catch(() => {});
  }, Math.max(0, shown + AGAIN_MS - Date.now()));
}

export async function show(main) {
  document.title = "Overview · Tilewise";
  shown = Date.now();
  const [{ devices: all, reasons }, every, { misses }] = await Promise.all([ask("devices"), everything("bests", "bests"), ask("misses?limit=8")]);
  const chosen = all.filter(({ id }) => id === kept("device"));
  const [devices, bests] = chosen.length ? [chosen, every.filter((best) => best.device === chosen[0].id)] : [all, every];
  const top = h("div", { class: "hero" });
  const running = h("div");
  const gains = bests.toSorted((one, other) => (gain(other) ?? 0) - (gain(one) ?? 0)).slice(0, 5);
  const name = devices.length ? devices.map((device) => `${device.name}, ${device.id}`).join(" · ") : "no device";
  const order = devices.length ? first(devices) : deviceless(reasons);
  const start = bests.length ? [] : recorded();
  main.replaceChildren(top, h("div", { class: "grid" },
    bests.length ? [roofs(devices, bests), card("Fastest gains", { span: bests.length ? 5 : 12, id: "gains" },
      table(["Problem", "Kernel", "Time#", "Rate#", "Naive#"], gains.map((best) => bestRow(best).slice(0, 5))))] : [order, start],
    card("Jobs", { span: 12, id: "running" }, running), missList(misses, all), bests.length ? order : []));
  const draw = (jobs) => {
    top.replaceChildren(h("h1", {}, "Tilewise", h("small", {}, name)), ...figures(bests, jobs));
    running.replaceChildren(jobTable(jobs.slice(0, 5), "No job yet."));
  };
  await followJobs(draw, (job) => job.kind === "tune" && showAgain(main));
}
