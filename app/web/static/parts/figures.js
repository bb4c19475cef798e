// The charts of trials and of bests: what each shows as ECharts' option, and the same as a table.

import { Chart, FONT, axis, ramp } from "./chart.js";
import { h, table } from "./elements.js";
import { config, floor, intensity, peak, percent, problem, rate, time } from "./format.js";
import { bestSoFar, landscape, measured, valuesOf, whatMatters } from "./statistics.js";

const four = (value) => Number(value.toPrecision(4));
const RIVALS = new Set(["vendor"]);
/** In a chart's figures: what a click on a mark does, for the keyboard. */
const opener = (text, opened) => h("button", { type: "button", class: "link", onclick: opened }, text);

/** Bars of what computed one problem, the fastest on top: `rungs` are { name, kernel, ms, gflops, ci, best }. */
export function ladder(rungs, clicked) {
  const order = [...rungs].sort((one, other) => one.gflops - other.gflops);
  const bar = (c, rung) => ({
    value: four(rung.gflops), name: rung.name, rung,
    itemStyle: { color: rung.best ? c.green : RIVALS.has(rung.kernel) ? c.gold : c.plain, borderRadius: [0, 5, 5, 0] },
  });
  return new Chart({
    label: "The ladder: GFLOP/s of each kernel", clicked: (event) => clicked(event.data.rung),
    option: (c) => ({
      grid: { left: 8, right: 160, top: 6, bottom: 24, containLabel: true },
      xAxis: axis(c, { type: "value", min: 0, splitNumber: 4, axisLabel: { hideOverlap: true } }),
      yAxis: axis(c, { type: "category", data: order.map((rung) => rung.name), axisLabel: { color: c.ink, width: 150, overflow: "truncate" }, splitLine: { show: false } }),
      tooltip: { formatter: ({ data: { rung } }) => `${rung.name}\n${time(rung.ms)}${rung.ci ? `, 95 % ${time(rung.ci[0])} to ${time(rung.ci[1])}` : ""}\n${rate(rung.gflops)}\n${config(rung.config)}` },
      series: [{
        type: "bar", barMaxWidth: 20, data: order.map((rung) => bar(c, rung)),
      }, whiskers(c, order)],
    }),
    figures: () => table(["What", "Config", "Time#", "Rate#"], order.toReversed().map((rung) => [RIVALS.has(rung.kernel) ? rung.name : opener(rung.name, () => clicked(rung)), config(rung.config), time(rung.ms), rate(rung.gflops)])),
  });
}

/** The 95 % interval of each bar, drawn across its end as far as the axis goes, and what the bar says beyond both. */
export function whiskers(c, order) {
  const across = (api, { coordSys: { x: left, width } }, row, low, high) => {
    const [[from, y], [end], [bar]] = [Math.min(low, high), Math.max(low, high), order[row].gflops].map((value) => api.coord([value, row]));
    const to = Math.min(end, left + width);
    const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: c.ink, opacity: 0.7, lineWidth: 1 } });
    const told = `${rate(order[row].gflops)}  ${time(order[row].ms)}`;
    return { type: "group", children: [
      line(from, y, to, y), line(from, y - 4, from, y + 4), ...(end > to ? [] : [line(to, y - 4, to, y + 4)]),
      { type: "text", style: { text: told, x: Math.max(to, bar) + 6, y, fill: c.ink, verticalAlign: "middle", fontSize: 12, fontFamily: FONT } },
    ] };
  };
  const ends = order.map((rung, row) => [row, ...(rung.ci ?? [rung.ms, rung.ms]).map((ms) => rung.gflops * rung.ms / ms)]);
  return {
    type: "custom", silent: true, data: ends, encode: { x: [1, 2], y: 0 },
    renderItem: (place, api) => across(api, place, api.value(0), api.value(1), api.value(2)),
  };
}

