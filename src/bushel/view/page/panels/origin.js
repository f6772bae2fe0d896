import { h } from "../dom.js";
import { number } from "../place.js";

export const title = "Where it comes from";
export const applies = (info) => info.steps.length > 0;

export async function render(element, api, info) {
  const answer = await api.get("origin/explain", { step: number("step", -1), index: number("index", info.start) });
  element.append(h("ul", {}, answer.records.map((r) => h("li", {}, `record ${r.record} of ${r.source}`))));
}
