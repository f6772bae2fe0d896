// Mixture and order: target and actual shares, packing, and how far records move from their neighbours.

import { count, failure, h, notice, short } from "../dom.js";
import { go, number, onChange } from "../place.js";
import { bars, COLORS, lines, points } from "../plots.js";

const OPEN = 4; // the plots of so many sources are open; those of others open by a click

export const title = "Mixture and order";
export const applies = (info) => info.panels.order.applies;

export async function render(element, api, info) {
  const box = h("input", { type: "number", min: 1, "aria-label": "outputs", onchange: () => go({ outputs: box.value }) });
  const about = h("span", { class: "quiet" });
  const shares = h("div", { class: "shares" });
  const packing = h("div", { class: "packing" });
  const order = h("div", { class: "sources" });
  element.append(
    h("div", { class: "controls" }, h("label", {}, "first ", box, " outputs "), about),
    shares, packing, order,
  );
  let latest = 0;

  async function show() {
    const mine = ++latest;
    const at = { step: number("step", -1), outputs: number("outputs", info.panels.order.outputs) };
    box.value = at.outputs;
    about.textContent = `of ${info.steps[at.step < 0 ? info.steps.length - 1 : at.step].call.slice(0, 60)}`;
    const fill = async (target, path, draw) => {
      try {
        const answer = await api.get(path, at);
        if (mine === latest) target.replaceChildren(...draw(answer).filter(Boolean));
      } catch (error) {
        if (mine === latest) target.replaceChildren(failure(error.message));
      }
    };
    await Promise.all([
      fill(shares, "order/shares", (answer) => drawShares(answer, at.outputs)),
      fill(packing, "order/packing", (answer) => drawPackings(answer, api, at)),
      fill(order, "order/order", drawOrders),
    ]);
  }
  const stop = onChange(show);
  await show();
  return () => {
    latest += 1;
    stop();
  };
}

function percent(share) {
  return share === null ? "" : `${(100 * share).toFixed(2)} %`;
}

function drawShares(answer, asked) {
  if (answer.reason) return [h("h2", {}, "Shares"), notice(answer.reason)];
  const fewer = answer.outputs < asked ? notice(answer.outputs < answer.limit ? `The data end after ${count(answer.outputs)} outputs.` : `Counted for the first ${count(answer.outputs)} outputs, which are as many as are counted at once.`) : null;
  const filter = answer.before_filter ? notice(`Counted before ${answer.before_filter}, which may remove elements.`) : null;
  if (!answer.mixtures.length) return [h("h2", {}, "Shares"), fewer, filter, notice("This pipeline has one source: nothing is mixed.")];
  return [h("h2", {}, "Shares"), fewer, filter, ...answer.mixtures.map(drawMixture)];
}

function drawMixture(mixture) {
  const highest = Math.max(...mixture.parts.map((part) => Math.max(part.actual, part.target ?? 0)), 1e-9);
  const width = (share) => `${(100 * share) / highest}%`;
  const rows = mixture.parts.map((part, n) =>
    h("tr", { "data-part": part.name },
      h("td", {}, h("i", { class: "dot", style: { background: COLORS[n % COLORS.length] } }), part.name),
      h("td", { class: "target" }, part.target === null ? "chosen by a function" : percent(part.target)),
      h("td", { class: "actual" }, percent(part.actual)),
      h("td", { class: "elements" }, count(part.elements)),
      h("td", { class: "epochs" }, part.epochs === null ? "" : short(part.epochs)),
      h("td", {}, h("div", { class: "meter" },
        h("i", { class: "actual", style: { width: width(part.actual), background: COLORS[n % COLORS.length] } }),
        part.target === null ? null : h("i", { class: "target", style: { left: width(part.target) } }))),
    ));
  const series = mixture.parts.flatMap((part, n) => [
    { label: part.name, y: part.curve, color: COLORS[n % COLORS.length] },
    ...(part.target === null ? [] : [{ label: `${part.name}, target`, y: part.curve.map(() => part.target), color: COLORS[n % COLORS.length], dash: [4, 4] }]),
  ]);
  return h("article", { class: "mixture", "data-component": mixture.component.join(".") },
    h("code", { class: "call" }, mixture.call),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["data set", "target", "actual", "elements", "epochs used", ""].map((name) => h("th", {}, name)))), h("tbody", {}, rows))),
    h("p", { class: "quiet" }, `Target and actual share differ by at most ${short(Number(mixture.largest_gap.toFixed(3)))} of ${count(mixture.elements)} elements. The line in a bar is the target.`),
    mixture.outputs.length > 1 && mixture.parts.length <= 12
      ? h("figure", {}, h("figcaption", {}, "Share of all elements so far; dashed: target"), lines({ x: mixture.outputs, series, height: 160, width: 640, xLabel: "outputs", legend: false }))
      : null,
  );
}