/** The roof of a device, and each best under it: hollow is naive, filled is tuned, a line joins the two. */
export function roofline(device, bests, { mark, clicked }) {
  const naive = (best) => best.baselines?.naive?.gflops ?? null;
  const points = bests.filter((best) => best.gflops != null);
  const like = mark ?? points[0]?.problem ?? { dtype: "float32", precision: "strict" };
  const [top, bandwidth] = [peak(device, like) / 1e9, device.limits.bandwidth / 1e9];
  const ridge = top / bandwidth;
  const places = points.map((best) => intensity(best.problem));
  const [left, right] = [Math.min(0.2, ...places) / 2, Math.max(ridge * 8, ...places) * 2];
  const lowest = Math.min(bandwidth * left, ...points.flatMap((best) => [best.gflops, naive(best) ?? best.gflops])) / 2;
  const same = (best) => mark && problem(best.problem) === problem(mark);
  return new Chart({
    label: "Roofline: GFLOP/s by operations a byte", clicked: (event) => event.data?.best && clicked(event.data.best),
    option: (c) => ({
      grid: { left: 8, right: 16, top: 16, bottom: 24, containLabel: true },
      xAxis: axis(c, { type: "log", min: left, max: right, name: "flops a byte", nameLocation: "middle", nameGap: 26, axisLabel: { formatter: (value) => String(Number(value.toPrecision(2))) } }),
      yAxis: axis(c, { type: "log", min: lowest, max: top * 2, axisLabel: { formatter: (value) => rate(value).replace("FLOP/s", "") } }),
      tooltip: { formatter: ({ data: { best } = {} }) => best ? `${problem(best.problem)}\n${best.kernel} ${time(best.timing?.median_ms)}, ${rate(best.gflops)}\n${percent(floor(device, best.problem) / best.timing.median_ms)} of the floor` : "" },
      series: [
        { type: "line", name: "roof", data: [[left, left * bandwidth], [ridge, top], [right, top]], symbol: "none", silent: true, lineStyle: { color: c.gold, width: 2 },
          endLabel: { show: true, formatter: rate(top), color: c.gold, align: "right", offset: [-4, -10] } },
        { type: "custom", name: "gain", silent: true, data: points.filter(naive).map((best) => [intensity(best.problem), naive(best), best.gflops]),
          renderItem: (_, api) => {
            const [from, to] = [api.coord([api.value(0), api.value(1)]), api.coord([api.value(0), api.value(2)])];
            return { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] }, style: { stroke: c.green, opacity: 0.4, lineWidth: 1.3 } };
          } },
        { type: "scatter", name: "naive", symbolSize: 7, itemStyle: { color: "transparent", borderColor: c.quiet, borderWidth: 1.2 }, data: points.filter(naive).map((best) => ({ value: [intensity(best.problem), naive(best)], best })) },
        { type: "scatter", name: "tuned", data: points.map((best) => ({ value: [intensity(best.problem), best.gflops], best, symbolSize: same(best) ? 15 : 9, itemStyle: { color: c.green, borderColor: same(best) ? c.ink : c.card, borderWidth: same(best) ? 2 : 1 } })) },
      ],
    }),
    figures: () => table(["Problem", "Flops a byte#", "Naive#", "Tuned#"], points.map((best) => [opener(problem(best.problem), () => clicked(best)), intensity(best.problem).toPrecision(3), rate(naive(best)), rate(best.gflops)])),
  });
}

/**
 * The landscape of two parameters, coloured from the fastest to three times its time and beyond. `forbidden` gives the
 * cells in which the space allows no config, each with its rule: hatched.
 */
