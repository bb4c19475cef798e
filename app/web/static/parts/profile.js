// What was profiled of a problem: each figure with its source, the model's and the articles' beside it, in sentences too.

import { card, h, table } from "./elements.js";
import { untilEnded } from "./events.js";
import { bytes, config, time, when } from "./format.js";
import { ask, at, send } from "./service.js";

const SOURCES = {
  ncu: "Nsight Compute's counters", perf: "the processor's counters", timer: "a tune's timer", driver: "the driver's word on the compiled kernel",
  model: "arithmetic on the config, which knows no caches", none: "nobody says it",
};
const UNITS = { ms: time, "%": (value) => `${value.toPrecision(3)} %`, byte: bytes, "byte/s": (value) => `${bytes(value)}/s` };
const told = (value, unit) => (UNITS[unit] ?? ((plain) => String(Number(plain.toPrecision(3)))))(value);

/** A figure, the mark of its source, and below it what the model predicts and what the article found. */
function cell({ figures }, name) {
  const one = figures.find((each) => each.name === name);
  if (!one) return "";
  const value = one.value == null ? "–" : told(one.value, one.unit);
  const beside = (what, other) => other == null ? null : h("div", { class: "quiet" }, `${what} ${told(other, one.unit)}`);
  return h("div", { title: one.reason ?? "" }, value, " ", h("small", { class: `source-${one.source}` }, one.source),
    one.source === "model" ? null : beside("model", one.predicted), beside("A40", one.article));
}

const title = ({ role, kernel }) => `${role}${role === kernel ? "" : `: ${kernel}`}#`;

function shown({ kernels, findings, created_at: made, environment }) {
  const figures = kernels.flatMap((one) => one.figures);
  const names = [...new Set(figures.map((one) => one.name))];
  const sources = [...new Set(figures.map((one) => one.source))];
  const reasons = [...new Set(figures.map((one) => one.reason).filter(Boolean))];
  return [
    h("ul", { id: "findings" }, findings.map((sentence) => h("li", {}, sentence))),
    table(["Figure", ...kernels.map(title)], [...names.map((name) => [name.replaceAll("_", " "), ...kernels.map((one) => cell(one, name))]),
      ["config", ...kernels.map((one) => h("code", { class: "wrap" }, config(one.config)))]]),
    h("ul", { class: "quiet", id: "sources" }, sources.map((name) => h("li", {}, h("small", { class: `source-${name}` }, name), ` ${SOURCES[name]}`)),
      reasons.map((why) => h("li", {}, `No counter: ${why}.`)),
      kernels.filter((one) => one.refusal).map((one) => h("li", {}, `${one.role} was not profiled: ${one.refusal}.`)),
      h("li", {}, `A40: naive and tiled at 2048 × 2048 × 2048 there, as the articles found them. Made ${when(made)}, ${environment}.`)),
  ];
}

/** The newest profile of a problem, and the button that has one made. */
export async function profileCard(problem, device, asked) {
  const body = h("div", {});
  const said = h("span", { class: "quiet", role: "status", id: "profiling" });
  const load = async () => {
    const { profiles: [found] } = await ask(`profiles?${asked}&limit=1`);
    body.replaceChildren(...(found ? shown(found) : [h("p", { class: "quiet" }, "Not profiled yet: naive, tiled, what serves this now and the vendor's library, by hardware counters where there are any.")]));
  };
  const profile = async () => {
    button.disabled = true;
    try {
      const { id } = await send("profile", { ...problem, device });
      said.replaceChildren("Profiling: ", h("a", { href: at(`ui/jobs/${id}`) }, `job ${id.slice(0, 8)}`));
      const job = await untilEnded(id, () => {});
      said.textContent = job.error?.error ?? "";
      await load();
    } catch (error) {
      said.textContent = error.message;
    }
    button.disabled = false;
  };
  const button = h("button", { type: "button", id: "profile-now", onclick: profile }, "Profile it");
  await load();
  return card("Why it is as fast as it is", { span: 12, id: "profile", aside: h("div", { class: "picks" }, said, button), text: "What hardware counters, the timer, the driver and the model say of four kernels, side by side. While it is made, products go on: they wait for a launch, or for a few passes of the profiler." }, body);
}
