// What happens to all jobs, and the service's health: one connection, however much of a page follows it. It is open while
// the page is seen: a browser keeps six connections to a service, for all its tabs together.

import { at } from "./service.js";

const AGAIN_MS = 5000;
const SILENT_MS = 12_000; // health is told every five seconds: where nothing comes, nobody is there
const followers = { job: new Set(), health: new Set(), open: new Set(), lost: new Set() };
let stream = null;
let waiting = 0;

const tell = (name, told) => [...followers[name]].forEach((follower) => follower(told));

/** Whether events come. */
export const isOpen = () => stream?.readyState === EventSource.OPEN;

/**
 * Have `heard` called with what is told by a name: `job` and `health` by the service, `open` once events come, which may
 * leave out what happened before, `lost` when they come no more. The result ends that.
 */
export function follow(name, heard) {
  followers[name].add(heard);
  return () => followers[name].delete(heard);
}

function close() {
  clearTimeout(waiting);
  stream?.close();
  stream = null;
}

/** Open the stream again after a time in which nothing is heard. */
function openAfter(milliseconds) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    open();
    tell("lost");
  }, milliseconds);
}

function open() {
  close();
  if (document.hidden || document.getElementById("main").hidden) return; // the latter while the page asks for a key
  stream = new EventSource(at("events"));
  openAfter(SILENT_MS);
  stream.addEventListener("open", () => tell("open"));
  stream.addEventListener("error", ({ target }) => {
    if (target.readyState === EventSource.CLOSED) openAfter(AGAIN_MS); // or else the browser opens it again
    tell("lost");
  });
  for (const name of ["job", "health"]) {
    stream.addEventListener(name, ({ data }) => {
      openAfter(SILENT_MS);
      tell(name, JSON.parse(data));
    });
  }
}

document.addEventListener("visibilitychange", open);
open();
