// Which page an address is, and showing it: again once the service is back after a silence.

import { frame, trouble, watchReadiness } from "./parts/frame.js";
import { h } from "./parts/elements.js";
import { ROOT } from "./parts/service.js";

const PAGES = {
  overview: () => import("./pages/overview.js"),
  shapes: () => import("./pages/shapes.js"),
  shape: () => import("./pages/shape.js"),
  jobs: () => import("./pages/jobs.js"),
  job: () => import("./pages/job.js"),
  kernels: () => import("./pages/kernels.js"),
  devices: () => import("./pages/devices.js"),
  multiply: () => import("./pages/multiply.js"),
  workloads: () => import("./pages/workloads.js"),
  learn: () => import("./pages/learn.js"),
  recorded: () => import("./pages/recorded.js"),
};
const ONE_OF = { shapes: "shape", jobs: "job" };

const [, section = "overview", ...rest] = location.pathname.slice(ROOT.pathname.length - 1).replace(/^\/ui/, "")
  .split("/").map(decodeURIComponent).map((part, index) => index && !part ? undefined : part);
const parts = rest.filter(Boolean);
const name = parts.length && ONE_OF[section] ? ONE_OF[section] : section;
const main = document.getElementById("main");

async function show() {
  trouble(null);
  try {
    if (!(name in PAGES)) throw new Error(`There is no page ${section}.`);
    const page = await PAGES[name]();
    await page.show(main, parts, new URLSearchParams(location.search));
  } catch (error) {
    if (error instanceof TypeError && !/fetch/i.test(error.message)) throw error;
    if (!main.childElementCount) main.replaceChildren(h("h1", {}, document.title));
    trouble(error instanceof TypeError ? new Error("The service does not answer. This page goes on once it does.") : error);
  }
}

frame(section, show);
watchReadiness(show);
show();
