// Which records an element is made of, where they lie, and its index after each step.

import { count, failure, h, notice } from "../dom.js";
import { go, number, onChange } from "../place.js";

export const title = "Where it comes from";
export const applies = (info) => info.steps.length > 0;

export function render(element, api, info) {
  const last = info.steps.length - 1;
  const current = () => number("index", info.start);
  const box = h("input", { type: "number", min: 0, class: "index", "aria-label": "index",
    onchange: () => go({ index: Math.max(0, Number.parseInt(box.value, 10) || 0) }) });
  const steps = h("select", { "aria-label": "after step", onchange: () => go({ step: steps.value }) },
    [...info.steps].reverse().map((step) => h("option", { value: step.number }, step.call.slice(0, 80))));
  const shown = h("div", { class: "shown" });
  element.append(
    h("div", { class: "controls" },
      h("label", {}, "after ", steps),
      h("span", { class: "group" },
        h("button", { onclick: () => go({ index: Math.max(0, current() - 1) }) }, "‹ Previous"), box,
        h("button", { onclick: () => go({ index: current() + 1 }) }, "Next ›")),
      h("button", { onclick: () => go({ panel: "elements" }) }, "Show this element")),
    shown,
  );

  async function show() {
    const index = current();
    const step = number("step", last);
    box.value = index;
    steps.value = step < 0 ? last : step;
    try {
      const answer = await api.get("origin/records", { step, index });
      if (index !== current()) return;
      shown.replaceChildren(...(answer.unknown ? [notice(answer.unknown)] : draw(answer)));
    } catch (error) {
      shown.replaceChildren(failure(error.message));
    }
    shown.dataset.index = index;
  }

  const stop = onChange(show);
  show();
  return stop;
}

function draw(answer) {
  const files = answer.records.some((record) => record.file);
  const components = answer.records.some((record) => record.component.length);
  const records = h(
    "table",
    { class: "records" },
    h("thead", {}, h("tr", {}, ["source", "record", "epoch", components ? "component" : null, files ? "file" : null]
      .filter(Boolean).map((head) => h("th", {}, head)))),
    h("tbody", {}, answer.records.map((record) =>
      h("tr", {},
        h("td", {}, h("code", {}, record.source)),
        h("td", { class: "number" }, count(record.record)),
        h("td", { class: "number" }, count(record.epoch)),
        components ? h("td", { class: "number" }, record.component.join(".")) : null,
        files ? h("td", {}, record.file ? h("code", {}, record.file) : "",
          record.in_file !== null && record.in_file !== undefined ? h("span", { class: "quiet" }, ` record ${count(record.in_file)} of it`) : null) : null))),
  );
  const more = answer.count - answer.records.length;
  const parts = [
    h("h2", {}, `Element ${count(answer.index)} is made of ${count(answer.count)} ${answer.count === 1 ? "record" : "records"}`),
    h("div", { class: "scroll" }, records),
    more > 0 ? notice(`… and ${count(more)} more records`) : null,
  ];
  if (answer.passages.length) {
    parts.push(
      h("h2", {}, "Its way through the pipeline"),
      h("div", { class: "scroll" }, h("table", { class: "passages" },
        h("thead", {}, h("tr", {}, h("th", {}, "step"), h("th", {}, "elements of the step"))),
        h("tbody", {}, answer.passages.map((passage) =>
          h("tr", {},
            h("td", {}, h("code", {}, passage.call), passage.draw ? h("div", { class: "quiet" }, passage.draw) : null),
            h("td", {}, passage.indices.slice(0, 24).map((index) => [
              h("button", { class: "link", onclick: () => go({ panel: "elements", step: passage.step, index, row: null }) }, count(index)), " "]),
              passage.count > 24 ? h("span", { class: "quiet" }, `… ${count(passage.count)} in all`) : null)))))),
      h("p", { class: "quiet" }, "Computed from seeds and lengths: nothing was read, and the same element comes after a resume."),
    );
  }
  return parts.filter(Boolean);
}
