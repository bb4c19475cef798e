// Charts of ECharts: in the page's colours, again when they or the size change, without a style of its own markup.

import { h } from "./elements.js";

const NAMES = ["ink", "quiet", "paper", "card", "line", "green", "gold", "red", "plain"];
const shown = new Set();
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** What the custom properties of the style sheet are here and now: rgb() for each name. */
function colours() {
  const probe = document.body.appendChild(h("span", { hidden: true }));
  const found = Object.fromEntries(NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  return { ...found, dark: getComputedStyle(document.documentElement).colorScheme === "dark" || isDark() };
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** From the fastest to the slowest: ten steps of one ramp, told apart by the colour-blind, white or black upon each. */
const RAMPS = {
  light: ["#0a7c66", "#4bb594", "#b9dcc0", "#f3e3b0", "#e9b25c", "#c9622f", "#7d2418"],
  dark: ["#57e0bf", "#2fa98f", "#1c7169", "#1d4a50", "#4a4655", "#7d4a5d", "#b5525c"],
};
const parsed = (colour) => [1, 3, 5].map((from) => Number.parseInt(colour.slice(from, from + 2), 16));

/** The ramp's colour at `place` from 0 to 1, and what is read best on it. */
export function ramp(place, dark) {
  const steps = RAMPS[dark ? "dark" : "light"];
  const along = Math.min(Math.max(place, 0), 1) * (steps.length - 1);
  const low = Math.min(Math.floor(along), steps.length - 2);
  const [from, to] = [parsed(steps[low]), parsed(steps[low + 1])];
  const mixed = from.map((each, index) => Math.round(each + (to[index] - each) * (along - low)));
  const bright = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2];
  return { fill: `rgb(${mixed.join(",")})`, ink: bright > 130 ? "#101010" : "#ffffff" };
}

export const axis = (c, more = {}) => {
  const { axisLabel = {}, ...rest } = more;
  return {
    axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false }, nameTextStyle: { color: c.quiet },
    splitLine: { lineStyle: { color: c.line } }, axisLabel: { color: c.quiet, ...axisLabel }, ...rest,
  };
};

// Marks of custom series do not take the chart's own: ECharts gives them the browser's sans-serif.
export const FONT = "Inter, system-ui, sans-serif";

const base = (c) => ({
  animation: !still.matches, animationDuration: 250, animationDurationUpdate: 250,
  textStyle: { color: c.quiet, fontFamily: FONT, fontSize: 12 },
  aria: { enabled: true },
  // Drawn on the canvas: what ECharts would write as markup has styles in it, which the page's policy forbids.
  tooltip: { renderMode: "richText", backgroundColor: c.card, borderColor: c.line, textStyle: { color: c.ink }, confine: true },
});

/**
 * A chart in a card: `option` makes ECharts' option of the colours, `clicked` is told of a click on a mark, and the
 * figures are a table below for whoever reads no picture.
 */
export class Chart {
  constructor({ option, clicked, size = "", label, figures }) {
    this.holder = h("div", { class: `chart ${size}`, role: "img", "aria-label": label });
    this.table = figures ? h("details", { ontoggle: () => this.#list() }, h("summary", {}, "The same in figures")) : null;
    this.element = h("div", {}, this.holder, this.table);
    Object.assign(this, { option, clicked, label, figures, drawn: null });
    shown.add(this);
    this.#begin();
  }

  async #begin() {
    const { init } = await import("../vendor/echarts.js");
    await new Promise((resolve) => { requestAnimationFrame(resolve); });
    if (!this.holder.isConnected) return;
    this.drawn = init(this.holder, null, { renderer: "canvas" });
    if (this.clicked) this.drawn.on("click", (event) => this.clicked(event));
    this.onDrawn?.(this.drawn);
    new ResizeObserver(() => this.drawn.resize()).observe(this.holder);
    this.draw();
  }

  draw() {
    if (!this.drawn) return;
    const c = colours();
    const { tooltip = {}, ...rest } = this.option(c);
    const start = base(c);
    this.drawn.setOption({ ...start, ...rest, tooltip: { ...start.tooltip, ...tooltip } }, { replaceMerge: ["series", ...(rest.parallelAxis ? ["parallelAxis"] : [])] });
    this.onOption?.(this.drawn);
    this.holder.setAttribute("aria-label", this.label);
    if (this.table?.open) this.#list();
  }

  #list() {
    if (!this.table.open) return;
    this.table.querySelector("table, div")?.remove();
    this.table.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${this.label}, in figures` }, this.figures()));
  }
}

const redraw = () => shown.forEach((chart) => chart.holder.isConnected ? chart.draw() : shown.delete(chart));
addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
still.addEventListener("change", redraw);
