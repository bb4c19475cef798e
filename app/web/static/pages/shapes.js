// Every tuned shape, and what was asked for and is not.

import { keep, kept } from "../parts/address.js";
import { card, h, table } from "../parts/elements.js";
import { missList } from "../parts/misses.js";
import { problem, rate, shapePage, time, times, when } from "../parts/format.js";
import { ask, at, everything } from "../parts/service.js";

export const bestRow = (best) => [
  h("a", { href: at(shapePage(best.problem, best.device)) }, problem(best.problem)), best.kernel, time(best.timing?.median_ms), rate(best.gflops),
  times(best.baselines?.naive?.timing?.median_ms, best.timing?.median_ms), times(best.baselines?.vendor?.timing?.median_ms, best.timing?.median_ms),
  best.provisional ? `${best.match}, so far` : best.match, best.device, when(best.tuned_at),
];

export async function show(main) {
  document.title = "Shapes · Tilewise";
  const [{ devices }, every, { misses }] = await Promise.all([ask("devices"), everything("bests", "bests"), ask("misses?limit=50")]);
  const isChosen = devices.some(({ id }) => id === kept("device"));
  const bests = isChosen ? every.filter((best) => best.device === kept("device")) : every;
  const body = h("div", { id: "bests" });
  const filter = h("input", { type: "search", placeholder: "256x256x256 float32", value: kept("filter"), oninput: () => { keep({ filter: filter.value }); draw(); } });
  const draw = () => {
    const words = filter.value.trim().split(/\s+/);
    const found = bests.filter((best) => words.every((word) => `${problem(best.problem)} ${best.kernel} ${best.device}`.includes(word)));
    body.replaceChildren(table(["Problem", "Kernel", "Time#", "Rate#", "Over naive#", "Over vendor#", "Answer", "Device", "Tuned"], found.map(bestRow), { empty: "Nothing has been tuned yet." }));
  };
  draw();
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Shapes", h("small", {}, "The best of each problem that was tuned here: a link leads to all that is known of it."))),
    h("div", { class: "grid" }, card("Tuned", { span: 12 }, h("label", { class: "tall" }, "Filter ", filter), body), missList(misses, devices)));
}
