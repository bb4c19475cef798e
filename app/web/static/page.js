// The page at /: everything it shows comes from the same API that programs use.

import { askForKey } from "./login.js";

const $ = (id) => document.getElementById(id);

/** Ask the service; an error of its one shape becomes an Error with its sentence. */
async function ask(path, options) {
  const answer = await fetch(path, options);
  if (answer.status === 401) askForKey();
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `the service answered ${answer.status}`);
  return { body, headers: answer.headers };
}

/** An element with text and children; never markup from the service. */
function element(name, text = "", { className = "", children = [] } = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const config = (values) => Object.entries(values ?? {}).map(([name, value]) => `${name}=${value}`).join(" ") || "–";
const time = (ms) => ms == null ? "–" : ms < 1 ? `${(ms * 1000).toPrecision(3)} µs` : `${ms.toPrecision(4)} ms`;
const rate = (gflops) => gflops == null ? "–" : gflops.toPrecision(4);
const times = (other, ms) => other == null || ms == null ? "–" : `${(other / ms).toFixed(2)}×`;
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** A table's row; a cell is its text, its class, and the heading that stands before it where the page is narrow. */
function row(cells, className = "") {
  const children = cells.map(([text, kind, heading]) => {
    const cell = element("td", text, { className: kind ?? "" });
    if (heading) cell.dataset.heading = heading;
    return cell;
  });
  return element("tr", "", { className, children });
}

const ASKED_AGAIN_MS = 3000;
let gone = false; // whether the service has not answered since all was shown

/** Say whether the service is ready, again and again; once it is back after a silence, show everything anew. */
async function watchReadiness() {
  const badge = $("ready");
  try {
    await ask("health/ready");
    badge.textContent = "ready";
    badge.className = "good";
  } catch (error) {
    const silent = error instanceof TypeError; // fetch: no answer at all
    badge.textContent = silent ? "the service does not answer" : error.message;
    badge.className = silent ? "bad" : "";
    gone ||= silent;
  }
  if (gone && badge.className !== "bad") {
    gone = false;
    showAll();
  }
  setTimeout(watchReadiness, ASKED_AGAIN_MS);
}

function card(device) {
  const facts = {
    platform: `${device.platform}, ${device.architecture}`,
    memory: gib(device.memory_bytes),
    "SMs or cores": device.limits.sms,
    "threads a block": device.limits.threads,
    "shared memory a block": `${device.limits.shared_bytes / 1024} KiB`,
    compiler: device.compiler,
    "compared with": device.vendor.name ?? `nothing: ${device.vendor.reason}`,
  };
  const list = element("dl");
  for (const [name, value] of Object.entries(facts)) list.append(element("dt", name), element("dd", String(value)));
  const title = element("h3", `${device.name} `, { children: [element("code", device.id, { className: "quiet" })] });
  return element("article", "", { className: "card", children: [title, list] });
}

async function showDevices() {
  const { body } = await ask("devices");
  $("devices").replaceChildren(...body.devices.map(card), ...body.reasons.map((why) => element("p", why, { className: "bad" })));
  $("tune-device").replaceChildren(...body.devices.map((device) => element("option", device.id)));
}

/** What each kernel computes on which architectures, and by which instructions. */
async function showKernels() {
  const { body } = await ask("kernels");
  $("kernels").replaceChildren(...body.kernels.flatMap(({ name, covers }) => covers.map((one, index) => row([
    [index ? "" : name], [one.dtype], [one.precision], [one.instructions], [one.architectures.join(" ") || one.platform, "config"],
  ]))));
}

async function showBests() {
  const { body } = await ask("bests");
  if (body.bests.length) $("bests").replaceChildren(...body.bests.map(bestRow));
}

/** What was asked for and not tuned, with a button for each that fills the form. */
async function showMisses() {
  const { body } = await ask("misses?limit=8");
  $("misses").replaceChildren(...body.misses.map(missed));
  $("missed").hidden = !body.misses.length;
}

function missed(miss) {
  const fill = element("button", `${sizes(miss.problem)}, asked ${miss.count} ${miss.count > 1 ? "times" : "time"}`);
  fill.type = "button";
  fill.onclick = () => {
    const fields = $("tune-form").elements;
    for (const name of ["m", "n", "k", "batch", "dtype", "precision"]) fields[name].value = miss.problem[name];
    for (const name of ["trans_a", "trans_b"]) fields[name].checked = miss.problem[name];
    fields.m.focus();
  };
  return element("li", "", { children: [fill] });
}

function sizes({ m, n, k, batch, dtype, precision, trans_a: a, trans_b: b }) {
  const turned = a || b ? ` ${a ? "t" : "n"}${b ? "t" : "n"}` : "";
  return `${m}x${n}x${k}${batch > 1 ? ` x ${batch}` : ""} ${dtype}${precision === "strict" ? "" : ` ${precision}`}${turned}`;
}

function bestRow(best) {
  const ms = best.timing?.median_ms;
  return row([
    [sizes(best.problem), "", "Problem"],
    [`${best.kernel}, ${best.instructions}`, "", "Kernel"],
    [config(best.config), "config", "Config"],
    [time(ms), "n", "Median"],
    [rate(best.gflops), "n", "GFLOP/s"],
    [times(best.baselines?.naive?.timing?.median_ms, ms), "n", "Speed-up over naive"],
    [times(best.baselines?.vendor?.timing?.median_ms, ms), "n", "over vendor"],
    [best.provisional ? `${best.match}, so far` : best.match, "", "Answer"],
  ]);
}

let stream = null;

async function tune(event) {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  const order = {
    shapes: [Object.fromEntries(["m", "n", "k", "batch"].map((name) => [name, Number(given[name])]))],
    dtype: given.dtype,
    precision: given.precision,
    trans_a: "trans_a" in given,
    trans_b: "trans_b" in given,
    device: given.device || null,
    budget: { seconds: Number(given.seconds) },
    retune: true,
  };
  showJob("");
  try {
    const headers = { "Content-Type": "application/json" };
    const { body } = await ask("tune", { method: "POST", headers, body: JSON.stringify(order) });
    location.hash = `job=${body.id}`; // which follows it, and again after a reload
  } catch (error) {
    fail(error);
  }
}

function showJob(id) {
  $("job").hidden = false;
  $("trials").replaceChildren();
  $("bar").removeAttribute("value");
  $("said").className = "";
  $("said").textContent = "Asking…";
  $("job-link").textContent = id;
  $("job-link").href = `#job=${id}`;
}

/** Follow the job that the address names, from its first trial on. */
function followAddress() {
  const id = /^#job=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (id) ask(`jobs/${id}`).then(() => follow(id)).catch(fail);
}

function follow(id) {
  stream?.close();
  showJob(id);
  stream = new EventSource(`jobs/${id}/events`);
  const seen = new Map(); // kernel and config -> its latest trial: finalists are measured more than once
  $("cancel").hidden = false;
  $("cancel").onclick = () => ask(`jobs/${id}`, { method: "DELETE" }).catch(fail);
  stream.addEventListener("trial", (message) => {
    const trial = JSON.parse(message.data);
    seen.set(`${trial.kernel} ${config(trial.config)}`, trial);
    const rows = [...seen.values()].sort((one, other) => (one.median_ms ?? Infinity) - (other.median_ms ?? Infinity));
    $("trials").replaceChildren(...rows.map(trialRow));
  });
  stream.addEventListener("progress", (message) => {
    const { done, total, search_best_ms: best, phase, eta_seconds: left } = JSON.parse(message.data);
    if (total) [$("bar").max, $("bar").value] = [total, done];
    const now = phase === "finals" ? "the fastest once more, after " : "";
    const rest = left == null ? "" : `, about ${Math.ceil(left)} s left`;
    $("said").textContent = total
      ? `${now}${done} of at most ${total} trials, so far ~${time(best)}${rest}` : "Waiting for the device…";
  });
  stream.addEventListener("end", (message) => {
    const { state } = JSON.parse(message.data);
    $("bar").value = $("bar").max;
    $("said").textContent = `The job ${state === "cancelled" ? "was stopped" : state}.`;
    $("cancel").hidden = true;
    stream.close();
    showBests().catch(fail);
    showMisses().catch(fail);
  });
  stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) $("cancel").hidden = true; };
}

