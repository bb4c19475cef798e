// Two matrices, typed, pasted or dropped, and their product with the time that each step of it took.

import { keep, kept } from "../parts/address.js";
import { ramp } from "../parts/chart.js";
import { card, choice, copyButton, h, svg } from "../parts/elements.js";
import { config, count, shapePage } from "../parts/format.js";
import { identity, matrixOf, npyOf, random, rowsOf, textOf } from "../parts/matrices.js";
import { ask, asked, at, query } from "../parts/service.js";
import { filesOf } from "../parts/zip.js";

const SHOWN = 32; // rows and columns of C in the picture
const LONGEST = 2000; // characters of an operand that its address has
const MOST = 1_000_000; // elements of a C that the page asks for
const tints = ["var(--plain)", "var(--gold)", "var(--red)", "var(--quiet)", "var(--green)", "var(--ink)"];
const FIRST = { a: "1 2\n3 4", b: "5 6\n7 8" };
const OPTIONS = { dtype: ["float32", "float64", "float16", "bfloat16"], precision: ["strict", "tf32", "emulated"] };

async function textOfFile(file, name) {
  if (file.name.endsWith(".npy")) return textOf(rowsOf(await file.arrayBuffer()));
  if (!file.name.endsWith(".npz")) return file.text();
  const arrays = await filesOf(await file.arrayBuffer());
  const own = arrays.get(`${name}.npy`) ?? [...arrays.values()][0];
  if (!own) throw new Error("no array is in it");
  return textOf(rowsOf(own));
}

/**
 * A or B: typed, a file's, made by a rule, or a resident matrix; `said` of it is what the address has: `random:8x4:1`,
 * `identity:4x4`, `resident:weights`, or its rows.
 */
class Operand {
  constructor(name, resident, told, changed) {
    Object.assign(this, { name, resident, told, changed, source: "" });
    this.area = h("textarea", { name, rows: 8, spellcheck: "false", "aria-label": name.toUpperCase(), oninput: () => this.#by("") });
    const number = (label, value, most) => h("input", { type: "number", min: 1, max: most, value, "aria-label": `${label} of ${name.toUpperCase()}`, class: "small" });
    [this.rows, this.columns, this.seed] = [number("rows", 4, 512), number("columns", 4, 512), number("seed", name === "a" ? 1 : 2, 2 ** 31)];
    const file = h("input", { type: "file", accept: ".npy,.npz,.csv,.txt", "aria-label": `file of ${name.toUpperCase()}`, onchange: () => this.#read(file.files[0]) });
    const over = (on) => (event) => { event.preventDefault(); this.holder.classList.toggle("over", on); };
    const drop = (event) => { over(false)(event); if (event.dataTransfer.files.length) this.#read(event.dataTransfer.files[0]); };
    const size = () => `${this.rows.value}x${this.columns.value}`;
    const kept = resident.length ? choice("resident", ["none", ...resident.map((one) => one.name)], "none", (value) => this.set(value === "none" ? FIRST[name] : `resident:${value}`)) : null;
    this.kept = kept?.querySelector("select");
    this.holder = h("div", { class: "drop", id: `drop-${name}`, ondragover: over(true), ondragleave: over(false), ondrop: drop }, this.area,
      h("div", { class: "picks" }, h("label", { class: "inline" }, "rows ", this.rows), h("label", { class: "inline" }, "columns ", this.columns), h("label", { class: "inline" }, "seed ", this.seed),
        h("button", { type: "button", onclick: () => this.set(`random:${size()}:${this.seed.value}`) }, "Random"),
        h("button", { type: "button", onclick: () => this.set(`identity:${size()}`) }, "Identity"), kept, file));
    this.element = card(name.toUpperCase(), { span: 6, text: "Type, paste from a spreadsheet, drop a .npy, .npz or .csv, or have it made." }, this.holder);
  }

  async #read(file) {
    try {
      this.set(await textOfFile(file, this.name));
      this.told(`${file.name} read.${this.said ? "" : " It is too long for the address."}`);
    } catch (error) {
      this.told(`${file.name}: ${error.message}`);
    }
  }

  /** Take what an address says. */
  set(text) {
    const made = /^(random|identity):(\d{1,3})x(\d{1,3})(?::(\d+))?$/.exec(text);
    const resident = /^resident:(.+)$/.exec(text)?.[1];
    const isKept = resident !== undefined && this.kept != null;
    this.area.disabled = isKept;
    if (this.kept) this.kept.value = isKept ? resident : "none";
    if (isKept) {
      const one = this.resident.find((each) => each.name === resident);
      this.area.value = one ? `resident: ${resident}, ${one.shape.join(" x ")} ${one.dtype}` : `resident: ${resident}, which is not here`;
    } else if (made) {
      const [, kind, rows, columns, seed = "1"] = made;
      [this.rows.value, this.columns.value] = [rows, columns];
      if (kind === "random") this.seed.value = seed;
      this.area.value = textOf(kind === "random" ? random(Number(rows), Number(columns), Number(seed)) : identity(Number(rows), Number(columns)));
    } else this.area.value = text.replaceAll(";", "\n").replaceAll(",", " ");
    this.#by(made || isKept ? text : "");
  }

  #by(source) {
    this.source = source;
    this.changed();
  }

  /** What the address has of it; nothing where that is too long. */
  get said() {
    const text = this.source || this.area.value.trim().replace(/\s*\n\s*/g, ";").replace(/[ \t,]+/g, ",");
    return text.length > LONGEST ? "" : text;
  }

  /** The name of the resident matrix that it is, or its rows. */
  get given() {
    const [, name] = /^resident:(.+)$/.exec(this.source) ?? [];
    return name ? { name } : { rows: matrixOf(this.area.value, this.name.toUpperCase()) };
  }

  /** Its sizes; none of a resident matrix that is not here. */
  get shape() {
    const { name, rows } = this.given;
    return name ? this.resident.find((each) => each.name === name)?.shape.slice(-2) ?? [0, 0] : [rows.length, rows[0].length];
  }
}

/** C with each element on a colour from the least to the largest. */
function heat(rows) {
  const numbers = rows.flat().filter((value) => typeof value === "number");
  const [low, high] = [numbers.reduce((one, other) => Math.min(one, other), Infinity), numbers.reduce((one, other) => Math.max(one, other), -Infinity)];
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const cell = (value) => {
    const made = h("td", { class: "n" }, typeof value === "number" ? String(Number(value.toPrecision(5))) : value);
    if (typeof value === "number") {
      const { fill, ink } = ramp(high > low ? (high - value) / (high - low) : 0, dark);
      [made.style.background, made.style.color] = [fill, ink];
    }
    return made;
  };
  const more = rows.length > SHOWN || rows[0].length > SHOWN;
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "C" },
    h("table", { id: "product" }, h("tbody", {}, rows.slice(0, SHOWN).map((row) => h("tr", {}, row.slice(0, SHOWN).map(cell))))),
    more ? h("p", { class: "quiet" }, `The first ${SHOWN} rows and columns of ${rows.length} x ${rows[0].length}.`) : null);
}

/** Server-Timing as one bar: each step as long as its share. */
function timeline(header) {
  const steps = [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]);
  const parts = steps.filter(([name]) => name !== "total");
  const whole = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  let x = 0;
  const bars = parts.map(([name, ms], index) => {
    const width = 100 * ms / whole;
    x += width;
    return svg("rect", { x: x - width, y: 0, width, height: 14, fill: tints[index % tints.length] }, svg("title", {}, `${name} ${ms} ms`));
  });
  return h("div", {}, svg("svg", { viewBox: "0 0 100 14", preserveAspectRatio: "none", width: "100%", height: 18, role: "img", "aria-label": `Steps: ${parts.map(([name, ms]) => `${name} ${ms} ms`).join(", ")}` }, bars),
    h("ul", { class: "chips", id: "timing" }, steps.map(([name, ms]) => h("li", {}, h("em", {}, name), ` ${ms} ms`))));
}

