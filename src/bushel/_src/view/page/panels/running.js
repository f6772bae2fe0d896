// A training program while it runs: what it is bound by, throughput, where the time goes, workers, memory, skipped elements.

import { count, failure, h, notice, short } from "../dom.js";
import { lines } from "../plots.js";

export const title = "Running";
export const applies = (info) => info.panels.running.applies;

const EVERY_MS = 1000;
const percent = (share) => `${Math.round(100 * share)} %`;

function size(bytes) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export async function render(element, api, info) {
  const live = info.panels.running.live;
  const left = new AbortController();
  const trouble = h("div", { class: "trouble" });
  const verdict = h("p", { class: "verdict", role: "status" });
  const about = h("p", { class: "quiet about" });
  const tiles = h("div", { class: "tiles" });
  const plots = [
    follow("Elements per second", [["elements/s", (s) => s.elements_per_s]]),
    follow("The step waits for data, percent of its time", [["waiting", (s) => s.waiting.map((share) => 100 * share)]]),
    follow("Workers", [["workers", (s) => s.workers], ["busy", (s) => s.busy_workers]]),
    follow("Blocks that are ready", [["ready", (s) => s.ready]]),
    follow("Memory, MB", [
      ["consumer", (s) => s.own_bytes.map((bytes) => bytes / 1e6)],
      ["workers", (s) => s.worker_bytes.map((bytes) => bytes / 1e6)],
    ]),
  ];
  const stages = h("div", { class: "stages" });
  const pools = h("div", { class: "pools" });
  const skips = h("div", { class: "skips" });
  element.append(
    trouble, verdict, about, tiles,
    h("div", { class: "charts" }, plots.map((plot) => plot.element)),
    h("h2", {}, "Where the time goes"), stages, pools, skips,
  );

  function draw(snapshot) {
    const { report, series } = snapshot;
    verdict.textContent = snapshot.verdict.sentence;
    verdict.className = `verdict ${snapshot.verdict.bound || "unknown"}`;
    about.textContent = [
      `${snapshot.name}: ${snapshot.program || "a program"}, process ${snapshot.process} on ${snapshot.machine}, ${snapshot.cores} cores`,
      `watched for ${span(snapshot.age_s)}`,
      `the verdict is about the last ${span(snapshot.verdict.seconds)}`,
      snapshot.finished ? "the iterator is closed" : null,
    ].filter(Boolean).join(" · ");
    const last = (values) => (values.length ? values[values.length - 1] : 0);
    const shown = [
      ["elements/s", short(last(series.elements_per_s))],
      ["elements", count(report.elements)],
      ["waiting", percent(last(series.waiting))],
      ["workers", String(report.pools.reduce((sum, pool) => sum + pool.size, 0))],
      ["blocks ready", String(report.pools.reduce((sum, pool) => sum + pool.ready_now, 0))],
      ["memory", size(last(series.own_bytes) + last(series.worker_bytes))],
      ["skipped", count(report.skipped)],
    ];
    tiles.replaceChildren(...shown.map(([name, value]) => h("div", { class: "tile", "data-name": name }, h("b", {}, value), h("span", {}, name))));
    plots.forEach((plot) => plot.update(series));
    stages.replaceChildren(report.stages.length ? drawStages(report.stages) : notice(report.verdict));
    pools.replaceChildren(...drawPools(report), ...report.transfers.map(drawTransfer));
    skips.replaceChildren(...(report.skipped ? drawSkips(report) : []));
  }

  async function ask() {
    try {
      const snapshot = await api.get("running/snapshot", {}, left.signal);
      if (!snapshot.trouble) draw(snapshot);
      trouble.replaceChildren(...(snapshot.trouble ? [failure(snapshot.trouble)] : []));
    } catch (error) {
      if (error.name !== "AbortError") trouble.replaceChildren(failure(error.message));
    }
    if (live && !left.signal.aborted) timer = setTimeout(ask, EVERY_MS);
  }

  let timer = null;
  await ask();
  return () => {
    left.abort();
    clearTimeout(timer);
  };
}

/** A chart over time. It is made with the first two points, and gets new data afterwards. */
function follow(name, parts) {
  const place = h("div", { class: "place" }, notice("…"));
  let chart = null;
  return {
    element: h("figure", { class: "chart", "data-chart": name }, h("figcaption", {}, name), place),
    update(series) {
      const values = parts.map(([, read]) => read(series));
      if (series.at_s.length < 2) return;
      if (chart === null) {
        chart = lines({ x: series.at_s, series: parts.map(([label], n) => ({ label, y: values[n] })), width: 420, height: 130, xLabel: "seconds" });
        place.replaceChildren(chart);
      } else if (chart.plot) {
        chart.plot.setData([series.at_s, ...values]);
      }
    },
  };
}

function drawStages(stages) {
  const total = stages.reduce((sum, stage) => sum + stage.self_s, 0) || 1;
  const row = (stage) => h("tr", { "data-stage": stage.call },
    h("td", {}, h("code", {}, stage.call)),
    h("td", {}, stage.where),
    h("td", { class: "number" }, count(stage.elements)),
    h("td", { class: "number" }, `${stage.self_s.toFixed(2)} s`),
    h("td", { class: "share" }, h("i", { style: { width: `${(100 * stage.self_s) / total}%` } }), h("span", {}, percent(stage.self_s / total))),
    h("td", { class: "number" }, size(stage.size_bytes)));
  const head = ["stage", "where", "elements", "self time", "share", "bytes"].map((text) => h("th", {}, text));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, stages.map(row)));
}

function drawPools(report) {
  return report.pools.map((pool) => {
    const busy = report.elapsed_s ? Math.min(1, pool.busy_s / (report.elapsed_s * Math.max(1, pool.size))) : 0;
    const parts = [`${pool.size} ${pool.kind}`];
    if (report.timed) parts.push(`busy ${percent(busy)} of the time`, `waited for ${pool.wait_s.toFixed(1)} s`, `${pool.ready_now} blocks ready now`);
    if (pool.why) parts.push(`chosen by Bushel: ${pool.why}`);
    if (pool.deaths) parts.push(`${pool.deaths} died and were replaced`);
    return h("p", { class: "pool" }, parts.join(" · "), pool.nodes.map((line) => h("div", { class: "quiet" }, line)));
  });
}

function drawTransfer(transfer) {
  const waiting = transfer.elapsed_s ? transfer.waited_s / transfer.elapsed_s : 0;
  return h("p", { class: "transfer" }, `To ${transfer.place}: ${count(transfer.elements)} elements, ${size(transfer.size_bytes)}; the step waited ${percent(waiting)} of its time.`);
}

function drawSkips(report) {
  const rows = report.skips.toReversed().map((skip) => h("li", {}, h("code", {}, skip.which), skip.count > 1 ? ` (${skip.count})` : "", h("pre", {}, skip.error)));
  return [h("h2", {}, `${count(report.skipped)} skipped elements`), h("ol", { class: "errors" }, rows)];
}
