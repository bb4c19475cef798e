// What was asked for and not tuned: each a link to the page that tunes it, with all that the problem is, and a way to dismiss it.

import { card, h } from "./elements.js";
import { problem, shapePage } from "./format.js";
import { ask, at, query } from "./service.js";

const label = (miss) => `${problem(miss.problem)}, asked ${miss.count} ${miss.count > 1 ? "times" : "time"}`;

/** A chip; once it is dismissed the keyboard goes to the chip after it, else to the one before. */
function chip(miss, told) {
  const dismiss = async () => {
    told.textContent = "";
    try {
      await ask(`misses?${query({ ...miss.problem, device: miss.device })}`, { method: "DELETE" });
    } catch (error) {
      if (error.status !== 404) { // gone: tuned, or dismissed elsewhere
        told.textContent = error.message;
        return;
      }
    }
    const near = (made.nextElementSibling ?? made.previousElementSibling)?.querySelector("button");
    made.remove();
    told.textContent = `${problem(miss.problem)} is dismissed until it is asked for again.`;
    near?.focus();
  };
  const made = h("li", {}, h("a", { href: at(shapePage(miss.problem, miss.device)) }, label(miss)),
    miss.device && h("button", { type: "button", class: "dismiss", "aria-label": `Dismiss ${problem(miss.problem)}`, onclick: dismiss }, "×"));
  return made;
}

/** Most frequent first, each of a device of its model; what no open device was asked is not dismissed here. */
export function missList(misses, devices, span = 12) {
  const ofModel = new Map(devices.toReversed().map(({ id, model }) => [model, id]));
  if (!misses.length) return [];
  const told = h("p", { class: "quiet", role: "status" });
  return card("Asked for, not tuned", { span, id: "missed", text: "These were answered by another shape's config or by the default." },
    h("ul", { class: "chips", id: "misses" }, misses.map((miss) => chip({ ...miss, device: ofModel.get(miss.device_model) }, told))), told);
}
