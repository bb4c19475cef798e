// PTX and SASS of a kernel beside its source: of any architecture, type and config, compiled by the service.

import { keep, kept } from "./address.js";
import { card, choice, h } from "./elements.js";
import { config, problemOf } from "./format.js";
import { ask, query } from "./service.js";
import { coloured } from "./source.js";

const FIRST = { architecture: "sm_90", shape: "1024x1024x1024" };
const HUES = 6;

/** What a kernel covers by CUDA, as [architecture, the types that it has there]. */
export function covered({ covers }) {
  const names = [...new Set(covers.flatMap(({ architectures }) => architectures))].filter((name) => /^sm_\d+$/.test(name)).sort((one, other) => Number(one.slice(3)) - Number(other.slice(3)));
  return new Map(names.map((name) => [name, covers.filter(({ architectures }) => architectures.includes(name)).map(({ dtype, precision }) => `${dtype} ${precision}`)]));
}

const chosen = (name, options, first) => [kept(name), first].find((each) => options.includes(each)) ?? options[0];

function compiled(kernel, { arch, type, size, config: values }) {
  const [dtype, precision] = type.split(" ");
  const { m, n, k, batch } = problemOf([size], new URLSearchParams());
  return ask(`kernels/${kernel.name}/assembly?${query({ m, n, k, batch, dtype, precision, arch, config: values })}`);
}

/** A colour for each line of the source that something was compiled from: neighbours differ. */
function huesOf(programs) {
  const lines = programs.flatMap(({ ptx, sass }) => [...ptx, ...sass]).map((each) => each.source_line).filter((line) => line != null);
  return new Map([...new Set(lines)].sort((one, other) => one - other).map((line, place) => [line, `hue${place % HUES}`]));
}

/** Assembly, each run of lines after the number of the source's line that it is of, which leads there. */
function listed(lines, label, hues) {
  const row = ({ text, source_line: line }, before) => h("span", { class: `row ${hues.get(line) ?? ""}`, data: line == null ? null : { line } },
    line != null && line !== before ? h("a", { href: `#L${line}`, "aria-label": `line ${line} of the source` }, String(line)) : h("i"), coloured(text), "\n");
  return h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": label }, h("code", {}, lines.map((each, place) => row(each, lines[place - 1]?.source_line))));
}

/** Under the pointer or the keyboard a line is lit in every listing; the others show their first line of it. */
class Match {
  constructor() {
    Object.assign(this, { listings: [], now: null, seen: "" });
  }

