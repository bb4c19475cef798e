// The PTX of a kernel beside its source: of any architecture, type and config, compiled by the service.

import { keep, kept } from "./address.js";
import { card, choice, h } from "./elements.js";
import { problemOf } from "./format.js";
import { asked, query } from "./service.js";
import { coloured } from "./source.js";
import { textsOf } from "./zip.js";

const FIRST = { architecture: "sm_90", shape: "1024x1024x1024" };

const listed = (text) => h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": "PTX" },
  h("code", {}, text.split("\n").map((line) => [coloured(line), "\n"])));

/** What a kernel covers by CUDA, as [architecture, the types that it has there]. */
function covered({ covers }) {
  const names = [...new Set(covers.flatMap(({ architectures }) => architectures))].sort((one, other) => Number(one.slice(3)) - Number(other.slice(3)));
  return new Map(names.map((name) => [name, covers.filter(({ architectures }) => architectures.includes(name)).map(({ dtype, precision }) => `${dtype} ${precision}`)]));
}

const chosen = (name, options, first) => [kept(name), first].find((each) => options.includes(each)) ?? options[0];

async function compiled(kernel, { arch, type, size, config }) {
  const [dtype, precision] = type.split(" ");
  const { m, n, k, batch } = problemOf([size], new URLSearchParams());
  const answer = await asked(`take/ptx?${query({ m, n, k, batch, dtype, precision, arch, kernel: kernel.name, config })}`);
  const texts = [...await textsOf(await answer.arrayBuffer())].filter(([name]) => name.endsWith(".ptx"));
  return [answer.headers.get("X-Config"), texts];
}

/** A card that lies below the source until it is opened, and beside it then. */
export function ptxCard(kernel, source) {
  const types = covered(kernel);
  if (!types.size) return null;
  const body = h("div", { id: "ptx-body" });
  const said = h("p", { role: "status", id: "ptx-said" });
  const picks = h("div", { class: "picks" });
  const arch = chosen("arch", [...types.keys()], FIRST.architecture);
  const state = { arch, type: chosen("type", types.get(arch)), size: kept("shape") ?? FIRST.shape, config: kept("config") ?? "" };
  const show = async () => {
    keep({ arch: state.arch, type: state.type, shape: state.size === FIRST.shape ? null : state.size, config: state.config });
    const wanted = { ...state };
    said.textContent = "Compiling…";
    try {
      const [config, texts] = await compiled(kernel, wanted);
      if (Object.entries(wanted).some(([name, value]) => state[name] !== value)) return; // another was chosen meanwhile
      said.textContent = `${kernel.name} ${config} for ${wanted.arch}, ${wanted.size} ${wanted.type}.`;
      body.replaceChildren(...texts.map(([, text]) => listed(text)));
    } catch (error) {
      said.textContent = error.message;
      body.replaceChildren();
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
    for (const one of [source, made]) one.className = `card span${details.open ? 6 : 12}`;
    if (details.open) show();
    else keep({ arch: null, type: null, shape: null, config: null });
  };
  const details = h("details", { open: kept("arch") != null, ontoggle: toggled }, h("summary", {}, "Show it beside the source"), picks, said, body);
  const made = card("PTX", { span: 12, id: "ptx", text: "What the compiler makes of it for an architecture, which need not be here." }, details);
  return made;
}
