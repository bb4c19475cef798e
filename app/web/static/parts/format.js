// How figures and problems are written, and what follows from a problem's sizes.

import { keep, kept } from "./address.js";

const BYTES = { float32: 4, float64: 8, float16: 2, bfloat16: 2 };

export const config = (values) => Object.entries(values ?? {}).map(([name, value]) => `${name}=${value}`).join(" ") || "–";

const TIMES = [["s", 1000], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]];
const RATES = [["TFLOP/s", 1000], ["GFLOP/s", 1], ["MFLOP/s", 1e-3]];
// The units of all times and rates by the name that the address has of them; without one each figure has its own.
const UNITS = { us: ["µs", "GFLOP/s"], ms: ["ms", "TFLOP/s"] };
const STORED = "tilewise-units";

/** The name of the units: the address's, else those that were chosen here, else none. */
export function units() {
  const name = kept("units") ?? localStorage.getItem(STORED) ?? "";
  return name in UNITS ? name : "";
}

export function chooseUnits(name) {
  localStorage.setItem(STORED, name);
  keep({ units: name });
}

function scaled(value, all) {
  const only = UNITS[units()] ?? [];
  const some = all.filter(([name]) => only.includes(name));
  const [unit, size] = some[0] ?? all.find(([, least]) => Math.abs(value) >= least) ?? all.at(-1);
  const digits = value / size;
  return `${digits >= 1000 ? digits.toFixed(0) : digits.toPrecision(3)} ${unit}`;
}

export const time = (ms) => ms == null ? "–" : scaled(ms, TIMES);
export const rate = (gflops) => gflops == null ? "–" : scaled(gflops, RATES);
export const bytes = (count) => scaled(count, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
export const times = (other, ms) => other == null || ms == null ? "–" : `${(other / ms).toFixed(other / ms < 10 ? 2 : 1)}×`;
export const percent = (fraction) => `${(100 * fraction).toFixed(fraction < 0.1 ? 1 : 0)} %`;
export const count = (value) => value.toLocaleString("en");
export const when = (text) => text ? new Date(text).toLocaleString() : "–";

export const shape = ({ m, n, k, batch }) => `${m}x${n}x${k}${batch > 1 ? `x${batch}` : ""}`;
export const layout = ({ trans_a: a, trans_b: b }) => `${a ? "t" : "n"}${b ? "t" : "n"}`;
export function problem(one) {
  const extra = [one.dtype, one.precision === "strict" ? "" : one.precision, layout(one) === "nn" ? "" : layout(one)];
  return [shape(one), ...extra].filter(Boolean).join(" ");
}

export const flops = ({ m, n, k, batch }) => 2 * m * n * k * batch;
export const moved = ({ m, n, k, batch, dtype }) => BYTES[dtype] * batch * (m * k + k * n + m * n);
export const intensity = (one) => flops(one) / moved(one);

/** Operations a second that a device can do of a problem's type: its tensor cores' where they are used for it. */
export function peak({ limits }, { dtype, precision }) {
  const tensor = dtype === "float32" ? (precision === "tf32" ? limits.tensor_tf32 : 0) : limits[`tensor_${dtype}`];
  return tensor || (dtype === "float64" ? limits.peak64 : limits.peak);
}

/** Milliseconds that no kernel can beat: all operations at the peak, or every matrix moved once. */
export const floor = (device, one) =>
  1000 * Math.max(flops(one) / peak(device, one), moved(one) / device.limits.bandwidth);

/** The page of a problem. */
export function shapePage(one, device) {
  const options = new URLSearchParams();
  if (one.precision !== "strict") options.set("precision", one.precision);
  for (const name of ["trans_a", "trans_b"]) if (one[name]) options.set(name, "true");
  if (device) options.set("device", device);
  return `ui/shapes/${shape(one)}/${one.dtype}${options.size ? `?${options}` : ""}`;
}

/** The problem that a page's address names. */
export function problemOf([sizes, dtype = "float32"], options) {
  const [m, n, k, batch = 1] = sizes.split("x").map(Number);
  const is = (name) => options.get(name) === "true";
  return { m, n, k, batch, dtype, precision: options.get("precision") ?? "strict", trans_a: is("trans_a"), trans_b: is("trans_b") };
}

/** A problem's members as GET /trials, /bests and /bests/history filter by. */
export const filters = ({ batch, ...rest }) => ({ ...rest, batch });
