// A kernel's source as a config compiles: conditionals decided, and values in place of the names of its macros.

import { keep, kept } from "./address.js";
import { covered } from "./assembly.js";
import { card, choice, h } from "./elements.js";
import { config } from "./format.js";
import { ask, query } from "./service.js";
import { coloured } from "./source.js";

const SIZES = { m: 1024, n: 1024, k: 1024 };

/** The lines that stay, each after the number that it has as it is written, which leads there where it is the page's. */
function listed({ entry, lines }, isShown) {
  const number = (line) => isShown ? h("a", { href: `#L${line}`, "aria-label": `line ${line} as written` }, String(line)) : h("i", {}, String(line));
  return h("pre", { class: "source", tabindex: 0, role: "region", "aria-label": `${entry}, as it compiles` },
    h("code", {}, lines.map((line) => h("span", { class: "row" }, number(line.number), coloured(line.text), "\n"))));
}

/** A card that lies below the source until it is opened; architecture, type and config are in the address. */
export function preprocessedCard(kernel) {
  const types = covered(kernel);
  if (!types.size) return [];
  const all = [...types.keys()];
  const state = { arch: [kept("compiled"), "sm_90"].find((each) => types.has(each)) ?? all[0], values: kept("values") ?? "" };
  state.as = types.get(state.arch).includes(kept("as")) ? kept("as") : types.get(state.arch)[0];
  const [said, body, typePick] = [h("p", { role: "status", id: "compiled-said" }), h("div", { id: "compiled-body" }), h("span")];
  const show = async () => {
    keep({ compiled: state.arch, as: state.as, values: state.values });
    const [wanted, [dtype, precision]] = [{ ...state }, state.as.split(" ")];
    const asked = query({ ...SIZES, dtype, precision, arch: state.arch, config: state.values });
    const found = await ask(`kernels/${kernel.name}/preprocessed?${asked}`).catch((error) => error);
    if (Object.entries(wanted).some(([name, value]) => state[name] !== value)) return; // another was chosen meanwhile
    const { programs = [] } = found;
    said.textContent = programs.length ? `${kernel.name} ${config(found.config)} for ${state.arch}, ${state.as}.` : found.message;
    body.replaceChildren(...programs.flatMap((one) => [
      h("p", { class: "quiet" }, `${one.entry}: ${Object.entries(one.macros).map(([name, value]) => `-D${name}=${value}`).join(" ")}`), listed(one, one.entry === programs.at(-1).entry && programs.length === 1)]));
  };
  const change = (member) => (value) => { state[member] = value; show(); };
  const offer = () => typePick.replaceChildren(choice("type", types.get(state.arch), state.as, change("as")));
  const archPick = choice("architecture", all, state.arch, (value) => {
    state.arch = value;
    if (!types.get(value).includes(state.as)) [state.as] = types.get(value);
    offer();
    show();
  });
  offer();
  const values = h("label", { class: "inline" }, "config ",
    h("input", { type: "text", value: state.values, placeholder: "untuned", spellcheck: "false", onchange: ({ target }) => change("values")(target.value.trim()) }));
  const toggled = () => { if (details.open) show(); else keep({ compiled: null, as: null, values: null }); };
  const details = h("details", { open: kept("compiled") != null, ontoggle: toggled }, h("summary", {}, "Show the lines that stay"), h("div", { class: "picks" }, archPick, typePick, values), said, body);
  return card("As a config compiles", { span: 12, id: "compiled", text: "Conditionals are decided and values stand for the names of the config's macros; those that the source defines stay. Nothing is compiled. For 1024x1024x1024." }, details);
}
