// Which configs stay: by values of parameters and by time, chosen along the chart's axes or by the keyboard below it.

import { keep, kept } from "./address.js";
import { h } from "./elements.js";
import { time } from "./format.js";

const TIME = "time";
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** `BK:8-16,time:0.1-0.5` of the address, as intervals by name. */
function asked() {
  const found = {};
  for (const [, name, low, high] of (kept("brush") ?? "").matchAll(/(\w+):([\d.e-]+?)\.\.([\d.e-]+)/g)) (found[name] ??= []).push([Number(low), Number(high)]);
  return found;
}

const written = (intervals) => Object.entries(intervals).flatMap(([name, each]) => each.map(([low, high]) => `${name}:${low}..${high}`)).join(",");

export class Brush {
  /** `axes` gives [name, the values that it has, sorted] of each parameter; `changed` is called with each new choice. */
  constructor(axes, changed) {
    Object.assign(this, { axes, changed, intervals: asked() });
    this.said = h("span", { class: "quiet", role: "status" });
    this.picks = h("div", { class: "picks" });
    this.clear = h("button", { type: "button", onclick: () => this.set({}) }, "Keep all");
    this.element = h("details", { open: Object.keys(this.intervals).length > 0, ontoggle: () => this.show() }, h("summary", {}, "Keep by values"), this.picks, h("div", { class: "picks kept" }, this.clear, this.said));
  }

  /** Whether a config's point stays. */
  keeps(point) {
    return Object.entries(this.intervals).every(([name, intervals]) => {
      const value = name === TIME ? point.ms : point.config[name];
      return value != null && intervals.some(([low, high]) => low <= value && value <= high);
    });
  }

  get isOn() {
    return Object.keys(this.intervals).length > 0;
  }

  set(intervals) {
    const on = Object.fromEntries(Object.entries(intervals).filter(([, each]) => each.length));
    if (same(on, this.intervals)) return;
    this.intervals = on;
    keep({ brush: written(on) });
    this.show();
    this.changed();
  }

  tell(text) {
    this.said.textContent = text;
  }

  #only(name, interval) {
    this.set({ ...this.intervals, [name]: interval ? [interval] : [] });
  }

  /** The ends of one axis: the least and the largest of its values that stay. */
  #ends(name, values) {
    const { [name]: intervals = [] } = this.intervals;
    const [low, high] = [intervals[0]?.[0], intervals.at(-1)?.[1]];
    const within = values.filter((value) => !intervals.length || (low <= value && value <= high));
    const [first, last] = [within[0] ?? values[0], within.at(-1) ?? values.at(-1)];
    const chosen = ({ target }) => {
      const fields = [...target.closest("fieldset").querySelectorAll("select")];
      let [from, to] = fields.map((each) => Number(each.value));
      if (from > to) [from, to] = target === fields[0] ? [from, from] : [to, to];
      this.#only(name, from === values[0] && to === values.at(-1) ? null : [from, to]);
    };
    const end = (label, value) => h("select", { "aria-label": `${name} ${label}`, onchange: chosen },
      values.map((each) => h("option", { selected: each === value, value: each }, name === TIME ? time(each) : String(each))));
    return h("fieldset", { class: "ends", data: { name } }, h("legend", {}, name), end("from", first), " to ", end("to", last));
  }

  /** The fields as they are now; the one in use stays in the document, and the keyboard with it. */
  show() {
    if (!this.element.open) return; // and as long as it is closed nothing is made anew with each move of a pointer
    const names = this.axes();
    const fields = new Map([...this.picks.children].map((field) => [field.dataset.name, field]));
    const focused = document.activeElement?.getAttribute("aria-label");
    for (const [name, values] of names) {
      const made = this.#ends(name, values);
      const old = fields.get(name);
      if (old?.contains(document.activeElement)) {
        [...old.querySelectorAll("select")].forEach((select, index) => { select.value = made.querySelectorAll("select")[index].value; });
      } else if (old) old.replaceWith(made);
      else this.picks.append(made);
      fields.delete(name);
    }
    for (const gone of fields.values()) gone.remove();
    if (focused && !document.activeElement?.matches("select")) this.picks.querySelector(`[aria-label="${focused}"]`)?.focus();
  }
}
