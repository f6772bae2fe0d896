// Plots by uPlot (vendor/uPlot.iife.min.js, which sets window.uPlot). Colours follow the page, light or dark.

import { h } from "./dom.js";

/** The colours of series, in order. They are readable on light and on dark ground. */
export const COLORS = ["#3b7dd8", "#d8663b", "#3f9f6a", "#a45bc4", "#c4a02c", "#2ba5b5", "#d04f7c", "#7a8a2e"];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axis(label) {
  const line = { stroke: css("--line"), width: 1 };
  return { stroke: css("--quiet"), grid: line, ticks: line, label, labelSize: label ? 16 : 0, font: "11px system-ui", size: label ? 38 : 30 };
}

function make(element, options, data) {
  const width = Math.max(160, Math.min(options.width || 720, element.clientWidth || options.width || 480));
  const plot = new uPlot({ ...options, width }, data, element);
  const resized = new ResizeObserver(() => {
    const now = Math.min(options.width || 720, element.clientWidth);
    if (now > 40 && now !== plot.width) plot.setSize({ width: now, height: plot.height });
  });
  resized.observe(element);
  return plot;
}

/**
 * Curves. series: [{label, y, color?, dash?}], all over the same x. shaded: [[from, to, label?], ...] of x, drawn grey,
 * for example the padded part. Returns the element; uPlot draws it once it is on the page.
 */
export function lines({ x, series, shaded, height = 160, width = 720, xLabel = "", legend = series.length > 1 }) {
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
    plot.ctx.restore();
  };
  const options = {
    width,
    height,
    cursor: { y: false },
    legend: { show: legend, live: false },
    scales: { x: { time: false } },
    axes: [axis(xLabel), { ...axis(""), size: 52 }],
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
  requestAnimationFrame(() => make(element, options, data));
  return element;
}

/** A histogram: {edges, counts} as the server computes it. */
export function bars({ edges, counts, height = 110, width = 290, color = COLORS[0], xLabel = "" }) {
  const element = h("div", { class: "plot", style: { width: `${width}px` } });
  const options = {
    width,
    height,
    cursor: { y: false },
    legend: { show: false },
    scales: { x: { time: false, range: [edges[0], edges[edges.length - 1]] }, y: { range: (_, low, high) => [0, high || 1] } },
    axes: [axis(xLabel), { ...axis(""), size: 48 }],
    series: [{}, { stroke: color, fill: `${color}80`, width: 1, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
  };
  requestAnimationFrame(() => make(element, options, [edges, [...counts, counts[counts.length - 1]]]));
  return element;
}