export function landscapeChart(picked, clicked, forbidden = () => []) {
  const seen = () => {
    const { trials, x, y, aggregate, all = trials } = picked();
    const [xs, ys] = [valuesOf(all, x), valuesOf(all, y)];
    const cells = landscape(trials, x, y, aggregate);
    return { x, y, xs, ys, cells, best: Math.min(...cells.map((cell) => cell.ms ?? Infinity)) };
  };
  const barred = ({ xs, ys, cells }) => {
    const tried = new Set(cells.map((cell) => `${cell.x} ${cell.y}`));
    return forbidden().filter((cell) => xs.includes(cell.x) && ys.includes(cell.y) && !tried.has(`${cell.x} ${cell.y}`));
  };
  const datum = (c, { xs, ys, best }, cell) => {
    const { fill, ink } = ramp(cell.ms == null ? 1 : Math.log(cell.ms / best) / Math.log(3), c.dark);
    const none = cell.ms == null;
    const winner = cell.ms === best;
    return {
      value: [xs.indexOf(cell.x), ys.indexOf(cell.y), none ? "-" : cell.ms], cell,
      itemStyle: { color: none ? "transparent" : fill, borderColor: winner ? c.ink : none ? c.red : c.card, borderType: none ? "dotted" : "solid", borderWidth: winner ? 3 : 2, borderRadius: 4 },
      label: { show: true, color: none ? c.red : ink, formatter: none ? "none" : time(cell.ms) },
    };
  };
  const told = ({ x, y }, cell) => `${x} ${cell.x} · ${y} ${cell.y}\n${cell.ms == null ? "all rejected" : time(cell.ms)}, ${cell.count} measured, ${cell.rejected} rejected${cell.best ? `\n${config(cell.best.config)}` : ""}`;
  return new Chart({
    label: "Landscape: time by two parameters", size: "high", clicked: (event) => clicked(event.data.cell),
    option: (c) => {
      const now = seen();
      return {
        grid: { left: 30, right: 12, top: 10, bottom: 24, containLabel: true },
        xAxis: axis(c, { type: "category", data: now.xs.map(String), name: now.x, nameLocation: "middle", nameGap: 26, splitLine: { show: false } }),
        yAxis: axis(c, { type: "category", data: now.ys.map(String), name: now.y, nameLocation: "middle", nameGap: 36, splitLine: { show: false } }),
        tooltip: { formatter: ({ data: { cell } }) => cell.reason ? `${now.x} ${cell.x} · ${now.y} ${cell.y}\nnot allowed: ${cell.reason}` : told(now, cell) },
        visualMap: undefined,
        series: [
          { type: "custom", name: "landscape", data: now.cells.map((cell) => datum(c, now, cell)), encode: { x: 0, y: 1 }, renderItem: (_, api) => tile(api, now, datum, c) },
          { type: "custom", name: "not allowed", data: barred(now).map((cell) => ({ value: [now.xs.indexOf(cell.x), now.ys.indexOf(cell.y)], cell })), encode: { x: 0, y: 1 }, renderItem: (_, api) => hatched(api, c) },
        ],
      };
    },
    figures: () => {
      const now = seen();
      return table([now.x, now.y, "Time#", "Measured#", "Rejected#"], now.cells.map((cell) => [String(cell.x), String(cell.y), cell.best ? opener(time(cell.ms), () => clicked(cell)) : time(cell.ms), String(cell.count), String(cell.rejected)]));
    },
  });
}

/** One cell, with its time where there is room for it. */
function tile(api, now, datum, c) {
  const [width, height] = api.size([1, 1]);
  const [x, y] = api.coord([api.value(0), api.value(1)]);
  const cell = now.cells.find((each) => now.xs.indexOf(each.x) === api.value(0) && now.ys.indexOf(each.y) === api.value(1));
  const { itemStyle: style, label } = datum(c, now, cell);
  const text = width > 44 && height > 16 ? label.formatter : "";
  return {
    type: "rect", shape: { x: x - width / 2 + 1, y: y - height / 2 + 1, width: width - 2, height: height - 2, r: 4 },
    style: { fill: style.color, stroke: style.borderColor, lineWidth: style.borderWidth, lineDash: style.borderType === "dotted" ? [2, 3] : null },
    textContent: { style: { text, fill: label.color, fontSize: 12, fontFamily: FONT } }, textConfig: { position: "inside" },
  };
}

/** A cell that no config may have. */
function hatched(api, c) {
  const [width, height] = api.size([1, 1]).map((side) => side - 2);
  const [middle, centre] = api.coord([api.value(0), api.value(1)]);
  const [x, y] = [middle - width / 2, centre - height / 2];
  const lines = [];
  for (let along = 8 - height; along < width; along += 8) {
    const [from, to] = [Math.max(along, 0), Math.min(along + height, width)];
    lines.push({ type: "line", shape: { x1: x + from, y1: y + from - along, x2: x + to, y2: y + to - along }, style: { stroke: c.line, lineWidth: 1 } });
  }
  return { type: "group", children: [{ type: "rect", shape: { x, y, width, height, r: 4 }, style: { fill: "transparent", stroke: c.line } }, ...lines] };
}

