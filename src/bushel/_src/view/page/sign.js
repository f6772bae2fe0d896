// The sign of life while requests are not answered: a spinner, the seconds, and which step of the pipeline computes.

import { askActivity, onPending } from "./api.js";
import { count, h } from "./dom.js";

const ASK_AFTER_MS = 300; // what is quicker needs no words
const ASK_EVERY_MS = 500;

/** Shows in `element` what the page waits for. */
export function showSigns(element) {
  const what = h("span", {});
  const seconds = h("span", { class: "seconds", "aria-hidden": "true" });
  const step = h("code", { class: "step-now" });
  element.append(h("i", { class: "spinner", "aria-hidden": "true" }), what, seconds, step);
  let timer = null;
  let asked = 0;
  let asking = false;

  onPending((pending) => {
    if (pending.size && timer === null) {
      element.hidden = false;
      step.textContent = seconds.textContent = "";
      tick(pending);
      timer = setInterval(() => tick(pending), 100);
    } else if (!pending.size && timer !== null) {
      clearInterval(timer);
      timer = null;
      element.hidden = true;
    }
  });

  function tick(pending) {
    const [first] = pending.values(); // the one that waits longest
    if (!first) return;
    const waited = performance.now() - first.since;
    what.textContent = name(first);
    seconds.textContent = waited < 1000 ? "" : `${Math.floor(waited / 1000)} s`;
    if (waited > ASK_AFTER_MS && performance.now() - asked > ASK_EVERY_MS && !asking) ask(pending);
  }

  async function ask(pending) {
    asking = true;
    const doing = await askActivity();
    [asking, asked] = [false, performance.now()];
    const mine = [...pending.keys()].map((key) => doing[key]).find((one) => one && one.call);
    if (mine) step.textContent = `${mine.call.slice(0, 60)}${mine.where ? `, ${mine.where}` : ""}`;
  }
}

const NAMES = {
  info: () => "Opening",
  "elements/part": () => "Reading a picture",
  "pipeline/step": ({ step }) => `Asking for the length of step ${step}`,
  "pipeline/shapes": ({ step }) => `Reading an element of step ${step} for its shapes`,
  "pipeline/measure": () => "Measuring",
  "robots/episode": () => "Reading the whole episode",
  "robots/episodes": () => "Reading the list of episodes",
  "order/packing_read": () => "Reading outputs to measure packing",
  "order/padding_read": () => "Reading outputs to measure padding",
};

function name({ path, query }) {
  if (NAMES[path]) return NAMES[path](query);
  if (path.startsWith("order/")) return "Counting records";
  return query.index === undefined ? "Reading" : `Reading element ${count(Number(query.index))}`;
}
