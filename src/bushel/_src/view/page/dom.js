// Elements of the page. Texts are set as text nodes: data never become HTML.

/** Makes an element: h("p", {class: "quiet", onclick: f}, "text", child, ...). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A whole number with commas between thousands. */
export function count(number) {
  if (typeof number === "string") return number; // too large for a number of JavaScript
  return number === null || number === undefined ? "" : Number(number).toLocaleString("en-US");
}

/** A number as short as is useful: 0.1235, 1.2e-7. */
export function short(number) {
  if (typeof number !== "number") return String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e9) return String(number);
  const text = number.toPrecision(4);
  return text.includes("e") ? Number(text).toExponential() : String(Number(text));
}

/** A time in the unit that suits it: 51 ms. */
export function duration(seconds) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (seconds >= size) return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  return seconds > 0 ? `${Number((seconds / 1e-9).toPrecision(3))} ns` : "0 s";
}

/** A box that shows an error: its first line, and the rest to unfold. */
export function failure(message, trace = "") {
  const [first, ...rest] = message.split("\n");
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("strong", {}, first),
    rest.length ? h("pre", {}, rest.join("\n")) : null,
    trace ? h("details", {}, h("summary", {}, "Traceback"), h("pre", {}, trace)) : null,
  );
}

/** Text with a title, for an empty panel. */
export function notice(text) {
  return h("p", { class: "quiet" }, text);
}
