// Jobs as they stand, from the stream of all jobs.

import { RUNNING } from "./jobs.js";
import { ask } from "./service.js";
import { follow } from "./stream.js";

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
  const ticking = setInterval(() => [...jobs.values()].some((job) => job.state === "running") && soon(), TICK_MS);
  const again = () => read().catch(() => {}); // what ended while nobody listened is in no event
  const unfollow = [follow("job", (told) => changed(told).then(soon, () => {})), follow("open", again), follow("lost", again)];
  end = () => {
    clearInterval(ticking);
    cancelAnimationFrame(drawing);
    unfollow.forEach((each) => each());
  };
  await read();
}

/** The job once it has ended; `told` is called with its state and progress, now and whenever they change. */
export function untilEnded(id, told) {
  return new Promise((resolve, reject) => {
    const unfollow = [];
    const end = (settle, value) => {
      unfollow.forEach((each) => each());
      settle(value);
    };
    const look = async () => {
      const job = await ask(`jobs/${id}`);
      told(job);
      if (!RUNNING.has(job.state)) end(resolve, job);
    };
    const looked = () => look().catch((error) => end(reject, error));
    const heard = (job) => RUNNING.has(job.state) ? told(job) : looked();
    unfollow.push(follow("job", (job) => job.id === id && heard(job)), follow("open", looked), follow("lost", looked));
    looked();
  });
}
