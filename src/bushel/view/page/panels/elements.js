import { failure, h, notice } from "../dom.js";
import { drawElement } from "../draw.js";
import { go, number, onChange } from "../place.js";

export const title = "Elements";
export const applies = (info) => info.steps.length > 0;

export async function render(element, api, info) {
  const box = h("input", { type: "number", min: 0, "aria-label": "index", onchange: () => go({ index: box.value }) });
  const shown = h("div", { class: "shown" });
  element.append(h("div", { class: "controls" }, box), shown);

  async function show() {
    const index = number("index", info.start);
    box.value = index;
    try {
      const answer = await api.get("elements/read", { step: number("step", -1), index });
      if (answer.failure) shown.replaceChildren(failure(answer.failure.message, answer.failure.trace));
      else if (answer.element) shown.replaceChildren(drawElement(answer.element));
      else shown.replaceChildren(notice("No element."));
    } catch (error) {
      shown.replaceChildren(failure(error.message));
    }
  }
  const stop = onChange(show);
  await show();
  return stop; // the panel is left: the page no longer calls `show`
}