/** Each trial's time in the order of trying, or over the seconds since the first, and the fastest so far. */
export function convergence(trials, { size = "low", clicked = () => {}, by = () => "trials" } = {}) {
  return new Chart({
    label: "The search: time of each trial and the fastest so far", size, clicked: (event) => event.data?.trial && clicked(event.data.trial),
    option: (c) => {
      const all = trials();
      const so = bestSoFar(all);
      const slow = Math.max(...measured(all).map((trial) => trial.ms), 1e-9);
      const kernels = [...new Set(all.map((trial) => trial.kernel))];
      const overTime = by() === "seconds";
      const began = overTime && all.length ? Date.parse(all[0].created_at) : 0;
      const along = (trial, place) => overTime ? (Date.parse(trial.created_at) - began) / 1000 : place + 1;
      const tints = [c.green, c.gold, c.quiet, c.red, c.ink, c.plain];
      const dots = kernels.map((kernel, index) => ({
        type: "scatter", name: kernel, symbolSize: all.length > 2000 ? 3 : 5, itemStyle: { color: tints[index % tints.length], opacity: 0.7 }, large: all.length > 2000, progressive: 4000,
        data: all.flatMap((trial, place) => trial.kernel === kernel && trial.ms != null ? [all.length > 2000 ? [along(trial, place), trial.ms] : { value: [along(trial, place), trial.ms], trial }] : []),
      }));
      return {
        grid: { left: 8, right: 12, top: 34, bottom: 4, containLabel: true },
        legend: { type: "plain", top: 0, textStyle: { color: c.quiet }, itemWidth: 10, itemHeight: 8, data: kernels },
        xAxis: axis(c, { type: "value", min: 0, splitLine: { show: false }, axisLabel: overTime ? { formatter: "{value} s" } : {} }),
        yAxis: axis(c, { type: "log", axisLabel: { formatter: (value) => time(value) }, min: ({ min }) => min / 1.3, max: slow * 1.3 }),
        tooltip: { formatter: ({ data, value, seriesName }) => `${seriesName}, ${time((data.value ?? value)[1])}${data.trial ? `\n${config(data.trial.config)}` : ""}` },
        series: [...dots,
          { type: "line", name: "best so far", step: "end", symbol: "none", sampling: "lttb", lineStyle: { color: c.green, width: 2 }, data: so.flatMap((ms, place) => ms == null ? [] : [[along(all[place], place), ms]]) },
          { type: "scatter", name: "rejected", symbol: "rect", symbolSize: [2, 9], itemStyle: { color: c.red }, data: all.flatMap((trial, place) => trial.ms == null ? [[along(trial, place), slow]] : []) },
        ],
      };
    },
  });
}

