// The jobs as they stand, from the stream of all jobs. It is open while the page is seen: a browser keeps six connections
// to a service, for all its tabs together.

import { RUNNING } from "./jobs.js";
import { ask, at } from "./service.js";

const AGAIN_MS = 5000;
const TICK_MS = 1000;
const MOST = 100;
let end = () => {};

/** The progress of a job that runs, with the seconds since it was told. */
function now(job) {
  const since = job.state === "running" && job.progress.elapsed_seconds != null ? (Date.now() - job.told) / 1e3 : 0;
  return since ? { ...job, progress: { ...job.progress, elapsed_seconds: job.progress.elapsed_seconds + since } } : job;
}

/** Have `shown` called with the newest jobs, now and whenever one changes, and `ended` with a job that has ended. */
export async function followJobs(shown, ended = () => {}) {
  end();
  const jobs = new Map();
  let stream = null;
  let drawing = 0;
  const draw = () => {
    const newest = [...jobs.values()].sort((one, other) => Date.parse(other.created_at) - Date.parse(one.created_at));
    newest.splice(MOST).forEach(({ id }) => jobs.delete(id)); // a page may stay open for days
    shown(newest.map(now));
  };
  const soon = () => {
    drawing ||= requestAnimationFrame(() => {
      drawing = 0;
      draw();
    });
  };
  const keep = (job) => jobs.set(job.id, { ...job, told: Date.now() });
  const read = async () => {
    (await ask(`jobs?limit=${MOST}`)).jobs.forEach(keep);
    draw();
  };
  const changed = async (told) => {
    const known = jobs.get(told.id);
    if (known?.state === told.state) return keep({ ...known, ...told });
    const job = await ask(`jobs/${told.id}`); // when it began, and when it ended, is in no event
    if (known && !RUNNING.has(job.state) && RUNNING.has(known.state)) ended(job);
    return keep(job);
  };
  const open = () => {
    stream?.close();
    stream = null;
    if (document.hidden) return;
    stream = new EventSource(at("events"));
    stream.addEventListener("job", ({ data }) => changed(JSON.parse(data)).then(soon, () => {}));
    stream.addEventListener("open", () => read().catch(() => {})); // what ended while nobody listened is in no event
    stream.addEventListener("error", ({ target }) => target.readyState === EventSource.CLOSED && setTimeout(() => target === stream && open(), AGAIN_MS));
  };
  const ticking = setInterval(() => [...jobs.values()].some((job) => job.state === "running") && soon(), TICK_MS);
  document.addEventListener("visibilitychange", open);
  end = () => {
    stream?.close();
    stream = null; // else it would be opened again if it was about to be
    clearInterval(ticking);
    document.removeEventListener("visibilitychange", open);
  };
  await read();
  open();
}
