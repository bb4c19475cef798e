// One job, live: from its first trial on, again after a reload, until it ends.

import { h } from "../parts/elements.js";
import { Live } from "../parts/live.js";
import { ask, at } from "../parts/service.js";
import { trialOf } from "../parts/statistics.js";

let stream = null;

function follow(live, id) {
  stream?.close();
  stream = new EventSource(at(`jobs/${id}/events`));
  stream.addEventListener("trial", ({ data }) => live.add(trialOf(JSON.parse(data))));
  stream.addEventListener("progress", ({ data }) => live.told({ ...live.job, state: live.job.state === "queued" ? "running" : live.job.state, progress: { ...live.job.progress, ...JSON.parse(data) } }));
  stream.addEventListener("end", async () => {
    stream.close();
    live.told(await ask(`jobs/${id}`));
    live.draw();
  });
}

export async function show(main, [id]) {
  document.title = `Job ${id.slice(0, 8)} · Tilewise`;
  const [job, { devices }] = await Promise.all([ask(`jobs/${id}`), ask("devices")]);
  const live = new Live(job);
  if (devices.length === 1) live.device = devices[0].id;
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, `Job ${id.slice(0, 8)}`, h("small", {}, `${job.kind} · ${id}`)), h("div", { class: "actions" }, live.more, live.stop)),
    live.steps, live.bar, live.said, live.figures, live.elements());
  live.told(job);
  if (job.kind === "tune") follow(live, id);
}
