// Hand-drawn: the kernels as a staircase, and what they cover as a matrix.

import { svg } from "./elements.js";
import { at } from "./service.js";

const STEP = { width: 70, rise: 20, line: 13, letters: 9 }; // seventeen of them fit beside each other at 1280 pixels

/** A name's lines: one too long for a step is broken behind its underscore. */
function lines(name) {
  const place = name.length > STEP.letters ? name.indexOf("_") + 1 : 0;
  return place ? [name.slice(0, place), name.slice(place)] : [name];
}

/** Each kernel a step higher than the one before it. */
export function staircase(kernels) {
  const height = kernels.length * STEP.rise + 50;
  const step = ({ name }, place) => {
    const [x, top] = [place * STEP.width, height - 26 - (place + 1) * STEP.rise];
    return svg("a", { href: at(`ui/kernels/${name}`), "aria-label": `kernel ${name}` },
      svg("rect", { x: x + 1, y: top, width: STEP.width - 2, height: height - top - 4, rx: 4, fill: "var(--chip)", stroke: "var(--line)" }),
      svg("rect", { x: x + 1, y: top, width: STEP.width - 2, height: 4, fill: place % 2 ? "var(--gold)" : "var(--green)" }),
      lines(name).map((line, number, all) => svg("text", { x: x + STEP.width / 2, y: top - 6 - (all.length - 1 - number) * STEP.line, "text-anchor": "middle" }, line)));
  };
  return svg("svg", { viewBox: `0 0 ${kernels.length * STEP.width} ${height}`, width: kernels.length * STEP.width, height, role: "group", "aria-label": "The ladder of kernels" },
    kernels.map(step));
}

const CELL = { left: 150, width: 66, height: 26, top: 26 };

/** Rows of types, columns of architectures: in each cell the instructions that compute it. */
export function coverage(kernels) {
  const covers = kernels.flatMap(({ covers: all }) => all);
  const columns = [...new Set(covers.flatMap((one) => one.architectures))];
  const hosts = [...new Set(covers.filter((one) => !one.architectures.length).map((one) => one.platform))];
  const heads = [...columns.toSorted((one, other) => Number(one.slice(3)) - Number(other.slice(3))), ...hosts];
  const rows = [...new Set(covers.map((one) => `${one.dtype} ${one.precision}`))];
  const found = (row, head) => [...new Set(covers.filter((one) => `${one.dtype} ${one.precision}` === row
    && (one.architectures.includes(head) || (!one.architectures.length && one.platform === head))).map((one) => one.instructions))];
  const width = CELL.left + heads.length * CELL.width;
  const cell = (row, line, head, column) => {
    const ways = found(row, head);
    const [x, y] = [CELL.left + column * CELL.width, CELL.top + line * CELL.height];
    return svg("g", {}, svg("title", {}, `${row} on ${head}: ${ways.join(", ") || "not covered"}`),
      svg("rect", { x: x + 1, y: y + 1, width: CELL.width - 2, height: CELL.height - 2, rx: 4, fill: ways.length ? "var(--chip)" : "none", stroke: "var(--line)" }),
      svg("text", { x: x + CELL.width / 2, y: y + 17, "text-anchor": "middle", class: ways.length ? "" : "dim" }, ways.at(-1)?.slice(0, 10) ?? "–"));
  };
  return svg("svg", { viewBox: `0 0 ${width} ${CELL.top + rows.length * CELL.height}`, width, height: CELL.top + rows.length * CELL.height, role: "img", "aria-label": "What is covered: types by architectures" },
    heads.map((head, column) => svg("text", { x: CELL.left + (column + 0.5) * CELL.width, y: 16, "text-anchor": "middle", class: "dim" }, head)),
    rows.map((row, line) => [svg("text", { x: 0, y: CELL.top + line * CELL.height + 17 }, row), heads.map((head, column) => cell(row, line, head, column))]));
}
