// Two matrices, typed, pasted or dropped, and their product with the time that each step of it took.

import { ramp } from "../parts/chart.js";
import { card, choice, copyButton, h, svg } from "../parts/elements.js";
import { config } from "../parts/format.js";
import { identity, matrixOf, random, rowsOf, textOf } from "../parts/matrices.js";
import { asked, at } from "../parts/service.js";

const SHOWN = 32; // rows and columns of C in the picture
const SIZES = ["2", "4", "8", "16", "64"];
const tints = ["var(--plain)", "var(--gold)", "var(--red)", "var(--quiet)", "var(--green)", "var(--ink)"];

async function read(file, area, said) {
  try {
    area.value = file.name.endsWith(".npy") ? textOf(rowsOf(await file.arrayBuffer())) : await file.text();
    said.textContent = `${file.name} read.`;
  } catch (error) {
    said.textContent = `${file.name}: ${error.message}`;
  }
}

function operand(name, text, said) {
  const area = h("textarea", { name, rows: 8, spellcheck: "false", "aria-label": name.toUpperCase() }, text);
  const file = h("input", { type: "file", accept: ".npy,.csv,.txt", "aria-label": `file of ${name.toUpperCase()}`, onchange: () => read(file.files[0], area, said) });
  let size = "4";
  const fill = (made) => () => { area.value = textOf(made(Number(size))); };
  const over = (on) => (event) => { event.preventDefault(); holder.classList.toggle("over", on); };
  const drop = (event) => { over(false)(event); if (event.dataTransfer.files.length) read(event.dataTransfer.files[0], area, said); };
  const holder = h("div", { class: "drop", id: `drop-${name}`, ondragover: over(true), ondragleave: over(false), ondrop: drop }, area,
    h("div", { class: "picks" }, choice("size", SIZES, size, (value) => { size = value; }),
      h("button", { type: "button", onclick: fill(random) }, "Random"), h("button", { type: "button", onclick: fill(identity) }, "Identity"), file));
  return card(name.toUpperCase(), { span: 6, text: "Type, paste from a spreadsheet, or drop a .npy or .csv." }, holder);
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

const curl = (body) => `curl '${at("matmul")}' -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'`;
const python = ({ a, b }) => `from tilewise import Client\n\nwith Client("${at("").replace(/\/$/, "")}") as client:\n    print(client.matmul(${JSON.stringify(a)}, ${JSON.stringify(b)}))`;

export async function show(main) {
  document.title = "Multiply · Tilewise";
  const said = h("p", { id: "made", role: "status" });
  const result = h("div", { class: "grid" });
  const multiply = async (event) => {
    event.preventDefault();
    said.className = "";
    try {
      const given = new FormData(event.target);
      const body = { a: matrixOf(given.get("a"), "A"), b: matrixOf(given.get("b"), "B") };
      const answer = await asked("matmul", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      const made = await answer.json();
      said.textContent = `By ${made.kernel} (${config(made.config)}), ${made.instructions}, ${made.match}, on ${answer.headers.get("X-Device")}.`;
      const csv = () => made.c.map((row) => row.join(",")).join("\n");
      result.replaceChildren(card("C", { span: 8, aside: h("div", { class: "picks" }, copyButton("Copy", () => textOf(made.c)), copyButton("Copy CSV", csv)) }, heat(made.c)),
        card("Where the time went", { span: 4 }, timeline(answer.headers.get("Server-Timing") ?? "")),
        card("The same elsewhere", { span: 12, aside: copyButton("Copy curl", () => curl(body)) }, h("pre", { tabindex: 0 }, curl(body).slice(0, 400)), h("pre", { tabindex: 0 }, python(body).slice(0, 600))));
    } catch (error) {
      [said.className, said.textContent] = ["bad", error.message];
    }
  };
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Multiply", h("small", {}, "C = A × B, by the kernel that was found best."))),
    h("form", { id: "try-form", onsubmit: multiply }, h("div", { class: "grid whole" }, operand("a", "1 2\n3 4", said), operand("b", "5 6\n7 8", said)), h("button", { type: "submit" }, "Multiply")), said, result);
}