function trialRow(trial, index) {
  const cells = [[trial.kernel], [config(trial.config), "config"]];
  if (trial.median_ms == null) return row([...cells, [`${trial.stage}: ${trial.reason}`, "why"], [""]]);
  return row([...cells, [time(trial.median_ms), "n"], [rate(trial.gflops), "n"]], index ? "" : "first");
}

function fail(error) {
  $("job").hidden = false;
  $("bar").value = 0;
  $("said").className = "bad";
  $("said").textContent = error.message;
}

const matrix = (text) => text.trim().split(/\n+/).map((line) => line.trim().split(/[\s,;]+/).map((word) =>
  ["NaN", "Infinity", "-Infinity"].includes(word) ? word : Number(word)));

async function multiply(event) {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  const made = $("made");
  try {
    const a = matrix(given.a);
    const b = matrix(given.b);
    const odd = [...a, ...b].flat().some((value) => typeof value === "number" && !Number.isFinite(value));
    if (odd) throw new Error("something in A or B is no number");
    const headers = { "Content-Type": "application/json" };
    const { body, headers: told } = await ask("matmul", { method: "POST", headers, body: JSON.stringify({ a, b }) });
    $("product").textContent = body.c.map((line) => line.join(" ")).join("\n");
    made.className = "quiet";
    made.textContent = `By ${body.kernel} (${config(body.config)}), ${body.instructions}, ${body.match}, on ${told.get("X-Device")}. ${told.get("Server-Timing")}`;
  } catch (error) {
    made.className = "bad";
    made.textContent = error.message;
  }
}

function showAll() {
  showDevices().catch(fail);
  showBests().catch(() => {});
  showKernels().catch(() => {});
  showMisses().catch(() => {});
  followAddress();
}

$("tune-form").addEventListener("submit", tune);
$("try-form").addEventListener("submit", multiply);
addEventListener("hashchange", followAddress);
watchReadiness();
showAll();