/** The product as the service is asked for it: resident operands in the query, the rest in the body. */
function orderOf(a, b, options) {
  const named = [a, b].filter((one) => one.given.name);
  const dtype = named.length ? null : options.dtype; // a resident matrix has its own
  const flags = { trans_a: options.trans_a || null, trans_b: options.trans_b || null };
  const body = Object.fromEntries([a, b].filter((one) => !one.given.name).map((one) => [one.name, one.given.rows]));
  const names = Object.fromEntries(named.map((one) => [one.name, one.given.name]));
  const asked = query({ ...names, dtype, precision: options.precision === "strict" ? null : options.precision, ...flags, device: options.device });
  return { path: `matmul${asked ? `?${asked}` : ""}`, body, names };
}

const curl = ({ path, body }) => `curl -X POST '${at(path)}'${Object.keys(body).length ? ` -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'` : ""}`;
function python({ body, names }, { dtype, precision, trans_a: a, trans_b: b, device }) {
  const operand = (name) => names[name] ? `client.matrix("${names[name]}")` : `np.array(${JSON.stringify(body[name])}, "${dtype}")`;
  const more = [precision === "strict" ? "" : `, precision="${precision}"`, a ? ", trans_a=True" : "", b ? ", trans_b=True" : "", device ? `, device="${device}"` : ""].join("");
  const needed = `${dtype === "bfloat16" ? "import ml_dtypes\n" : ""}import numpy as np\nfrom tilewise import Client`;
  return `${needed}\n\nwith Client("${at("").replace(/\/$/, "")}") as client:\n    print(client.matmul(${operand("a")}, ${operand("b")}${more}))`;
}