/** The device's clock and power at each trial, as its sensors said; a mark where it lowered its clocks by itself, and one where rounds were disturbed. */
export function conditions(trials) {
  const sensed = () => trials().flatMap(({ conditions: said, retaken }, place) => said ? [{ place: place + 1, retaken, ...said }] : []);
  return new Chart({
    label: "Clock and power of the device at each trial", size: "low",
    option: (c) => {
      const all = sensed();
      const line = (name, member, yAxisIndex, color) => ({ type: "line", name, yAxisIndex, symbol: "none", lineStyle: { color, width: 2 }, itemStyle: { color }, data: all.filter((one) => one[member] != null).map((one) => [one.place, one[member]]) });
      const again = all.filter(({ retaken, sm_mhz: mhz }) => retaken && mhz != null);
      const slowed = all.filter(({ throttled, sm_mhz: mhz }) => throttled?.length && mhz != null);
      return {
        grid: { left: 8, right: 8, top: 34, bottom: 4, containLabel: true },
        legend: { type: "plain", top: 0, textStyle: { color: c.quiet }, itemWidth: 10, itemHeight: 8, data: ["clock", "power", "throttled", "taken again"] },
        xAxis: axis(c, { type: "value", min: 0, splitLine: { show: false } }),
        yAxis: [axis(c, { type: "value", scale: true, axisLabel: { formatter: "{value} MHz" } }), axis(c, { type: "value", scale: true, axisLabel: { formatter: "{value} W" }, splitLine: { show: false } })],
        tooltip: { formatter: ({ value, seriesName, data }) => `trial ${value[0]}: ${seriesName} ${data.why ?? value[1]}` },
        series: [line("clock", "sm_mhz", 0, c.green), line("power", "watts", 1, c.gold),
          { type: "scatter", name: "throttled", symbol: "rect", symbolSize: [3, 11], itemStyle: { color: c.red }, data: slowed.map((one) => ({ value: [one.place, one.sm_mhz], why: one.throttled.join(", ") })) },
          { type: "scatter", name: "taken again", symbol: "triangle", symbolSize: 9, itemStyle: { color: c.ink }, data: again.map((one) => ({ value: [one.place, one.sm_mhz], why: `${one.retaken} rounds were disturbed` })) }],
      };
    },
    figures: () => table(["Trial", "Clock#", "Power#", "Temperature#", "Throttled", "Taken again#"], sensed().slice(-100).map((one) => [String(one.place), one.sm_mhz == null ? "–" : `${one.sm_mhz} MHz`, one.watts == null ? "–" : `${one.watts} W`, one.celsius == null ? "–" : `${one.celsius} °C`, one.throttled?.join(", ") || "no", String(one.retaken ?? 0)])),
  });
}

/**
 * Bars of the share of the variance of log time that each parameter explains alone; and once `lost` gives it, by
 * parameter, what a forest loses where the parameter's values are shuffled.
 */
export function matters(trials, lost = () => ({})) {
  const order = () => whatMatters(trials()).slice(0, 8).reverse();
  const inPercent = (share) => Number((100 * share).toFixed(1));
  const bars = (c, name, color, data) => ({ type: "bar", name, barMaxWidth: 12, itemStyle: { color, borderRadius: [0, 4, 4, 0] }, data, label: { show: true, position: "right", color: c.quiet, formatter: "{c} %" } });
  return new Chart({
    label: "What matters: share of the variance explained", size: "low",
    option: (c) => {
      const [own, forest] = [order(), lost()];
      const shuffled = own.map(({ name }) => forest[name] == null ? "-" : inPercent(forest[name]));
      return {
        grid: { left: 8, right: 60, top: 24, bottom: 2, containLabel: true },
        legend: { type: "plain", top: 0, textStyle: { color: c.quiet }, itemWidth: 10, itemHeight: 8 },
        xAxis: axis(c, { type: "value", show: false, min: 0 }),
        yAxis: axis(c, { type: "category", data: own.map(({ name }) => name), axisLabel: { color: c.ink }, splitLine: { show: false } }),
        series: [bars(c, "alone", c.green, own.map(({ share }) => inPercent(share))),
          ...(Object.keys(forest).length ? [bars(c, "lost by shuffling", c.gold, shuffled)] : [])],
      };
    },
    figures: () => {
      const forest = lost();
      return table(["Parameter", "Alone#", "Lost by shuffling#"], order().toReversed().map(({ name, share }) => [name, percent(share), forest[name] == null ? "–" : percent(forest[name])]));
    },
  });
}

const RESOURCES = { threads: "threads a block", registers: "registers a thread", shared_bytes: "KiB shared a block" };

