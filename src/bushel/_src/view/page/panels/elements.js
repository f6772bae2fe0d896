// Any element after any step: index box, next and previous, random, epoch, one row of a batch.

import { count, failure, h, notice } from "../dom.js";
import { drawElement } from "../draw.js";
import { go, number, onChange } from "../place.js";

export const title = "Elements";
export const applies = (info) => info.steps.length > 0;

const BETWEEN_MS = 100;
const RECORDS = 8; // links to the records of an element that fails

export function render(element, api, info) {
  const last = info.steps.length - 1;
  let known = { length: null, endless: false, seekable: true, stream: false, rows: null };
  let request = null;

  const steps = h(
    "select",
    { "aria-label": "after step", onchange: () => go({ step: steps.value, row: null, skips: null }) },
    [...info.steps].reverse().map((step) => h("option", { value: step.number }, step.call.slice(0, 80))),
  );
  const box = h("input", { type: "number", min: 0, class: "index", "aria-label": "index", onchange: () => goTo(box.value) });
  const epoch = h("input", { type: "number", min: 0, class: "epoch", "aria-label": "epoch", onchange: changeEpoch });
  const epochLabel = h("label", {}, "epoch ", epoch);
  const total = h("span", { class: "quiet total" });
  const row = h("select", { "aria-label": "row", onchange: () => go({ row: row.value === "all" ? null : row.value }) });
  const rowLabel = h("label", {}, "row ", row);
  const previous = h("button", { onclick: () => goTo(current() - 1), title: "Previous (left arrow)" }, "‹ Previous");
  const next = h("button", { onclick: () => goTo(current() + 1), title: "Next (right arrow)" }, "Next ›");
  const random = h("button", { onclick: goToRandom, title: "An element at random (r)" }, "Random");
  const checkpoint = info.checkpoint
    ? h("button", { onclick: () => go({ step: last, index: info.checkpoint.position }) }, "At the checkpoint")
    : null;
  const shown = h("div", { class: "shown" });
  const controls = [
    h(
      "div",
      { class: "controls" },
      h("label", {}, "after ", steps),
      h("span", { class: "group" }, previous, box, total, next),
      epochLabel,
      rowLabel,
      random,
      checkpoint,
    ),
    info.checkpoint ? h("p", { class: "quiet checkpoint" }, info.checkpoint.about) : "",
    shown,
  ];
  element.append(...controls);

  const current = () => number("index", info.start);

  function goTo(index) {
    const wanted = Math.max(0, Number.parseInt(index, 10) || 0);
    go({ index: inEpochs() ? wanted : known.length ? Math.min(wanted, known.length - 1) : wanted });
  }

  /** Whether indices past the end are those of the next epoch. */
  function inEpochs() {
    return !known.stream && known.length !== null;
  }

  function changeEpoch() {
    const wanted = Math.max(0, Number.parseInt(epoch.value, 10) || 0);
    go({ index: wanted * known.length + (current() % known.length) });
  }

  function goToRandom() {
    const base = inEpochs() ? Math.floor(current() / known.length) * known.length : 0;
    goTo(base + Math.floor(Math.random() * (known.length ?? 1_000_000)));
  }

  function showControls() {
    const index = current();
    steps.value = number("step", last) < 0 ? last : number("step", last);
    box.value = index;
    previous.disabled = index <= 0;
    next.disabled = !inEpochs() && known.length !== null && index >= known.length - 1;
    epochLabel.hidden = !inEpochs() || !known.length;
    if (known.length) epoch.value = Math.floor(index / known.length);
    random.hidden = !known.seekable || (known.length === null && !known.endless);
    total.textContent = known.length === null ? (known.endless ? "endless" : "") : `of ${count(known.length)}`;
    rowLabel.hidden = known.rows === null || known.rows === undefined;
    if (!rowLabel.hidden) {
      const rows = Array.from({ length: Math.min(known.rows, 1000) }, (_, n) => h("option", { value: n }, n));
      row.replaceChildren(h("option", { value: "all" }, `all ${known.rows}`), ...rows);
      row.value = number("row", "all");
    }
  }

  async function show() {
    const busy = request !== null;
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    shown.setAttribute("aria-busy", "true");
    box.value = current();
    // The server goes on with a request that is aborted. Of a key that is held down, only the last one is asked for.
    if (busy) await new Promise((resolve) => setTimeout(resolve, BETWEEN_MS));
    if (signal.aborted) return;
    const place = { step: number("step", -1), index: current(), row: number("row", -1), skips: number("skips", 0) };
    try {
      let answer;
      do {
        answer = await api.get("elements/read", place, signal);
        if (answer.progress) shown.replaceChildren(notice(`Reading forward: ${count(answer.progress.at)} of ${count(answer.progress.wanted)} …`));
      } while (answer.progress);
      known = answer;
      showControls();
      shown.replaceChildren(drawAnswer(answer, place));
    } catch (error) {
      if (error.name === "AbortError") return;
      showControls();
      shown.replaceChildren(failure(error.message));
    }
    request = null;
    shown.removeAttribute("aria-busy");
    shown.dataset.index = place.index;
  }

  function drawAnswer(answer, place) {
    if (answer.failure) {
      // A stream that cannot seek stands before the element that failed. To go on, it must leave it out.
      const skip = answer.seekable || place.skips ? null
        : h("button", { onclick: () => go({ skips: 1 }) }, "Leave out elements that fail");
      const records = h("p", { class: "records" });
      linkRecords(records, place, answer.failure.message);
      return h("div", {}, notice(`Element ${count(answer.index)} cannot be made:`), failure(answer.failure.message, answer.failure.trace), records, skip);
    }
    if (answer.missing) return notice(`A filter has dropped element ${count(answer.index)}.`);
    if (answer.ended !== null) return notice(answer.ended ? `The data end after ${count(answer.ended)} elements.` : "There are no elements.");
    return drawElement(answer.element, { load: (path) => api.get("elements/part", { ...place, path: JSON.stringify(path) }) });
  }

  /** Links from an element that fails to the records that it is made of, the one that the error names first. */
  async function linkRecords(target, { step, index }, message) {
    const { passages = [], records = [] } = await api.get("origin/records", { step, index }).catch(() => ({}));
    const sources = passages.filter((passage) => info.steps[passage.step].parents.length === 0);
    const links = passages.length // of a stream only the records are known
      ? sources.flatMap((passage) => passage.indices.map((at) => ({ step: passage.step, at, call: passage.call })))
      : records.filter((one) => one.step !== null).map((one) => ({ step: one.step, at: one.record, call: one.source }));
    const calls = [...new Set(links.map((one) => one.call))];
    const names = (one) => new RegExp(`record ${one.at}(?![0-9])`).test(message);
    links.sort((a, b) => names(b) - names(a));
    if (!links.length) return;
    target.append("Made of ", ...links.slice(0, RECORDS).flatMap((one, place) => [place ? ", " : "",
      h("button", { class: names(one) ? "link named" : "link", title: one.call, onclick: () => go({ step: one.step, index: one.at, row: null, skips: null }) }, `record ${count(one.at)}`)]),
      h("span", { class: "quiet" }, `${links.length > RECORDS ? ` and ${count(links.length - RECORDS)} more` : ""}${calls.length === 1 ? ` of ${calls[0].slice(0, 60)}` : ""}. `),
      h("button", { class: "link", onclick: () => go({ panel: "origin" }) }, "Where it comes from"));
  }

  function onKey(event) {
    if (event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" && !next.disabled) goTo(current() + 1);
    else if (event.key === "ArrowLeft" && !previous.disabled) goTo(current() - 1);
    else if (event.key === "r" && !random.hidden) goToRandom();
  }

  document.addEventListener("keydown", onKey);
  const stop = onChange(show);
  showControls();
  show();
  return () => {
    stop();
    request?.abort();
    document.removeEventListener("keydown", onKey);
  };
}
