// The steps as a graph, from the sources to what training sees. A click shows the elements after a step.

import { count, duration, failure, h, short } from "../dom.js";
import { go } from "../place.js";

export const title = "Pipeline";
export const applies = (info) => info.steps.length > 0;

export function render(element, api, info) {
  const rows = info.steps.map((step) => makeRow(step));
  const specs = {};
  const lanes = layOut(info.steps);
  const times = h("p", { class: "note times" }, "");
  const measure = h("button", { onclick: run }, "Measure 2 seconds");
  element.append(
    h("div", { class: "controls" }, measure, times),
    h("div", { class: "graph", role: "list" }, rows.map(({ row, gutter }, n) => {
      gutter.append(...drawLanes(lanes[n]));
      gutter.style.width = `${(Math.max(...lanes.map((lane) => lane.depth)) + 1) * LANE + 6}px`;
      return row;
    })),
  );
  info.steps.reduce((before, step, n) => before.then(() => fill(step, rows[n])), Promise.resolve());

  function makeRow(step) {
    const gutter = h("div", { class: "gutter", "aria-hidden": "true" });
    const length = h("span", { class: "length" });
    const spec = h("div", { class: "spec" });
    const time = h("div", { class: "time", hidden: true });
    const show = () => go({ panel: "elements", step: step.number, row: null });
    const row = h(
      "div",
      { class: "step", role: "listitem", tabindex: 0, title: "Show the elements after this step", onclick: show,
        onkeydown: (event) => (event.key === "Enter" ? show() : null), "data-step": step.number },
      gutter,
      h("div", { class: "what" },
        h("div", {}, h("code", { class: "call" }, step.call), " ",
          step.kind === "stream" ? h("span", { class: "tag" }, "stream") : null,
          step.seed !== null && !step.call.includes("seed") ? h("span", { class: "tag", title: "the seed of this operation" }, `seed ${step.seed}`) : null),
        spec, time),
      length,
    );
    return { row, gutter, length, spec, time };
  }

  async function fill(step, { length, spec }) {
    if (!element.isConnected && element.parentNode === null) return;
    try {
      const known = await api.get("pipeline/step", { step: step.number });
      length.textContent = known.endless ? "endless" : known.length === null ? "" : count(known.length);
      showSpec(step, spec, known.spec);
      if (known.cheap) await readShapes(step, spec);
      else if (!known.spec) {
        spec.replaceChildren(h("button", { class: "link", onclick: (event) => {
          event.stopPropagation();
          readShapes(step, spec);
        } }, "read one element to see its shapes"));
      }
    } catch (error) {
      spec.replaceChildren(failure(error.message));
    }
  }

  function showSpec(step, element, text) {
    specs[step.number] = text;
    const same = step.parents.length === 1 && text !== "" && specs[step.parents[0]] === text;
    element.textContent = same ? "same shapes" : text;
    element.title = text;
  }

  async function readShapes(step, spec) {
    spec.textContent = "…";
    const answer = await api.get("pipeline/shapes", { step: step.number });
    if (answer.failure) spec.replaceChildren(failure(answer.failure.message.split("\n")[0]));
    else if (answer.spec) showSpec(step, spec, answer.spec);
    else spec.textContent = answer.missing ? "the first element is dropped" : "";
  }

  async function run() {
    measure.disabled = true;
    times.textContent = "Reading …";
    try {
      const answer = await api.get("pipeline/measure", { seconds: 2 });
      const total = Object.values(answer.stages).reduce((sum, stage) => sum + stage.seconds, 0) || 1;
      rows.forEach(({ time }, n) => {
        const { elements, seconds } = answer.stages[n];
        time.hidden = elements === 0;
        const share = seconds / total;
        time.replaceChildren(
          h("span", { class: "bar", style: { width: `${Math.max(1, Math.round(share * 120))}px` } }),
          ` ${Math.round(share * 100)} %, ${duration(seconds / Math.max(1, elements))} for each element`,
        );
      });
      times.textContent = `${count(answer.elements)} elements in ${duration(answer.seconds)} in one process without workers: `
        + `${short(answer.elements / Math.max(answer.seconds, 1e-9))} per second.`
        + (answer.failure ? ` It ended with ${answer.failure.split("\n")[0]}` : "");
    } catch (error) {
      times.textContent = error.message;
    }
    measure.disabled = false;
  }
}

const LANE = 18;

/**
 * For each step its lane, and which pieces of lines its row has. The parents of a step that joins several are one lane to
 * the right; their ends turn left into a line that leads down to the join.
 */
function layOut(steps) {
  const depth = new Array(steps.length).fill(0);
  const child = new Array(steps.length).fill(null);
  for (let n = steps.length - 1; n >= 0; n--) {
    const several = steps[n].parents.length > 1;
    for (const parent of steps[n].parents) {
      depth[parent] = Math.max(depth[parent], depth[n] + (several ? 1 : 0));
      child[parent] = n;
    }
  }
  const open = new Set(); // lanes of joins whose line has begun
  return steps.map((step, n) => {
    const mine = depth[n];
    open.delete(step.parents.length > 1 ? mine : -1);
    const lane = { depth: mine, through: [...open].filter((d) => d !== mine), above: step.parents.length > 0, below: false, turn: null };
    if (child[n] !== null) {
      if (depth[child[n]] === mine) lane.below = true;
      else {
        lane.turn = { to: depth[child[n]], first: !open.has(depth[child[n]]) };
        open.add(depth[child[n]]);
      }
    }
    return lane;
  });
}

function drawLanes({ depth, through, above, below, turn }) {
  const at = (d) => d * LANE + 9;
  const line = (d, top, bottom) => h("i", { class: "line", style: { left: `${at(d)}px`, top, bottom } });
  const lines = through.filter((d) => !turn || d !== turn.to || !turn.first).map((d) => line(d, "0", "0"));
  if (above) lines.push(line(depth, "0", "calc(100% - 16px)"));
  if (below) lines.push(line(depth, "16px", "0"));
  if (turn) {
    lines.push(line(depth, "16px", "6px"));
    lines.push(h("i", { class: "turn", style: { left: `${at(turn.to)}px`, width: `${(depth - turn.to) * LANE}px` } }));
    lines.push(line(turn.to, "calc(100% - 7px)", "0"));
  }
  return [...lines, h("i", { class: "dot", style: { left: `${at(depth) - 5}px` } })];
}
