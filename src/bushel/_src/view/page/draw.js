// Draws an element from its description. The kinds are listed in bushel/display/describe.py.

import { count, h, short } from "./dom.js";
import { bars, lines } from "./plots.js";

/** The colours of packed segments, in turn. Segment 0 is padding and has none. */
export const SEGMENTS = 8;

/**
 * The description of an element, or of a part of it, as an element of the page.
 * load(path) fetches the description of a part, for example of one image of a stack in its full size.
 */
export function drawElement(part, { load = null, path = [] } = {}) {
  if (part.kind === "dict" || part.kind === "list") return drawTree(part, load, path);
  const draw = DRAW[part.kind] || drawScalar;
  return h("div", { class: `part ${part.kind}` }, draw(part, load, path));
}

function drawTree(part, load, path) {
  if (!part.items.length && !part.left_out) return h("p", { class: "quiet" }, `empty ${part.type}`);
  return h(
    "div",
    { class: "tree" },
    part.items.map(({ key, value }) => {
      const inside = value.kind === "dict" || value.kind === "list";
      const small = SMALL.has(value.kind) || (value.kind === "array" && !value.histogram);
      const body = drawElement(value, { load, path: [...path, key] });
      const label = [h("span", { class: "key" }, key), " ", h("span", { class: "type" }, value.type)];
      return inside
        ? h("details", { open: true, class: "entry inner" }, h("summary", {}, label), body)
        : value.aside
          ? h("details", { class: "entry small" }, h("summary", { class: "label" }, label), body)
          : h("div", { class: small ? "entry small" : "entry" }, h("div", { class: "label" }, label), body);
    }),
    leftOut(part.left_out, "entries"),
  );
}

const SMALL = new Set(["scalar", "none", "image", "text", "bytes", "failed"]);

function leftOut(number, what) {
  return number > 0 ? h("p", { class: "quiet" }, `… and ${count(number)} more ${what}`) : null;
}

function note(...texts) {
  const given = texts.filter(Boolean);
  return given.length ? h("p", { class: "note" }, given.join(" · ")) : null;
}

const drawScalar = (part) => [h("code", { class: "value" }, part.text), part.classes?.length ? h("span", { class: "class-name" }, part.classes[0].split(" · ").slice(1).join(" · ")) : null];

/** The label of a picture; its number and the name of its class. */
const caption = (text) => (text ? h("span", { class: "caption", title: text }, text) : null);

const drawText = (part) => [h("pre", { class: "text" }, part.text), leftOut(part.left_out, "characters")];

const drawTexts = (part) => [
  h("ol", { class: "texts", start: 0 }, part.texts.map(({ text, times }) =>
    h("li", {}, text ? h("pre", { class: "text" }, text) : h("span", { class: "quiet" }, "(empty) "), times > 1 ? h("span", { class: "note" }, `${count(times)} times in a row`) : null))),
  leftOut(part.left_out, "texts"),
];

const drawBytes = (part) => [h("code", { class: "value" }, part.text), part.size > 64 ? h("span", { class: "quiet" }, " …") : null];

function picture(url, width, height, label) {
  const image = h("img", { src: url, alt: label, loading: "lazy", decoding: "async" });
  const scale = Math.max(1, Math.min(Math.floor(224 / Math.max(width, height)), 8));
  image.style.width = `${Math.min(width, 512) * scale}px`;
  if (scale > 1) image.classList.add("pixels");
  return image;
}

function drawImage(part) {
  const image = picture(part.url, part.width, part.height, part.type || "image");
  return [image, caption(part.caption), note(part.note, part.mask ? `hatched: hidden by ${part.mask}` : "")];
}

