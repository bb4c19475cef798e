// The devices, what they can do and are doing, and the same shapes on two of them.

import { isDark, ramp } from "../parts/chart.js";
import { card, h, table } from "../parts/elements.js";
import { bytes, count, percent, problem, rate, shapePage, time } from "../parts/format.js";
import { againstEach, roofline } from "../parts/figures.js";
import { ask, at, everything } from "../parts/service.js";

const AGAIN_MS = 2000;
let waiting = 0;

function facts({ platform, architecture, memory_bytes: memory, limits, compiler, driver, vendor, quarantined }) {
  const tensor = ["float16", "bfloat16", "tf32", "float64"].filter((name) => limits[`tensor_${name}`]);
  return {
    platform: `${platform}, ${architecture}`, driver, compiler, memory: bytes(memory),
    peak: `${rate(limits.peak / 1e9)} in float32, ${rate(limits.peak64 / 1e9)} in float64`,
    "tensor cores": tensor.map((name) => `${rate(limits[`tensor_${name}`] / 1e9)} in ${name}`).join(", ") || "none",
    bandwidth: `${bytes(limits.bandwidth)}/s`, "ridge of its roofline": `${(limits.peak / limits.bandwidth).toFixed(1)} flops a byte`,
    [platform === "cuda" ? "SMs" : "cores"]: count(limits.sms), "threads a block": count(limits.threads), "shared memory a block": bytes(limits.shared_bytes),
    "compared with": vendor.name ?? `nothing: ${vendor.reason}`, quarantined: quarantined.length ? String(quarantined.length) : "nothing",
  };
}

const CLOCK = [["GHz", 1000], ["MHz", 1]];
const clock = (mhz) => { const [unit, size] = CLOCK.find(([, least]) => mhz >= least) ?? CLOCK[1]; return `${(mhz / size).toPrecision(3)} ${unit}`; };

/** A figure, with a bar where it is a share of something; one that is absent says why. */
function gauge(name, { value, reason }, told, share) {
  const bar = value != null && share ? h("meter", { min: 0, max: 1, value: share(value), "aria-label": name }) : null;
  return [h("dt", {}, name), value == null ? h("dd", { class: "quiet" }, `not known: ${reason}`) : h("dd", {}, told(value), bar)];
}

/** What a device does now, and what waits for it. */
const gauges = (one, shared) => [
  gauge("busy", one.busy, percent, (share) => share), gauge("clock", one.sm_mhz, clock), gauge("memory's clock", one.memory_mhz, clock),
  gauge("memory in use", one.memory_used_bytes, (used) => `${bytes(used)} of ${bytes(one.memory_bytes)}`, (used) => used / one.memory_bytes),
  gauge("power", one.watts, (watts) => `${watts.toFixed(0)} W`), gauge("temperature", one.celsius, (celsius) => `${celsius.toFixed(0)} °C`),
  gauge("slowed down", { value: 1 }, () => one.throttled.join(", ") || "no"),
  gauge("waiting", { value: one.waiting }, (waiting) => `${count(waiting)} for it; ${count(shared.waiting)} of ${count(shared.queue)} products in all`, () => shared.waiting / shared.queue),
  gauge("slab", { value: shared.slab_lent_bytes }, (lent) => `${bytes(lent)} of ${bytes(shared.slab_bytes)}`, (lent) => lent / shared.slab_bytes),
];

const deviceCard = (device, live) => card(`${device.name} · ${device.id}`, { span: 5 }, live,
  h("dl", {}, Object.entries(facts(device)).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));

/** The same problems on each device, in the time that each takes and against the fastest. */
function compared(devices, bests) {
  const rows = new Map();
  for (const best of bests.filter((one) => one.timing)) {
    const key = problem(best.problem);
    rows.set(key, { ...rows.get(key), [best.device]: best });
  }
  const both = [...rows].filter(([, each]) => Object.keys(each).length > 1);
  const cell = (each, { id }) => {
    if (!each[id]) return "–";
    const fastest = Math.min(...Object.values(each).map((one) => one.timing.median_ms));
    const ratio = each[id].timing.median_ms / fastest;
    const made = h("a", { class: "heat", href: at(shapePage(each[id].problem, id)) }, `${time(each[id].timing.median_ms)}, ${ratio.toFixed(2)}×`);
    const { fill, ink } = ramp(Math.log(ratio) / Math.log(10), isDark());
    [made.style.background, made.style.color] = [fill, ink];
    return made;
  };
  const [one, other] = devices;
  const pairs = both.flatMap(([key, each]) => each[one.id] && each[other.id] ? [{ key, one: each[one.id], other: each[other.id] }] : []);
  const chart = pairs.length ? againstEach(pairs, one.id, other.id, ({ one: best }) => location.assign(at(shapePage(best.problem, one.id)))).element : null;
  return card("Compared", { span: 12, id: "compared", text: "Shapes that were tuned on more than one device: the time, and how many times the fastest's, green to red at ten times." }, chart,
    table(["Problem", ...devices.map(({ id }) => `${id}#`)], both.map(([key, each]) => [key, ...devices.map((device) => cell(each, device))]), { empty: "None yet." }));
}

export async function show(main) {
  document.title = "Devices · Tilewise";
  const { devices, reasons } = await ask("devices");
  const bests = devices.length ? await everything("bests", "bests") : [];
  const live = new Map(devices.map((device) => [device.id, h("dl", { class: "gauges", "aria-label": `What ${device.id} does now` })]));
  const mine = (device) => bests.filter((best) => best.device === device.id && best.problem.dtype === "float32" && best.gflops != null);
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Devices", h("small", {}, `${count(devices.length)} opened.`))),
    h("div", { class: "grid", id: "devices" },
      devices.map((device) => [deviceCard(device, live.get(device.id)),
        card("Its roof", { span: 7, text: "What of float32 was tuned here, under what the device can do." }, roofline(device, mine(device), { clicked: (best) => location.assign(at(shapePage(best.problem, device.id))) }).element)]),
      devices.length > 1 ? compared(devices, bests) : [],
      reasons.length ? card("Not opened", { span: 12, id: "reasons" }, h("ul", { class: "quiet" }, reasons.map((why) => h("li", {}, why)))) : []));
  const draw = async () => {
    clearTimeout(waiting);
    const { devices: all, ...shared } = await ask("devices/gauges");
    for (const one of all) live.get(one.device)?.replaceChildren(...gauges(one, shared).flat());
    waiting = setTimeout(() => draw().catch(() => {}), AGAIN_MS);
  };
  if (devices.length) await draw();
}
