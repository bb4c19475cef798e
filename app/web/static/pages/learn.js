// What the articles teach, on this device: the trace, the ladder of lessons, a calculator, a challenge, a decision.

import { calculator } from "../learn/calculator.js";
import { challenge } from "../learn/banks.js";
import { Ladder } from "../learn/rungs.js";
import { Trace, tiledSource } from "../learn/trace.js";
import { card, h, table } from "../parts/elements.js";
import { bytes, percent } from "../parts/format.js";

const SIZES = { m: 512, n: 512, k: 512 };
const TILED = 3;

/** The articles' decision tree, answered for the device. */
function decision({ advice, tiles, device }) {
  const fits = ({ fits: yes }) => yes ? "yes" : "no";
  return card("Which tile?", { span: 12, id: "tree", text: `The articles' decision tree, answered for ${device}.` }, h("p", { id: "advice" }, advice),
    table(["Tile", "Shared memory#", "Fits", "Occupancy#", "Advised"], tiles.map((one) => [
      `${one.tile} × ${one.tile}`, bytes(one.shared_bytes), fits(one), one.occupancy == null ? "not said" : percent(one.occupancy), one.advised ? "yes" : "no"])));
}

const given = (options) => Object.fromEntries(Object.entries(SIZES).map(([name, value]) => [name, Number(options.get(name)) || value]));

function sizeForm(sizes) {
  return h("form", { id: "sizes", class: "actions" }, Object.entries(sizes).map(([name, value]) =>
    h("label", {}, name, h("input", { name, type: "number", min: 1, max: 16384, value, required: true }))), h("button", { type: "submit" }, "Climb"));
}

export async function show(main, [rung], options) {
  document.title = "Learn · Tilewise";
  const [sizes, device] = [given(options), options.get("device")];
  const ladder = new Ladder({ sizes, device, chosen: Math.min(Math.max(Number(rung) || TILED, 1), 14) });
  const trace = new Trace();
  const [found] = await Promise.all([ladder.load(), trace.begin()]);
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Learn", h("small", {}, "Why tiles make a product fast: every thread of a block needs the same rows and columns, so the block reads them once.")), sizeForm(sizes)),
    h("div", { class: "grid" },
      card("A product by tiles, step by step", { span: 7, id: "trace", text: "One block makes one tile of C. In each step it loads a tile of A and one of B into shared memory (green), and each thread adds products to its sum (gold: what one thread reads). Click an element of C, or move by the arrows, to follow its thread." }, trace.element),
      card("The lines that do it", { span: 5, id: "lines", text: "Lesson 3: green loads the tiles, gold adds to the sum." }, tiledSource(found.lessons[TILED - 1].source)),
      ladder.cards(), calculator(found.device), h("div", { class: "span5 stack" }, challenge(), decision(found))));
  if (rung) document.getElementById("rung").scrollIntoView({ block: "start" });
}
