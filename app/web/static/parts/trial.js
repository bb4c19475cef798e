// One trial, whole, in a dialog of its own.

import { h } from "./elements.js";
import { config, rate, time, when } from "./format.js";
import { at } from "./service.js";

export function openTrial(trial) {
  const facts = {
    kernel: h("a", { href: at(`ui/kernels/${trial.kernel}`) }, trial.kernel), config: h("code", {}, config(trial.config)), round: trial.round,
    state: trial.state === "rejected" ? `rejected at ${trial.stage}: ${trial.reason}` : trial.state, time: time(trial.ms), rate: rate(trial.gflops),
    interval: trial.ci ? `${time(trial.ci[0])} to ${time(trial.ci[1])}${trial.timing ? `, ${trial.timing.samples} samples` : ""}` : "–",
    disturbed: trial.retaken ? `${trial.retaken} rounds were taken again` : "no round",
    error: trial.error ? `${trial.error.relative_l2.toExponential(2)} against float64` : "–", registers: trial.registers ?? "–", when: when(trial.created_at),
  };
  if (trial.kernel === "vendor") facts.kernel = "the vendor's library";
  const dialog = h("dialog", { "aria-label": `Trial ${trial.id}`, onclose: () => dialog.remove() },
    h("h2", {}, `Trial ${trial.id}`),
    h("dl", {}, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("form", { method: "dialog" }, h("button", { class: "first" }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}