function drawFrames(part, load, path) {
  const { sprite } = part;
  const source = new Image();
  source.src = sprite.url;
  const scale = Math.max(1, Math.min(4, Math.floor(96 / Math.max(sprite.width, sprite.height))));
  const paint = (canvas, n) =>
    canvas
      .getContext("2d")
      .drawImage(source, (n % sprite.columns) * sprite.width, Math.floor(n / sprite.columns) * sprite.height,
        sprite.width, sprite.height, 0, 0, sprite.width, sprite.height);
  const large = h("div", { class: "large" });
  const name = (n) => (part.numbers ? part.numbers[n] : n); // the images may be every n-th of a longer stack
  const frames = Array.from({ length: sprite.count }, (_, n) => {
    const canvas = h("canvas", {
      width: sprite.width,
      height: sprite.height,
      class: part.kept && !part.kept[n] ? "frame hidden-by-mask" : "frame",
      title: `[${name(n)}]`,
      style: { width: `${sprite.width * scale}px` },
    });
    const select = async () => {
      if (!load) return;
      try {
        large.replaceChildren(h("p", { class: "note" }, `[${name(n)}]`), drawElement(await load([...path, String(name(n))])));
      } catch (error) {
        large.replaceChildren(h("p", { class: "note" }, error.message));
      }
    };
    const label = part.captions?.[name(n)];
    return h("figure", { onclick: select, style: { width: `${Math.max(sprite.width * scale, label ? 84 : 0)}px` } }, canvas, h("figcaption", {}, name(n), caption(label)));
  });
  const strip = h("div", { class: "strip" }, frames);
  source.decode().then(
    () => {
      frames.forEach((figure, n) => paint(figure.firstChild, n));
      strip.dataset.ready = "true";
    },
    () => strip.append(h("p", { class: "note" }, "This picture cannot be drawn.")),
  );
  return [
    sprite.count > 1 ? player(part, paint, scale) : null,
    strip,
    large,
    part.numbers ? note(sprite.count < part.total ? `${sprite.count} of ${count(part.total)} images` : "") : leftOut(part.total - sprite.count, "images"),
    note(part.note, part.mask ? `hidden by ${part.mask}: dimmed` : ""),
  ];
}

/** Plays the frames one after another. It stops when it is no longer on the page. */
function player(part, paint, scale) {
  const { sprite } = part;
  const canvas = h("canvas", { width: sprite.width, height: sprite.height, class: "player", hidden: true,
    style: { width: `${sprite.width * Math.max(scale, 2)}px` } });
  const scrub = h("input", { type: "range", min: 0, max: sprite.count - 1, value: 0, hidden: true, "aria-label": "frame" });
  const button = h("button", {}, "▶ Play");
  let timer = null;
  const show = (n) => {
    scrub.value = n;
    paint(canvas, n);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶ Play";
  };
  button.addEventListener("click", () => {
    canvas.hidden = scrub.hidden = false;
    if (timer) return stop();
    button.textContent = "❚❚ Stop";
    show(Number(scrub.value));
    timer = setInterval(() => (canvas.isConnected ? show((Number(scrub.value) + 1) % sprite.count) : stop()), 1000 / part.rate);
  });
  scrub.addEventListener("input", () => {
    stop();
    show(Number(scrub.value));
  });
  return h("div", { class: "play" }, button, scrub, canvas);
}

const drawRows = (part, load, path) => [
  part.items.map((item) =>
    h("div", { class: "row" }, h("span", { class: "quiet" }, `row ${item.key} `), caption(part.captions?.[Number(item.key)]),
      drawElement(item.value, { load, path: [...path, item.key] })),
  ),
  leftOut(part.left_out, "rows"),
];

function drawAudio(part) {
  return [
    h("audio", { controls: true, preload: "metadata", src: part.url }),
    part.curve ? lines({ x: part.curve.x, series: [{ label: "sound", y: part.curve.y }], height: 90 }) : null,
    part.seconds ? note(`${short(part.seconds)} s at ${count(part.rate)} Hz`, part.seconds > 30 ? "the first 30 s play" : "") : null,
  ];
}