/** Occupancy over one resource that a block takes, as the model has it: a step line, the config's own value marked. */
export function occupancyCurve({ resource, own, points }) {
  const shown = (value) => resource === "shared_bytes" ? value / 1024 : value;
  const inPercent = ({ fraction }) => four(100 * fraction);
  const told = ({ value, occupancy: one }) => `${shown(value)} ${RESOURCES[resource]}: ${one.blocks_per_sm} blocks an SM, ${inPercent(one)} %\nlimited by ${one.limited_by}`;
  const at = points.find(({ value }) => value === own);
  return new Chart({
    label: `Occupancy over ${RESOURCES[resource]}${at ? `: ${inPercent(at.occupancy)} % at ${shown(own)}` : ""}`, size: "low",
    option: (c) => ({
      grid: { left: 8, right: 16, top: 12, bottom: 24, containLabel: true },
      xAxis: axis(c, { type: "value", min: 0, max: shown(points.at(-1).value), name: RESOURCES[resource], nameLocation: "middle", nameGap: 26, axisLabel: { hideOverlap: true }, splitLine: { show: false } }),
      yAxis: axis(c, { type: "value", min: 0, max: 100, interval: 25, axisLabel: { formatter: "{value} %" } }),
      tooltip: { trigger: "item", formatter: ({ data }) => told(data.point) },
      series: [
        { type: "line", name: "occupancy", step: "start", symbol: "circle", symbolSize: 4, showAllSymbol: true, itemStyle: { color: c.green }, lineStyle: { color: c.green, width: 2 },
          data: points.map((point) => ({ value: [shown(point.value), inPercent(point.occupancy)], point })) },
        { type: "scatter", name: "this config", symbolSize: 12, itemStyle: { color: c.gold, borderColor: c.ink, borderWidth: 1 }, z: 5, data: at ? [{ value: [shown(own), inPercent(at.occupancy)], point: at }] : [] },
      ],
    }),
    figures: () => table([`${RESOURCES[resource]}#`, "Blocks an SM#", "Occupancy#", "Limited by"], points.map(({ value, occupancy: one }) => [String(shown(value)) + (value === own ? " (this config)" : ""), String(one.blocks_per_sm), `${inPercent(one)} %`, one.limited_by])),
  });
}

/** Times of the same problems on two devices: below the diagonal the second is faster. */
export function againstEach(pairs, across, down, clicked) {
  const times = pairs.flatMap(({ one, other }) => [one.timing.median_ms, other.timing.median_ms]);
  const [low, high] = [Math.min(...times) / 1.5, Math.max(...times) * 1.5];
  return new Chart({
    label: `Time on ${across} against time on ${down}`, clicked: (event) => event.data?.pair && clicked(event.data.pair),
    option: (c) => {
      const times = (name, more) => axis(c, { type: "log", min: low, max: high, name, nameLocation: "middle", axisLabel: { formatter: (value) => time(value), hideOverlap: true }, ...more });
      return {
        grid: { left: 30, right: 16, top: 16, bottom: 24, containLabel: true },
        xAxis: times(across, { nameGap: 26 }), yAxis: times(down, { nameGap: 60 }),
        tooltip: { formatter: ({ data: { pair } = {} }) => pair ? `${pair.key}\n${across} ${time(pair.one.timing.median_ms)}\n${down} ${time(pair.other.timing.median_ms)}` : "" },
        series: [
          { type: "line", name: "alike", silent: true, symbol: "none", lineStyle: { color: c.gold, width: 1, type: "dashed" }, data: [[low, low], [high, high]] },
          { type: "scatter", name: "problems", symbolSize: 9, itemStyle: { color: c.green }, data: pairs.map((pair) => ({ value: [pair.one.timing.median_ms, pair.other.timing.median_ms], pair })) },
        ],
      };
    },
  });
}

const LINES = 1000;

/** The axes of the fastest trials: each parameter's values, and as times what is some times the fastest's. */
export function axesOf(trials, names) {
  const times = measured(trials).map(({ ms }) => ms).sort((one, other) => one - other).slice(0, LINES);
  const steps = times.length ? [1, 1.1, 1.25, 1.5, 2, 3, 5, 10].map((each) => each * times[0]).filter((each) => each < times.at(-1)) : [];
  return [...names.map((name) => [name, valuesOf(trials, name)]), ["time", times.length ? [...steps, times.at(-1)] : []]];
}

