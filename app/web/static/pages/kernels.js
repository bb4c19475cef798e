// The ladder of kernels, and each of them: what it covers, its parameters, rules and source.

import { keep, kept } from "../parts/address.js";
import { assemblyCards } from "../parts/assembly.js";
import { card, choice, h, table } from "../parts/elements.js";
import { count } from "../parts/format.js";
import { coverage, staircase } from "../parts/pictures.js";
import { preprocessedCard } from "../parts/preprocessed.js";
import { ask, asked, at } from "../parts/service.js";
import { differenceListing, listing, parametersOf } from "../parts/source.js";

const scrolled = (picture, label) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, picture);
const source = async (name) => (await asked(`kernels/${name}/source`)).text();

const rows = (kernels) => table(["Kernel", "What", "Shapes", "Types", "Configs#"], kernels.map((one) => [
  h("a", { href: at(`ui/kernels/${one.name}`) }, one.name), one.summary, one.shapes, one.dtypes.join(" "), count(one.configs)]));

function list(main, all) {
  document.title = "Kernels · Tilewise";
  const [kernels, lessons] = ["serving", "lesson"].map((role) => all.filter((one) => one.role === role));
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Kernels", h("small", {}, "Each is a step above the one before it: one idea more. A step leads to its source."))),
    h("div", { class: "grid" },
      card("The ladder", { span: 12, id: "staircase" }, scrolled(staircase(kernels), "The ladder")),
      card("What each adds", { span: 12, id: "kernels" }, rows(kernels)),
      card("Lessons", { span: 12, id: "lessons", text: "They are measured beside these, and never serve a product: Learn climbs them." }, rows(lessons)),
      card("What is covered", { span: 12, id: "coverage", text: "By all kernels together: the instructions of the highest rung." }, scrolled(coverage(kernels), "Coverage"))));
}

async function differences(kernels, name, holder) {
  const place = kernels.findIndex((one) => one.name === name);
  const others = kernels.map((one) => one.name).filter((other) => other !== name);
  const before = kernels[Math.max(0, place - 1)].name === name ? others[0] : kernels[place - 1].name;
  const chosen = others.includes(kept("from")) ? kept("from") : before;
  const show = async (other) => {
    keep({ from: other });
    body.replaceChildren(differenceListing(...await Promise.all([source(other), source(name)])));
  };
  const body = h("div");
  holder.replaceChildren(choice("from", others, chosen, show), body);
  await show(chosen);
}

async function one(main, kernels, kernel) {
  document.title = `${kernel.name} · Tilewise`;
  const text = await source(kernel.name);
  const words = parametersOf(text);
  const changed = h("div");
  const toggled = () => { if (details.open) differences(kernels, kernel.name, changed); else keep({ from: null }); };
  const details = h("details", { open: kept("from") != null, ontoggle: toggled }, h("summary", {}, "Show it beside another kernel"), changed);
  const listed = card("Source", { span: 12, id: "source", text: `${kernel.file}, as the compiler sees it: CUDA C++ and OpenCL C alike.` }, listing(text));
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, kernel.name, h("small", {}, kernel.summary))),
    h("div", { class: "grid" },
      card("Parameters", { span: 5, id: "parameters", text: `${count(kernel.configs)} configs in all.` },
        table(["Name", "Is", "Values"], Object.entries(kernel.parameters).map(([name, values]) => [name, words[name] ?? "–", values.join(" ")]))),
      card("Rules", { span: 7, id: "rules", text: "A config that breaks one is never compiled." }, h("ul", {}, kernel.rules.map((rule) => h("li", {}, rule)))),
      card("What it covers", { span: 12, id: "coverage" }, scrolled(coverage([kernel]), "Coverage")),
      card("What changed", { span: 12, id: "changed" }, details),
      listed, assemblyCards(kernel, listed), preprocessedCard(kernel)));
  document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" });
}

export async function show(main, [name]) {
  const { kernels } = await ask("kernels");
  if (!name) return list(main, kernels);
  const kernel = kernels.find((each) => each.name === name);
  if (!kernel) throw new Error(`There is no kernel ${name}; there are ${kernels.map((each) => each.name).join(", ")}.`);
  return one(main, kernels, kernel);
}