function drawTokens(part) {
  return [
    part.rows.map((row, n) => {
      const colors = new Map();
      const color = (segment) => {
        if (!colors.has(segment)) colors.set(segment, colors.size % SEGMENTS);
        return colors.get(segment);
      };
      const cells = row.ids.map((id, place) => {
        const segment = row.segments ? row.segments[place] : null;
        const hidden = row.kept && !row.kept[place];
        const about = [`token ${place}: ${id}`, segment === null ? "" : segment === 0 ? "padding" : `segment ${segment}`,
          row.positions ? `position ${row.positions[place]}` : "", hidden ? "masked" : ""];
        const kind = segment === null ? "" : segment === 0 ? " padding" : ` segment s${color(segment)}`;
        const text = row.pieces ? visible(row.pieces[place]) : String(id);
        return h("span", { class: `token${kind}${hidden ? " masked" : ""}`, title: about.filter(Boolean).join(", ") }, text);
      });
      return h(
        "div",
        { class: "tokenrow" },
        part.rows.length > 1 ? h("span", { class: "quiet" }, `row ${n}`) : null,
        h("div", { class: row.pieces ? "cells pieces" : "cells" }, cells),
        row.texts
          ? h("ul", { class: "decoded" }, row.texts.map(({ segment, text }) =>
              h("li", { class: segment === null ? "" : `segment s${color(segment)}` }, text)))
          : null,
      );
    }),
    leftOut(part.left_out, "tokens of each row"),
    leftOut(part.rows_left_out, "rows"),
    note(part.mask ? `struck out: hidden by ${part.mask}` : ""),
  ];
}

/** A piece of text with its spaces and line breaks to be seen. */
function visible(piece) {
  return piece === "" ? "∅" : piece.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

function drawArray(part) {
  const { summary = {} } = part;
  if (part.constant !== undefined) return note(`all ${count(part.size)} values are ${part.constant}`, part.mask ? `hidden in part by ${part.mask}` : "");
  const facts = ["min", "max", "mean", "std"].filter((name) => name in summary).map((name) => `${name} ${short(summary[name])}`);
  if (part.share_true !== undefined) facts.push(`${short(100 * part.share_true)} % true`);
  if (summary.not_finite) facts.push(`${count(summary.not_finite)} not finite`);
  if (summary.sampled) facts.push("of a sample");
  const plots = [];
  if (part.heat) plots.push(heat(part.heat));
  if (part.slices) plots.push(...part.slices.map(heat));
  if (part.curve) plots.push(lines({ x: part.curve.x, series: [{ label: "value", y: part.curve.y }], shaded: part.shaded, height: 130, width: 440 }));
  if (part.curves) plots.push(lines({ ...part.curves, shaded: part.shaded, height: 170, width: 440 }));
  if (part.histogram && part.histogram.counts.length > 1) plots.push(bars(part.histogram));
  return [
    note(...facts),
    part.classes?.length ? h("p", { class: "classes" }, part.classes.map((name) => h("span", {}, name))) : null,
    plots.length ? h("div", { class: "plots" }, plots) : null,
    leftOut(part.slices_left_out || 0, "slices"),
    part.values ? (plots.length
      ? h("details", {}, h("summary", {}, "Values"), h("pre", { class: "values" }, part.values))
      : h("pre", { class: "values" }, part.values)) : null,
    note(part.mask ? `grey: hidden by ${part.mask}` : ""),
  ];
}

function heat(map) {
  const image = h("img", { src: map.url, class: "pixels heat", alt: "heat map" });
  const cell = (space, cells) => Math.max(1, Math.min(24, Math.floor(space / cells)));
  const [across, down] = [cell(300, map.width), Math.min(cell(190, map.height), map.height === 1 ? 16 : 24)];
  const narrow = Math.max(map.width / map.height, map.height / map.width) > 3; // then cells need not be square
  image.style.width = `${map.width * (narrow ? across : Math.min(across, down))}px`;
  image.style.height = `${map.height * (narrow ? down : Math.min(across, down))}px`;
  const [rows, columns] = map.steps;
  const thinned = [[rows, "rows"], [columns, "columns"]].filter(([step]) => step > 1).map(([step, what]) => `, 1 of ${step} ${what} shown`).join("");
  return h("figure", { class: "heat" }, image,
    h("figcaption", {}, `${map.label ? `${map.label} ` : ""}${short(map.low)} dark to ${short(map.high)} bright${thinned}`));
}

const drawFailed = (part) => h("p", { class: "failure" }, `This part cannot be shown: ${part.text}`);

const DRAW = {
  text: drawText,
  texts: drawTexts,
  bytes: drawBytes,
  image: drawImage,
  frames: drawFrames,
  rows: drawRows,
  audio: drawAudio,
  tokens: drawTokens,
  array: drawArray,
  failed: drawFailed,
};