/** A line for each of the fastest trials over all parameters; what is drawn along an axis is `brush`'s, and it draws what it was told. */
export function parallel(picked, brush) {
  const seen = () => {
    const { trials, names } = picked();
    return { names, lines: measured(trials).sort((one, other) => one.ms - other.ms).slice(0, LINES).reverse() };
  };
  const idOf = (name, names) => `${names.join(" ")}: ${name}`; // another kernel's axes are others, in their own order
  let tint = "";
  const made = new Chart({
    label: "Parameters of the fastest trials", size: "",
    option: (c) => {
      const { names, lines } = seen();
      const best = lines.at(-1)?.ms ?? 1;
      tint = c.green;
      const dimension = (name, dim) => ({ id: idOf(name, names), dim, name, type: "category", data: valuesOf(lines, name).map(String) });
      return {
        parallel: { left: 30, right: 60, top: 34, bottom: 20, parallelAxisDefault: { ...axis(c), nameTextStyle: { color: c.ink }, areaSelectStyle: { color: c.green, borderColor: c.green, opacity: 0.25 } } },
        parallelAxis: [...names.map(dimension), { id: idOf("time", names), dim: names.length, name: "time", type: "log", inverse: true, nameLocation: "start", axisLabel: { color: c.quiet, formatter: (value) => time(value) } }],
        series: [{ type: "parallel", name: "trials", progressive: 300, inactiveOpacity: 0.03, lineStyle: { width: 1, opacity: 0.45 },
          data: lines.map((trial) => ({ value: [...names.map((name) => String(trial.config[name])), trial.ms], lineStyle: { color: ramp(Math.log(trial.ms / best) / Math.log(3), c.dark).fill } })) }],
      };
    },
    figures: () => {
      const { names, lines } = seen();
      const kept = lines.toReversed().filter((trial) => brush.keeps(trial)).slice(0, 100);
      return table(["Time#", ...names.map((name) => `${name}#`)], kept.map((trial) => [time(trial.ms), ...names.map((name) => String(trial.config[name]))]));
    },
  });
  let waiting = 0;
  let telling = false; // the brush tells the chart: what the chart then says is no news
  const areas = (drawn) => seen().names.concat("time").map((name, _, [...all]) => [name, drawn.getModel().queryComponents({ mainType: "parallelAxis", id: idOf(name, all.slice(0, -1)) })[0].activeIntervals.map(([low, high]) => [Math.min(low, high), Math.max(low, high)])]);
  /** The least and largest of an axis' values that an area covers: areas are in places of values, and in times. */
  const valuesIn = (name, values, intervals) => name === "time" ? intervals
    : intervals.map(([low, high]) => values.filter((_, place) => low <= place && place <= high)).filter((each) => each.length).map((each) => [each[0], each.at(-1)]);
  const tell = (drawn) => {
    const { lines } = seen();
    brush.set(Object.fromEntries(areas(drawn).map(([name, intervals]) => [name, valuesIn(name, name === "time" ? [] : valuesOf(lines, name), intervals)])));
  };
  /** Areas that were told are drawn in a style of ECharts' own: have them be as those that are drawn by hand. */
  const tinted = (drawn) => {
    for (const axisModel of drawn.getModel().queryComponents({ mainType: "parallelAxis" })) {
      for (const cover of drawn.getViewOfComponentModel(axisModel)?._brushController?._covers ?? []) {
        const area = cover.childAt(0);
        if (area.style.fill !== tint) area.setStyle({ fill: tint, stroke: tint, opacity: 0.25 });
      }
    }
  };
  made.onDrawn = (drawn) => {
    drawn.on("finished", () => tinted(drawn));
    drawn.on("axisareaselected", () => {
      if (telling) return;
      waiting ||= requestAnimationFrame(() => { waiting = 0; tell(drawn); }); // once a frame, however often the pointer moves
    });
  };
  /** Have the chart's areas be the brush's, where they are not those already. */
  made.onOption = (drawn) => {
    const { lines, names } = seen();
    telling = true;
    for (const [name, intervals] of areas(drawn)) {
      const values = name === "time" ? [] : valuesOf(lines, name);
      const wanted = brush.intervals[name] ?? [];
      if (JSON.stringify(valuesIn(name, values, intervals)) === JSON.stringify(wanted)) continue;
      const place = (value, side) => name === "time" ? value * (1 + side * 1e-9) : values.indexOf(value) + 0.3 * side;
      drawn.dispatchAction({ type: "axisAreaSelect", parallelAxisId: idOf(name, names), intervals: wanted.map(([low, high]) => [place(low, -1), place(high, 1)]) });
    }
    telling = false;
  };
  made.sync = () => made.drawn && made.onOption(made.drawn);
  return made;
}
