// Draws an element from its description (see "Kinds" in README.md).

import { h } from "./dom.js";

/** The description of an element, or of a part of it, as an element of the page. */
export function drawElement(part) {
  if (part.items) {
    return h("dl", { class: "tree" }, part.items.map((item) => [h("dt", {}, item.key), h("dd", {}, drawElement(item.value))]));
  }
  if (part.kind === "image") return h("img", { src: part.url, alt: part.type });
  return h("code", {}, part.text);
}
