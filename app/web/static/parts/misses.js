// What was asked for and not tuned: each a link to the page that tunes it, with all that the problem is.

import { card, h } from "./elements.js";
import { problem, shapePage } from "./format.js";
import { at } from "./service.js";

const label = (miss) => `${problem(miss.problem)}, asked ${miss.count} ${miss.count > 1 ? "times" : "time"}`;

export function missList(misses, span = 12) {
  if (!misses.length) return [];
  return card("Asked for, not tuned", { span, id: "missed", text: "These were answered by another shape's config or by the default." },
    h("ul", { class: "chips", id: "misses" }, misses.map((miss) => h("li", {}, h("a", { href: at(shapePage(miss.problem, miss.device)) }, label(miss))))));
}
