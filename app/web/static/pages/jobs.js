// Every job, newest first, as it stands.

import { card, h } from "../parts/elements.js";
import { followJobs } from "../parts/events.js";
import { jobTable } from "../parts/jobs.js";
import { orderForm } from "../parts/order.js";
import { ask } from "../parts/service.js";

export async function show(main) {
  document.title = "Jobs · Tilewise";
  const list = h("div");
  const { devices } = await ask("devices");
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Jobs", h("small", {}, "Each is a page to send to a colleague: it can be followed, reloaded and stopped."))),
    h("div", { class: "grid" }, card("Tune a shape", { span: 12, id: "tune" }, orderForm(devices)), card("All jobs", { span: 12, id: "jobs" }, list)));
  await followJobs((jobs) => list.replaceChildren(jobTable(jobs, "No job yet: tune a shape.")));
}
