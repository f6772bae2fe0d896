import { count, failure, h } from "../dom.js";
import { go } from "../place.js";

export const title = "Pipeline";
export const applies = (info) => info.steps.length > 0;

export async function render(element, api, info) {
  const list = h("ol", { class: "steps" });
  element.append(list);
  for (const step of info.steps) {
    const length = h("span", { class: "length" });
    const spec = h("code", { class: "spec" });
    list.append(
      h("li", { onclick: () => go({ panel: "elements", step: step.number }) }, h("code", {}, step.call), length, spec),
    );
    api.get("pipeline/step", { step: step.number }).then(
      (known) => {
        length.textContent = known.endless ? "endless" : count(known.length);
        spec.textContent = known.spec;
      },
      (error) => spec.replaceWith(failure(error.message)),
    );
  }
}
