// One job, live: from its first trial on, again after a reload, until it ends.

import { h } from "../parts/elements.js";
import { Live } from "../parts/live.js";
import { ask, at } from "../parts/service.js";
import { trialOf } from "../parts/statistics.js";

let end = () => {};

/** Follow the job's own stream while the page is seen: unlike that of all jobs it begins with the first trial. */
function follow(live, id) {
  end();
  let stream = null;
  let last = 0;
  end = () => {
    stream?.close();
    document.removeEventListener("visibilitychange", open);
  };
  function open() {
    stream?.close();
    if (document.hidden) return;
    stream = new EventSource(at(`jobs/${id}/events`));
    stream.addEventListener("trial", ({ data }) => {
      const trial = JSON.parse(data);
      if (trial.id > last) live.add(trialOf(trial)); // one that is opened again begins anew
      last = Math.max(last, trial.id);
    });
    stream.addEventListener("progress", ({ data }) => live.told({ ...live.job, state: live.job.state === "queued" ? "running" : live.job.state, progress: { ...live.job.progress, ...JSON.parse(data) } }));
    stream.addEventListener("end", async () => {
      end();
      live.told(await ask(`jobs/${id}`));
      live.draw();
    });
  }
  document.addEventListener("visibilitychange", open);
  open();
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
