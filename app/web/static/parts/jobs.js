// Jobs in lists: what they are, how far they are, and the bar of one that runs.

import { h, table } from "./elements.js";
import { time, when } from "./format.js";
import { at } from "./service.js";

export const RUNNING = new Set(["queued", "running", "cancelling"]);

export const jobLink = (job) => h("a", { href: at(`ui/jobs/${job.id}`) }, h("code", {}, job.id.slice(0, 8)));

/** How much of its time a job has used, or of its trials where it has no limit of seconds. */
export function share({ progress: { done, total, elapsed_seconds: elapsed, budget_seconds: budget } }) {
  if (elapsed != null && budget) return Math.min(1, elapsed / budget);
  return total ? done / total : 0;
}

export const bar = (job) => h("progress", { max: 1, value: share(job), "aria-label": `job ${job.id.slice(0, 8)}` });

export function jobTable(jobs, empty) {
  return table(["Job", "Kind", "State", "Trials#", "Fastest#", "Began", "Took#"], jobs.map((job) => [
    jobLink(job), job.kind, RUNNING.has(job.state) ? h("span", {}, job.state, " ", bar(job)) : job.state,
    job.progress.total ? String(job.progress.done) : "–", time(job.progress.search_best_ms), when(job.started_at ?? job.created_at),
    job.finished_at && job.started_at ? time(new Date(job.finished_at) - new Date(job.started_at)) : "–",
  ]), { empty });
}