  /** Whether the pointer itself went there: a listing that is scrolled under one that rests is not pointed at. */
  #pointed({ clientX, clientY }) {
    const before = this.seen;
    this.seen = `${clientX} ${clientY}`;
    return before !== this.seen;
  }

  #rows(listing, line) {
    return listing.querySelectorAll(`[data-line="${line}"]`);
  }

  set(listings, hues) {
    for (const [line, hue] of hues) for (const row of this.#rows(listings[0], line)) row.classList.add(hue);
    this.listings = listings;
    this.hues = hues;
    for (const listing of listings) {
      if (listing.matching) continue;
      listing.matching = true;
      listing.addEventListener("mousemove", (event) => this.#pointed(event) && this.#light(event.target));
      listing.addEventListener("mouseleave", (event) => this.#pointed(event) && this.#light(null));
      listing.addEventListener("focusin", ({ target }) => this.#light(target, true));
      listing.addEventListener("click", ({ target }) => this.#light(target, true));
    }
  }

  clear() {
    this.#light(null);
    for (const row of this.listings[0]?.querySelectorAll("[data-line]") ?? []) row.className = "row";
    this.listings = [];
  }

  #light(target, follow = false) {
    const line = target?.closest("[data-line]")?.dataset.line;
    const here = target?.closest("pre");
    if (!this.listings.length || (line === this.now && !follow)) return;
    for (const listing of this.listings) {
      if (this.now != null) for (const row of this.#rows(listing, this.now)) row.classList.remove("lit");
      const rows = line == null || !this.hues.has(Number(line)) ? [] : this.#rows(listing, line);
      for (const row of rows) row.classList.add("lit");
      // Within the listing alone: the page itself stays where it is.
      if (follow && rows.length && listing !== here) listing.scrollTop = rows[0].offsetTop - listing.offsetTop - listing.clientHeight / 3;
    }
    this.now = line;
  }
}

const summaryOf = ({ programs, kernel, config: values, architecture }, { size, type }) =>
  `${kernel} ${config(values)} for ${architecture}, ${size} ${type}: ${programs.map(({ entry, registers }) => `${entry}, ${registers ?? "unknown"} registers a thread`).join("; ")}.`;

/** Cards of PTX and SASS that lie below the source until they are opened, and beside it then. */
export function assemblyCards(kernel, source) {
  const types = covered(kernel);
  if (!types.size) return [];
  const [ptx, sass] = [h("div", { id: "ptx-body" }), h("div", { id: "sass-body" })];
  const said = h("p", { role: "status", id: "ptx-said" });
  const noSass = h("p", { class: "quiet", id: "sass-said" });
  const picks = h("div", { class: "picks" });
  const match = new Match();
  const arch = chosen("arch", [...types.keys()], FIRST.architecture);
  const state = { arch, type: chosen("type", types.get(arch)), size: kept("shape") ?? FIRST.shape, config: kept("config") ?? "" };
  const place = (open, withSass) => {
    sassCard.hidden = !open;
    for (const one of [source, made, sassCard]) one.className = `card span${open ? (withSass ? 4 : 6) : 12}`;
    if (open && !withSass) sassCard.className = "card span12";
  };
  const fill = (programs) => {
    match.clear();
    const hues = huesOf(programs);
    ptx.replaceChildren(...programs.map((one) => listed(one.ptx, `PTX of ${one.entry}`, hues)));
    const disassembled = programs.filter((one) => one.sass.length);
    sass.replaceChildren(...disassembled.map((one) => listed(one.sass, `SASS of ${one.entry}`, hues)));
    noSass.textContent = [...new Set(programs.map(({ reason }) => reason).filter(Boolean))].map((reason) => `There is no SASS: ${reason}.`).join(" ");
    place(details.open, disassembled.length > 0);
    match.set([source.querySelector("pre"), ...ptx.children, ...sass.children], hues);
  };
  const show = async () => {
    keep({ arch: state.arch, type: state.type, shape: state.size === FIRST.shape ? null : state.size, config: state.config });
    const wanted = { ...state };
    said.textContent = "Compiling…";
    try {
      const found = await compiled(kernel, wanted);
      if (Object.entries(wanted).some(([name, value]) => state[name] !== value)) return; // another was chosen meanwhile
      said.textContent = summaryOf(found, wanted);
      fill(found.programs);
    } catch (error) {
      said.textContent = error.message;
      fill([]);
    }
  };
  const change = (member) => (value) => { state[member] = value; show(); };
  const typed = (label, member, placeholder) => h("label", { class: "inline" }, label, " ",
    h("input", { type: "text", value: state[member], placeholder, spellcheck: "false", onchange: ({ target }) => change(member)(target.value.trim() || (member === "size" ? FIRST.shape : "")) }));
  const typePick = h("span");
  const offer = () => typePick.replaceChildren(choice("type", types.get(state.arch), state.type, change("type")));
  const archPick = choice("architecture", [...types.keys()], state.arch, (value) => {
    state.arch = value;
    if (!types.get(value).includes(state.type)) [state.type] = types.get(value);
    offer();
    show();
  });
  offer();
  picks.append(archPick, typePick, typed("shape", "size"), typed("config", "config", "untuned"));
  const toggled = () => {
    if (details.open) { place(true, false); show(); return; }
    match.clear();
    place(false);
    keep({ arch: null, type: null, shape: null, config: null });
  };
  const details = h("details", { open: kept("arch") != null, ontoggle: toggled }, h("summary", {}, "Show it beside the source"), picks, said, ptx);
  const made = card("PTX", { span: 12, id: "ptx", text: "What the compiler makes of it for an architecture, which need not be here. Lines of one colour are of one line of the source: a click, or the keyboard on its number, shows it in the others." }, details);
  const sassCard = card("SASS", { span: 4, id: "sass", text: "What the GPU runs: each instruction after its address." }, noSass, sass);
  sassCard.hidden = true;
  return [made, sassCard];
}