function saved(rows, dtype) {
  const link = h("a", { href: URL.createObjectURL(npyOf(rows, dtype)), download: "c.npy" });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The problem that was computed, whose page has what is known of it. */
function problemOf(a, b, options, dtype) {
  const [m, k] = options.trans_a ? a.shape.toReversed() : a.shape;
  const n = options.trans_b ? b.shape[0] : b.shape[1];
  return { m, n, k, batch: 1, dtype, precision: options.precision, trans_a: options.trans_a, trans_b: options.trans_b };
}

function resultCards(order, made, answer, problem, options) {
  const csv = () => made.c.map((row) => row.join(",")).join("\n");
  const save = h("button", { type: "button", onclick: () => saved(made.c, made.dtype) }, "Save .npy");
  return [
    card("C", { span: 8, aside: h("div", { class: "picks" }, copyButton("Copy", () => textOf(made.c)), copyButton("Copy CSV", csv), save) }, heat(made.c)),
    card("Where the time went", { span: 4 }, timeline(answer.headers.get("Server-Timing") ?? ""),
      h("p", {}, h("a", { href: at(shapePage(problem, answer.headers.get("X-Device"))) }, "What is known of this shape"))),
    card("The same elsewhere", { span: 12, aside: h("div", { class: "picks" }, copyButton("Copy link", () => location.href), copyButton("Copy curl", () => curl(order)), copyButton("Copy Python", () => python(order, options))) },
      h("pre", { tabindex: 0 }, curl(order).slice(0, 400)), h("pre", { tabindex: 0 }, python(order, options).slice(0, 600)))];
}

/** The choices beside the operands, as the address has them. */
function optionFields(devices, changed) {
  const device = devices.map((one) => one.id);
  const state = { dtype: "float32", precision: "strict", trans_a: kept("trans_a") === "true", trans_b: kept("trans_b") === "true", device: device.includes(kept("device")) ? kept("device") : "" };
  for (const [name, values] of Object.entries(OPTIONS)) if (values.includes(kept(name))) state[name] = kept(name);
  const change = (name) => (value) => { state[name] = value; changed(); };
  const check = (name, label) => {
    const box = h("input", { type: "checkbox", checked: state[name], onchange: () => change(name)(box.checked) });
    return h("label", { class: "check" }, box, label);
  };
  const fields = [choice("type", OPTIONS.dtype, state.dtype, change("dtype")), choice("precision", OPTIONS.precision, state.precision, change("precision")),
    check("trans_a", "A is transposed"), check("trans_b", "B is transposed"),
    choice("device", ["any", ...device], state.device || "any", (value) => change("device")(value === "any" ? "" : value))];
  return [state, fields];
}

export async function show(main) {
  document.title = "Multiply · Tilewise";
  const isLinked = kept("a") !== null && kept("b") !== null;
  const [{ matrices }, { devices }] = await Promise.all([ask("matrices?limit=1000"), ask("devices")]);
  const said = h("p", { id: "made", role: "status" });
  const result = h("div", { class: "grid" });
  let ready = false;
  const changed = () => {
    if (!ready) return;
    const { dtype, precision, trans_a: turnedA, trans_b: turnedB, device } = options;
    keep({ a: a.said, b: b.said, dtype: dtype === "float32" ? null : dtype, precision: precision === "strict" ? null : precision,
      trans_a: turnedA ? "true" : null, trans_b: turnedB ? "true" : null, device });
  };
  const told = (text) => { said.textContent = text; };
  const [options, fields] = optionFields(devices, changed);
  const [a, b] = ["a", "b"].map((name) => {
    const made = new Operand(name, matrices, told, changed);
    made.set(kept(name) ?? FIRST[name]);
    return made;
  });
  ready = true;
  const multiply = async (event) => {
    event?.preventDefault();
    [said.className, said.textContent] = ["", "Multiplying…"];
    try {
      const order = orderOf(a, b, options);
      const { m, n } = problemOf(a, b, options, "");
      if (m * n > MOST) throw new Error(`C has ${count(m * n)} elements, which is more than a page shows: take it by curl or Python`);
      changed();
      const sent = Object.keys(order.body).length ? { headers: { "Content-Type": "application/json", Accept: "application/json" }, body: JSON.stringify(order.body) } : { headers: { Accept: "application/json" } };
      const answer = await asked(order.path, { method: "POST", ...sent });
      const made = await answer.json();
      said.textContent = `By ${made.kernel} (${config(made.config)}), ${made.instructions}, ${made.match}, on ${answer.headers.get("X-Device")}.`;
      result.replaceChildren(...resultCards(order, made, answer, problemOf(a, b, options, made.dtype), options));
    } catch (error) {
      [said.className, said.textContent] = ["bad", error.message];
    }
  };
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Multiply", h("small", {}, "C = A × B, by the kernel that was found best. The address has the product: it can be sent."))),
    h("form", { id: "try-form", onsubmit: multiply }, h("div", { class: "grid whole" }, a.element, b.element), h("div", { class: "picks" }, fields), h("button", { type: "submit" }, "Multiply")), said, result);
  if (isLinked) await multiply(); // a link shows the product that it names
}
