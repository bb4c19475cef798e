// What every page has: the bar, whether the service is there, the theme, and the way to anything by the keyboard.

import { keep, kept } from "./address.js";
import { ask, at } from "./service.js";
import { h } from "./elements.js";
import { chooseUnits, units } from "./format.js";
import { follow, isOpen } from "./stream.js";

const $ = (id) => document.getElementById(id);
const ASKED_AGAIN_MS = 3000;
const ANSWERED_MS = 5000;
let gone = false; // whether the service has not answered since the page was shown

/** Say whether the service is ready, as its stream tells; `back` is called once it is there after a silence. */
export function watchReadiness(back) {
  let waiting = 0;
  const say = (text, kind) => {
    Object.assign($("ready"), { textContent: text, className: `pill ${kind}`.trim() });
    if (gone && kind !== "bad") back();
    gone = kind === "bad";
  };
  const look = async () => { // while no stream tells it
    clearTimeout(waiting);
    if (document.hidden || isOpen()) return;
    try {
      await ask("health/ready", { signal: AbortSignal.timeout(ANSWERED_MS) });
      say("ready", "good");
    } catch (error) {
      const silent = error instanceof TypeError || error.name === "TimeoutError"; // of fetch: no answer at all, or none yet
      if (silent) say("the service does not answer", "bad");
      else say(error.message, "");
    }
    clearTimeout(waiting);
    waiting = setTimeout(look, ASKED_AGAIN_MS);
  };
  follow("health", ({ status, reason }) => status === "ready" ? say("ready", "good") : say(reason, ""));
  follow("lost", look);
  waiting = setTimeout(look, ASKED_AGAIN_MS);
}

/** Say what went wrong above the page; nothing takes it away. */
export function trouble(error) {
  $("trouble").hidden = !error;
  $("trouble").textContent = error ? error.message : "";
}

function chooseTheme() {
  const select = $("theme");
  select.value = localStorage.getItem("tilewise-theme") ?? "";
  select.addEventListener("change", () => {
    if (select.value) localStorage.setItem("tilewise-theme", select.value);
    else localStorage.removeItem("tilewise-theme");
    document.documentElement.dataset.theme = select.value;
    dispatchEvent(new Event("theme"));
  });
}

/** The units of every time and rate: kept, and in the address, so that a link shows the same; `changed` draws anew. */
function offerUnits(changed) {
  const select = $("units");
  select.value = units();
  select.addEventListener("change", () => {
    chooseUnits(select.value);
    changed();
  });
}

const OF_ONE = new Set(["overview", "shapes", "shape", "learn"]); // pages that show one device where it is chosen

/** Where there are several devices, the one whose figures are shown: in the address, and in the links to other pages. */
async function offerDevices(page, changed) {
  const { devices } = await ask("devices").catch(() => ({ devices: [] })); // the page itself tells what is wrong
  if (devices.length < 2) return;
  const select = $("device");
  const carry = () => document.querySelectorAll("nav [data-page], .brand").forEach((link) => {
    const to = new URL(link.href);
    if (select.value) to.searchParams.set("device", select.value);
    else to.searchParams.delete("device");
    link.href = to.href;
  });
  select.append(...devices.map(({ id }) => h("option", {}, id)));
  select.value = devices.some(({ id }) => id === kept("device")) ? kept("device") : "";
  select.addEventListener("change", () => {
    keep({ device: select.value });
    carry();
    changed();
  });
  carry();
  $("device-choice").hidden = !OF_ONE.has(page);
}

const PAGES = ["shapes", "jobs", "kernels", "devices", "multiply", "workloads", "learn", "recorded"];
const SIZES = /^(?:tune\s+)?(\d+x\d+x\d+(?:x\d+)?)(?:\s+(float32|float64|float16|bfloat16))?$/;

/** Where what was typed leads: names and addresses, the likeliest first. */
function places(text) {
  const typed = text.trim().toLowerCase();
  const sizes = SIZES.exec(typed);
  if (sizes) {
    const page = `ui/shapes/${sizes[1]}/${sizes[2] ?? "float32"}`;
    return [[`${sizes[1]} ${sizes[2] ?? "float32"}: see it, or tune it`, page]];
  }
  const job = /^(?:job\s+)?([0-9a-f]{32})$/.exec(typed);
  if (job) return [[`job ${job[1]}`, `ui/jobs/${job[1]}`]];
  const kernel = /^kernel\s+(\w+)$/.exec(typed);
  if (kernel) return [[`kernel ${kernel[1]}`, `ui/kernels/${kernel[1]}`]];
  return [["overview", "."], ...PAGES.map((page) => [page, `ui/${page}`])].filter(([name]) => name.startsWith(typed));
}

function showPalette() {
  const [dialog, text, found] = [$("palette"), $("palette-text"), $("palette-found")];
  const show = () => found.replaceChildren(...places(text.value).map(([name, page]) =>
    h("li", {}, h("a", { href: at(page) }, name))));
  text.addEventListener("input", show);
  text.addEventListener("keydown", (event) => {
    const first = found.querySelector("a");
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (first) first.click();
  });
  const open = () => { text.value = ""; show(); dialog.showModal(); text.focus(); };
  $("find").addEventListener("click", open);
  addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    open();
  });
}

export function frame(page, show) {
  chooseTheme();
  offerUnits(show);
  offerDevices(page, show);
  showPalette();
  document.querySelector(`nav [data-page="${page}"]`)?.setAttribute("aria-current", "page");
}
