// The challenge of the bank conflicts: how much longer a line of As must be, seen on the 32 banks and checked.

import { card, choice, h, svg } from "../parts/elements.js";
import { count } from "../parts/format.js";
import { at } from "../parts/service.js";

const BANKS = 32;
const WARP = 32;
const COLUMN = 15;
const HEIGHT = 180; // of 32 threads on one bank

/** The word that each thread of the first warp stores: As[tx][ty], whose lines have TILE + PAD elements. */
export const words = (tile, pad) => Array.from({ length: WARP }, (_, me) => (me % tile) * (tile + pad) + Math.floor(me / tile));

/** The threads on each bank. */
export function banks(tile, pad) {
  const found = Array.from({ length: BANKS }, () => []);
  words(tile, pad).forEach((word, me) => found[word % BANKS].push(me));
  return found;
}

/** Turns in which shared memory takes the warp's store. */
export const turns = (tile, pad) => Math.max(...banks(tile, pad).map((threads) => threads.length));

/** The least padding without a conflict. */
const least = (tile) => Array.from({ length: BANKS + 1 }, (_, pad) => pad).find((pad) => turns(tile, pad) === 1);

function picture(tile, pad) {
  const found = banks(tile, pad);
  const high = Math.max(...found.map((threads) => threads.length));
  const line = Math.min(14, HEIGHT / high);
  const [width, height] = [BANKS * COLUMN, high * line + 24];
  const taken = (threads, bank) => threads.map((me, turn) => svg("g", {}, svg("title", {}, `thread ${me} on bank ${bank}, turn ${turn + 1}`),
    svg("rect", { x: bank * COLUMN + 1, y: height - 20 - (turn + 1) * line, width: COLUMN - 2, height: line - 1, rx: 2, fill: turn ? "var(--red)" : "var(--green)" })));
  const label = (bank) => bank % 4 ? null : svg("text", { x: bank * COLUMN + 1, y: height - 6, class: "dim" }, bank);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Threads on each of the 32 banks: ${found.map((threads) => threads.length).join(" ")}` },
    found.map((threads, bank) => [taken(threads, bank), label(bank)]));
}

function verdict(tile, pad) {
  const taken = turns(tile, pad);
  const bytes = 4 * tile * (2 * tile + pad);
  if (taken > 1) return ["bad", `Not yet: the store takes ${taken} turns, as ${taken} threads meet on one bank. Both tiles have ${count(bytes)} B.`];
  if (pad > least(tile)) return ["", `One turn, but less padding would do as well: both tiles have ${count(bytes)} B.`];
  return ["good", `Solved: one turn, with the least padding there is. Both tiles have ${count(bytes)} B.`];
}

export function challenge() {
  const state = { tile: 32 };
  const holder = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The banks" });
  const answer = h("p", { id: "verdict", role: "status" });
  const pad = h("input", { name: "pad", type: "number", min: 0, max: BANKS, value: 0, required: true });
  const draw = () => holder.replaceChildren(picture(state.tile, Number(pad.value)));
  const check = (event) => {
    event.preventDefault();
    draw();
    [answer.className, answer.textContent] = verdict(state.tile, Number(pad.value));
  };
  const again = (value) => { state.tile = Number(value); pad.value = 0; answer.textContent = ""; draw(); };
  draw();
  return card("A challenge: bank conflicts", { span: 12, id: "banks", text: "Shared memory has 32 banks, and serves one word of each in a turn. In As[tx][ty] = A[…] the threads of a warp go down a column of As[TILE][TILE + PAD]. Which PAD lets all 32 store in one turn, with the least memory?" },
    h("form", { id: "banks-form", onsubmit: check }, choice("TILE", ["8", "16", "32"], "32", again), h("label", {}, "PAD", pad), h("button", { type: "submit" }, "Check")), answer, holder,
    h("p", { class: "quiet" }, "Red: a thread that waits for another on its bank. What it gains here is measured by ", h("a", { href: at("ui/learn/4") }, "lesson 4"), "."));
}
