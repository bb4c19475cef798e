// Every job, newest first; what is under way is asked again each second.

import { card, h } from "../parts/elements.js";
import { RUNNING, jobTable } from "../parts/jobs.js";
import { orderForm } from "../parts/order.js";
import { ask } from "../parts/service.js";

const AGAIN_MS = 1000;
let waiting = 0;

export async function show(main) {
  document.title = "Jobs · Tilewise";
  const list = h("div");
  const { devices } = await ask("devices");
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Jobs", h("small", {}, "Each is a page to send to a colleague: it can be followed, reloaded and stopped."))),
    h("div", { class: "grid" }, card("Tune a shape", { span: 12, id: "tune" }, orderForm(devices)), card("All jobs", { span: 12, id: "jobs" }, list)));
  const draw = async () => {
    clearTimeout(waiting);
    const { jobs } = await ask("jobs?limit=100");
    list.replaceChildren(jobTable(jobs, "No job yet: tune a shape."));
    waiting = setTimeout(() => draw().catch(() => {}), jobs.some((job) => RUNNING.has(job.state)) ? AGAIN_MS : 5 * AGAIN_MS);
  };
  await draw();
}
