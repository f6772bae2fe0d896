// Plots by uPlot (vendor/uPlot.iife.min.js, which sets window.uPlot). Colours follow the page, light or dark.

import { h } from "./dom.js";

/** The colours of series, in order. They are readable on light and on dark ground. */
export const COLORS = ["#3b7dd8", "#d8663b", "#3f9f6a", "#a45bc4", "#c4a02c", "#2ba5b5", "#d04f7c", "#7a8a2e"];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Distances between ticks of an axis of whole numbers. */
const WHOLE = Array.from({ length: 16 }, (_, n) => [1, 2, 5].map((digit) => digit * 10 ** n)).flat();

function axis(label) {
  const line = { stroke: css("--line"), width: 1 };
  return { stroke: css("--quiet"), grid: line, ticks: line, label, labelSize: label ? 16 : 0, font: "11px system-ui", size: label ? 38 : 30 };
}

function make(element, options, data) {
  const width = Math.max(160, Math.min(options.width || 720, element.clientWidth || options.width || 480));
  const plot = new uPlot({ ...options, width }, data, element);
  element.plot = plot; // a panel that follows a running program gives it new data
  const resized = new ResizeObserver(() => {
    const now = Math.min(options.width || 720, element.clientWidth);
    if (now > 40 && now !== plot.width) plot.setSize({ width: now, height: plot.height });
  });
  resized.observe(element);
  return plot;
}

/**
 * Curves. series: [{label, y, color?, dash?}], all over the same x. shaded: [[from, to, label?], ...] of x, drawn grey,
 * for example the padded part. marker: a value of x that gets a vertical line. Returns the element; uPlot draws it once
 * it is on the page, and `element.plot` is then the plot.
 */
export function lines({ x, series, shaded, marker = null, height = 160, width = 720, xLabel = "", legend = series.length > 1 }) {
  const element = h("div", { class: "plot", style: { width: `${width}px` } });
  const shade = (plot) => {
    const { left, top, width: w, height: tall } = plot.bbox;
    plot.ctx.save();
    plot.ctx.fillStyle = css("--shade");
    for (const [from, to] of shaded || []) {
      const begin = Math.max(left, plot.valToPos(from, "x", true));
      const end = Math.min(left + w, plot.valToPos(to, "x", true));
      if (end > begin) plot.ctx.fillRect(begin, top, end - begin, tall);
    }
    if (marker !== null) {
      plot.ctx.fillStyle = css("--accent");
      plot.ctx.fillRect(plot.valToPos(marker, "x", true) - devicePixelRatio, top, 2 * devicePixelRatio, tall);
    }
    plot.ctx.restore();
  };
  const options = {
    width,
    height,
    cursor: { y: false },
    legend: { show: legend, live: false },
    scales: { x: { time: false } },
    axes: [{ ...axis(xLabel), ...(x.every(Number.isInteger) ? { incrs: WHOLE } : {}) }, { ...axis(""), size: 52 }],
    series: [{}, ...series.map((one, n) => ({
      label: one.label,
      stroke: one.color || COLORS[n % COLORS.length],
      width: 1.5,
      dash: one.dash,
      points: { show: x.length < 60, size: 4 },
    }))],
    hooks: { drawClear: [shade] },
  };
  const data = [x, ...series.map((one) => one.y.map((value) => (typeof value === "number" ? value : null)))];
  requestAnimationFrame(() => (element.plot = make(element, options, data)));
  return element;
}

/** Points (x[n], y[n]), for example where records come from. x grows. */
export function points({ x, y, height = 160, width = 360, color = COLORS[0], xLabel = "", yRange = null }) {
  const element = h("div", { class: "plot", style: { width: `${width}px` } });
  const options = {
    width,
    height,
    cursor: { y: false },
    legend: { show: false },
    scales: { x: { time: false }, y: yRange ? { range: yRange } : {} },
    axes: [axis(xLabel), { ...axis(""), size: 60 }],
    series: [{}, { stroke: color, paths: () => null, points: { show: true, size: 2.5, width: 0, fill: color } }],
  };
  requestAnimationFrame(() => (element.plot = make(element, options, [x, y])));
  return element;
}

const MOST_EMPTY = 9;

/** A histogram without the empty bins at its ends, and with bins joined in pairs until fewer than ten are empty. */
function condense(edges, counts) {
  const first = Math.max(0, counts.findIndex((count) => count > 0));
  const last = counts.length - [...counts].reverse().findIndex((count) => count > 0);
  [edges, counts] = [edges.slice(first, last + 1), counts.slice(first, last)];
  while (counts.filter((count) => count === 0).length > MOST_EMPTY) {
    const ends = counts.length % 2 ? [edges[edges.length - 1]] : [];
    edges = [...edges.filter((_, n) => n % 2 === 0), ...ends];
    counts = counts.filter((_, n) => n % 2 === 0).map((count, n) => count + (counts[2 * n + 1] || 0));
  }
  return [edges, counts];
}

/** A histogram: {edges, counts} as the server computes it. `tick` writes a value of the x axis. */
export function bars({ edges: given, counts: all, height = 110, width = 290, color = COLORS[0], xLabel = "", tick = null }) {
  const [edges, counts] = condense(given, all);
  const element = h("div", { class: "plot", style: { width: `${width}px` } });
  const options = {
    width,
    height,
    cursor: { y: false },
    legend: { show: false },
    scales: { x: { time: false, range: [edges[0], edges[edges.length - 1]] }, y: { range: (_, low, high) => [0, high || 1] } },
    axes: [tick ? { ...axis(xLabel), incrs: WHOLE, values: (_, values) => values.map(tick) } : axis(xLabel), { ...axis(""), size: 48 }],
    series: [{}, { stroke: color, fill: `${color}80`, width: 1, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
  };
  requestAnimationFrame(() => (element.plot = make(element, options, [edges, [...counts, counts[counts.length - 1]]])));
  return element;
}
