// Folding of a source: runs of comments, bodies at the left margin, and conditionals, each behind its first line.

import { keep, kept } from "./address.js";
import { h } from "./elements.js";

/** What can be folded: { start, first, last }, lines from 0, of which `first` to `last` vanish behind `start`. */
export function regions(lines) {
  const found = [];
  const conditionals = [];
  let body = null;
  let comment = null;
  const add = (start, first, last) => { if (last >= first) found.push({ start, first, last }); };
  lines.forEach((line, at) => {
    const isComment = line.startsWith("//");
    if (isComment) comment ??= at;
    else if (comment != null) { add(comment, comment + 1, at - 1); comment = null; }
    if (/^\s*#\s*if/.test(line)) conditionals.push(at);
    else if (/^\s*#\s*endif/.test(line) && conditionals.length) { const from = conditionals.pop(); add(from, from + 1, at - 1); }
    else if (body == null && /^[^\s#/].*\{\s*$|^\{/.test(line)) body = at;
    else if (body != null && line.startsWith("}")) { add(body, body + 1, at - 1); body = null; }
  });
  return found.sort((one, other) => one.start - other.start);
}

/** Folds of a listing's rows; which are closed is in the address, and a link to a line opens what hides it. */
export class Folding {
  constructor(rows, lines) {
    const wanted = new Set((kept("fold") ?? "").split(",").filter(Boolean).map((each) => Number(each) - 1));
    Object.assign(this, { rows, regions: regions(lines), closed: new Set() });
    this.regions.filter(({ start }) => wanted.has(start)).forEach((region) => this.closed.add(region));
    this.buttons = new Map(this.regions.map((region) => [region, this.#button(region)]));
    for (const [{ start }, button] of this.buttons) rows[start].querySelector(".fold").append(button);
    const all = (label, closed) => h("button", { type: "button", class: "link", onclick: () => this.#set(closed ? this.regions : []) }, label);
    this.element = h("p", { class: "picks" }, all("Fold all", true), all("Unfold all", false));
    addEventListener("hashchange", () => rows[0].isConnected && this.#reveal());
    this.#reveal();
    this.#show();
  }

  #button(region) {
    const { start, first, last } = region;
    const toggle = () => {
      if (!this.closed.delete(region)) this.closed.add(region);
      this.#tell();
    };
    return h("button", { type: "button", onclick: toggle, "aria-label": `lines ${first + 1} to ${last + 1}, behind line ${start + 1}` });
  }

  #set(closed) {
    this.closed = new Set(closed);
    this.#tell();
  }

  #tell() {
    keep({ fold: this.regions.filter((region) => this.closed.has(region)).map(({ start }) => start + 1).join(",") });
    this.#show();
  }

  /** Open what hides the line that the address leads to. */
  #reveal() {
    const [, number] = /^#L(\d+)$/.exec(location.hash) ?? [];
    const hiding = [...this.closed].filter(({ first, last }) => number && first < number && number <= last + 1);
    if (!hiding.length) return;
    hiding.forEach((region) => this.closed.delete(region));
    this.#tell();
    this.rows[number - 1].scrollIntoView({ block: "center" });
  }

  #show() {
    const hidden = new Set([...this.closed].flatMap(({ first, last }) => Array.from({ length: last - first + 1 }, (_, step) => first + step)));
    this.rows.forEach((row, at) => { row.hidden = hidden.has(at); });
    for (const [region, button] of this.buttons) button.setAttribute("aria-expanded", String(!this.closed.has(region)));
  }
}