function drawPackings(answer, api, at) {
  const parts = [...answer.packings.map(drawPacking), ...answer.buckets.map(drawBuckets)];
  for (const padded of answer.padded) {
    parts.push(drawReader(h("code", { class: "call" }, padded.call), answer.read, { class: "padded", "data-step": padded.step }, async () => {
      const found = await api.get("order/padding_read", { step: padded.step, outputs: answer.read });
      return drawPadding(found);
    }));
  }
  if (answer.readable) {
    parts.push(drawReader(notice("This stream packs what it reads, so its rows are not known ahead."), answer.read, {}, async () => {
      const found = await api.get("order/packing_read", { step: at.step, outputs: answer.read });
      return found.packing ? drawPacking(found.packing) : notice("The elements have no segment ids, so packed sequences cannot be told apart.");
    }));
  }
  return parts.length ? [h("h2", {}, "Packing and padding"), ...parts] : [];
}

// An article with a button that reads some outputs, and shows below what was measured.
function drawReader(head, outputs, attributes, measure) {
  const target = h("div", {});
  const button = h("button", {
    class: "read",
    onclick: async () => {
      button.disabled = true;
      try {
        target.replaceChildren(await measure());
      } catch (error) {
        target.replaceChildren(failure(error.message));
      }
      button.disabled = false;
    },
  }, `Read ${count(outputs)} outputs and measure`);
  return h("article", attributes, head, " ", button, target);
}

function drawPadding(found) {
  if (!found.leaves.length) return notice("The function that makes these batches changes their shape, so padding cannot be told from data.");
  return h("table", {}, h("thead", {}, h("tr", {}, ["entry", "real", "cells with data", "all cells"].map((name) => h("th", {}, name)))),
    h("tbody", {}, found.leaves.map((leaf) => h("tr", { "data-leaf": leaf.name },
      h("td", {}, leaf.name), h("td", { class: "real" }, percent(leaf.share)), h("td", {}, count(leaf.real)), h("td", {}, count(leaf.cells))))),
    h("caption", { class: "quiet" }, `in ${count(found.outputs)} outputs`));
}

function drawPacking(packing) {
  return h("article", { class: "pack" },
    h("code", { class: "call" }, packing.call),
    packing.features.map((feature) => h("div", { class: "feature", "data-name": feature.name },
      h("p", {}, h("strong", { class: "efficiency" }, percent(feature.efficiency)), ` of all cells of ${feature.name} hold a token: `,
        `${count(feature.tokens)} tokens of ${count(feature.sequences)} sequences in ${count(feature.rows)} rows of ${count(feature.capacity)}`,
        feature.cut ? `; ${count(feature.cut)} sequences are cut` : "", packing.exact ? "." : ", counted in the rows that were read."),
      h("div", { class: "charts" }, [["lengths", "Lengths of sequences"], ["filled", "Tokens in a row"], ["per_row", "Sequences in a row"]].map(([name, caption]) =>
        h("figure", { "data-histogram": name }, h("figcaption", {}, caption), feature[name].counts.length ? bars({ ...feature[name], width: 330 }) : null))),
    )),
  );
}

function drawBuckets(buckets) {
  const names = ["up to", "batch size", "elements", ...(buckets.real ? ["real"] : [])];
  return h("article", { class: "buckets" }, h("code", { class: "call" }, buckets.call),
    buckets.real ? h("p", {}, h("strong", { class: "efficiency" }, percent(buckets.efficiency)), " of all cells hold data, by the lengths of the elements.") : null,
    h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", {}, name)))),
      h("tbody", {}, buckets.boundaries.map((boundary, n) => h("tr", {},
        [boundary, buckets.batch_sizes[n], buckets.elements[n]].map((value) => h("td", {}, count(value))),
        buckets.real ? h("td", { class: "real" }, percent(buckets.real[n])) : null)))));
}

function drawOrders(answer) {
  const head = h("h2", {}, "Order");
  if (answer.reason) return [head, notice(answer.reason)];
  return [head, ...answer.sources.map(drawOrder)];
}

function drawOrder(source, number) {
  const charts = number < OPEN ? drawCharts(source) : h("details", {
    ontoggle: (event) => event.target.childElementCount === 1 && event.target.append(drawCharts(source)), // drawn when it is opened
  }, h("summary", {}, "Plots"));
  return h("article", { class: "order", "data-component": source.component.join(".") },
    h("p", {}, h("strong", {}, source.source), " ", h("span", { class: "verdict" }, source.verdict)),
    h("p", { class: "quiet facts" },
      `${count(source.records)} records looked at. Directly after a neighbour: ${percent(source.adjacent)}.`,
      source.together === null ? "" : ` With a neighbour in the same batch: ${percent(source.together)}.`),
    charts,
  );
}

function drawCharts(source) {
  const [edges, counts] = source.histogram;
  return h("div", { class: "charts" },
    source.map ? h("figure", { class: "map" }, h("figcaption", {}, "Where each output comes from in the source"),
      points({ x: source.map.outputs, y: source.map.positions, yRange: [0, Math.max(1, source.length - 1)], xLabel: "output", width: 390, height: 190 })) : null,
    counts.length ? h("figure", { class: "distances" }, h("figcaption", {}, "Distance in the source from one record to the next"),
      bars({ edges: [...edges.keys(), edges.length], counts, width: 390, height: 190, tick: (bin) => (Number.isInteger(bin) && bin < edges.length ? compact(edges[bin]) : "") })) : null,
  );
}

function compact(value) {
  return Intl.NumberFormat("en-US", { notation: "compact" }).format(value);
}
