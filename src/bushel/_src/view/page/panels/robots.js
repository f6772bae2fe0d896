// Robots: the cameras, actions, proprioception and task of a sample, and the episode that it comes from.

import { count, failure, h, notice } from "../dom.js";
import { go, number, onChange, place } from "../place.js";
import { COLORS, lines } from "../plots.js";

export const title = "Robots";
export const applies = (info) => info.panels.robots.applies;

const SMALL = 128; // pixels: smaller images are enlarged without smoothing
const LARGE = 320; // pixels: how wide the frame of the element's own step is drawn, if all cameras fit beside each other
const SMALLEST = 150; // pixels: and how wide at least
const GAP = 20;
const EARLIER = 84; // and the frames before it
const LISTED = 50; // episodes that are asked for at once

export async function render(element, api, info) {
  const box = h("input", { type: "number", min: 0, "aria-label": "element", onchange: () => move(Number(box.value)) });
  const row = h("input", { type: "number", min: 0, "aria-label": "row", onchange: () => go({ row: row.value, time: null, of: null }) });
  const rows = h("label", { class: "rows", hidden: true }, "row ", row, h("span", { class: "quiet" }));
  const slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "step of the episode", oninput: () => scrub(Number(slider.value)) });
  const play = h("button", { class: "play", "aria-label": "play", onclick: () => (timer ? pause() : start()) }, "▶");
  const clock = h("output", { class: "clock" });
  const head = h("div", { class: "head" });
  const shown = h("div", { class: "shown" });
  const curves = h("div", { class: "curves" });
  const list = listEpisodes(api, (at) => go({ step: at.step, index: at.index, row: null, time: null, of: null }));
  element.append(
    h("div", { class: "with-list" },
      list.element,
      h("div", { class: "sample" },
        h("div", { class: "controls" }, h("button", { "aria-label": "previous", onclick: () => move(number("index", info.start) - 1) }, "‹"),
          h("label", {}, "element ", box), h("button", { "aria-label": "next", onclick: () => move(number("index", info.start) + 1) }, "›"), rows,
          h("span", { class: "quiet keys" }, h("kbd", {}, "←"), h("kbd", {}, "→"), " steps, ", h("kbd", {}, "shift"), " episodes")),
        head,
        h("div", { class: "scrubber", hidden: true }, play, slider, clock),
        shown,
        curves)),
  );
  const scrubber = element.querySelector(".scrubber");

  let times = []; // the steps of the episode that the slider goes over
  let timer = null;
  let fps = null;
  let slot = null; // which slot of the window the actions are drawn for; null: the last one
  let latest = 0; // only the answer to the latest request is drawn
  let known = ""; // the sample whose episode is drawn
  let overview = [];
  let shownTime = null;

  const sample = () => ({ step: number("step", -1), index: number("index", info.start), row: number("row", 0) });
  const name = (at) => `${at.step}.${at.index}.${at.row}`;
  const move = (index) => Number.isFinite(index) && index >= 0 && go({ index, time: null, of: null });
  // `of` says to which sample a time belongs: another panel may go to another sample, and knows nothing of times.
  const scrub = (position) => {
    slider.value = position; // before the answer: the next key goes on from here
    go({ time: times[position], of: name(sample()) }, { replace: true });
  };

  function start() {
    play.textContent = "❚❚";
    if (Number(slider.value) >= times.length - 1) scrub(0);
    timer = setInterval(() => {
      const next = Number(slider.value) + 1;
      if (next >= times.length) pause();
      else scrub(next);
    }, 1000 / Math.min(30, fps || 10));
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
  }

  async function show() {
    const mine = ++latest;
    const at = sample();
    const time = [undefined, name(at)].includes(place().of) ? number("time", -1) : -1;
    let answer;
    try {
      answer = await api.get("robots/show", { ...at, time });
    } catch (error) {
      if (mine !== latest) return;
      pause();
      shown.replaceChildren(failure(error.message));
      return;
    }
    if (mine !== latest) return;
    box.value = answer.index;
    rows.hidden = answer.rows === 0;
    row.value = answer.row ?? 0;
    row.max = Math.max(0, answer.rows - 1);
    rows.lastChild.textContent = ` of ${answer.rows}`;
    if (answer.progress) setTimeout(() => mine === latest && show(), 50); // a stream is read forward bit by bit
    if (!answer.robot && place().panel === undefined && !answer.progress) return go({ panel: "elements" }, { replace: true });
    const problem = explain(answer);
    list.show(answer.place);
    if (problem) {
      pause();
      head.replaceChildren();
      scrubber.hidden = true;
      curves.replaceChildren();
      known = "";
      shown.replaceChildren(problem);
      return;
    }
    shownTime = answer.place ? answer.place.time : null;
    times = answer.place ? answer.place.times : [];
    fps = answer.place ? answer.place.fps : null;
    scrubber.hidden = times.length < 2;
    slider.max = Math.max(0, times.length - 1);
    const now = answer.place ? answer.place.time : null;
    slider.value = Math.max(0, times.indexOf(now));
    clock.textContent = now === null ? "" : `step ${now} of ${times.length ? times[times.length - 1] : 0}${fps ? ` · ${(now / fps).toFixed(2)} s` : ""}`;
    head.replaceChildren(...drawHead(answer));
    const beside = Math.max(1, answer.cameras.length);
    const earlier = Math.min(2, Math.max(0, ...answer.cameras.map((camera) => camera.frames.length - 1))) * (EARLIER + 6);
    const wide = Math.max(SMALLEST, Math.min(LARGE, Math.floor((shown.clientWidth + GAP) / beside) - GAP - earlier));
    shown.replaceChildren(
      h("div", { class: "pictures" }, answer.cameras.map((camera) => drawCamera(camera, "camera", wide)), answer.goals.map((goal) => drawCamera(goal, "goal", Math.min(wide, 1.5 * SMALLEST)))),
      h("div", { class: "charts" }, answer.actions.map((chunks) => drawActions(chunks, now)), answer.states.map((chunks) => drawState(chunks))),
    );
    const key = JSON.stringify(at);
    if (key !== known) {
      known = key;
      overview = [];
      curves.replaceChildren();
      if (answer.place) {
        api.get("robots/episode", at).then((found) => {
          if (known !== key) return;
          overview = found.curves;
          drawEpisode(shownTime);
        }, (error) => known === key && curves.replaceChildren(failure(error.message)));
      }
    } else drawEpisode(now);
  }

  function drawEpisode(now) {
    if (!overview.length) return curves.replaceChildren();
    curves.replaceChildren(
      h("h2", {}, "The whole episode"),
      h("div", { class: "charts" }, overview.map((curve) => h("figure", { class: "episode", "data-name": curve.name },
        h("figcaption", {}, curve.name, legend(curve.names), left(curve.left_out)),
        jump(lines({ x: curve.x, series: curve.y.map((y, n) => ({ label: curve.names[n], y })), marker: now, height: 130, width: 560, legend: false })),
      ))),
    );
  }

  /** A click on a plot of the episode goes to the nearest step that has a sample. */
  function jump(plot) {
    plot.addEventListener("click", () => {
      const at = plot.plot.cursor.idx;
      if (at === null || at === undefined || !times.length) return;
      const wanted = plot.plot.data[0][at];
      const nearest = times.reduce((best, time, n) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? n : best), 0);
      scrub(nearest);
    });
    return plot;
  }

  function drawActions(chunks, now) {
    const chosen = slot === null || slot >= chunks.x.length ? chunks.x.length - 1 : slot;
    const figure = h("figure", { class: "action", "data-name": chunks.name });
    const x = chunks.x[chosen];
    const slots = chunks.x.length > 1 ? drawSlots(chunks, chosen) : null;
    const padded = chunks.padded_dimensions ? `, ${chunks.padded_dimensions} of ${chunks.width} dimensions are padding` : "";
    const real = chunks.real[chosen];
    if (x.length === 1 && !slots) {
      figure.append(h("figcaption", {}, chunks.name, h("span", { class: "quiet" }, padded), left(chunks.left_out)), drawValues(chunks));
      return figure;
    }
    figure.append(
      h("figcaption", {}, chunks.name, legend(chunks.names), h("span", { class: "quiet" }, `${padded}${describePadding(real)}`), left(chunks.left_out), slots),
      h("div", { "data-shaded": JSON.stringify(shade(x, real)) }, drawCurves(x, chunks, chosen, now, chunks.has_times ? "step" : "step of the chunk")),
    );
    return figure;
  }

  /** Which slot of the window the actions belong to: buttons, or a list if there are many. */
  function drawSlots(chunks, chosen) {
    const choose = (n) => {
      slot = n;
      show();
    };
    const name = (n) => (!chunks.real[n].includes(true) ? `slot ${n}: padding` : chunks.has_times ? `from step ${chunks.x[n][0]}` : `slot ${n}`);
    if (chunks.x.length > 4) {
      const list = h("select", { class: "slots", "aria-label": "slot of the window", onchange: () => choose(Number(list.value)) },
        chunks.x.map((_, n) => h("option", { value: n }, name(n))));
      list.value = chosen;
      return list;
    }
    return h("span", { class: "slots", role: "group", "aria-label": "slot of the window" },
      chunks.x.map((_, n) => h("button", { "aria-pressed": String(n === chosen), onclick: () => choose(n) }, name(n))));
  }

  function drawState(chunks) {
    const name = h("figcaption", {}, chunks.name, h("span", { class: "quiet" }, describePadding(chunks.real[0])), left(chunks.left_out));
    if (chunks.x[0].length > 1) {
      name.firstChild.after(legend(chunks.names));
      return h("figure", { class: "state", "data-name": chunks.name }, name, drawCurves(chunks.x[0], chunks, 0, null, chunks.has_times ? "step" : "slot"));
    }
    return h("figure", { class: "state", "data-name": chunks.name }, name, drawValues(chunks));
  }

  /** Left and right: the steps of the episode, or elements where there are no steps. With shift: episodes. */
  function onKey(event) {
    if (event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined && !(event.key === " " && times.length > 1 && !event.target.matches?.("button, summary"))) return;
    event.preventDefault();
    if (event.key === " ") play.click();
    else if (event.shiftKey) list.go(by);
    else if (times.length > 1) {
      const next = Number(slider.value) + by;
      if (next >= 0 && next < times.length) scrub(next);
    } else move(number("index", info.start) + by);
  }

  element.tabIndex = -1;
  document.addEventListener("keydown", onKey);
  const stop = onChange(show);
  show();
  return () => {
    document.removeEventListener("keydown", onKey);
    list.close();
    pause();
    stop();
    latest += 1;
  };
}

/** The episodes with their lengths and instructions. `choose` goes to the element where one begins. */
function listEpisodes(api, choose) {
  const rows = h("div", { class: "rows-of-episodes", role: "listbox", "aria-label": "episodes", onkeydown: onKey });
  const title = h("summary", {}, "Episodes");
  const more = h("button", { class: "link", hidden: true, onclick: () => read() }, "more");
  const element = h("details", { class: "episode-list", hidden: true, open: window.innerWidth > 900 }, title, rows, more);
  const left = new AbortController();
  const episodes = [];
  let current = null;
  let total = null;
  let reading = false;

  async function read() {
    if (reading || (total !== null && episodes.length >= total)) return;
    reading = true;
    const wanted = episodes.length + LISTED;
    try {
      do { // one answer has as many as can be read in a moment
        const answer = await api.get("robots/episodes", { first: episodes.length, count: wanted - episodes.length }, left.signal);
        total = answer.total;
        const several = new Set([...episodes, ...answer.episodes].map((one) => one.dataset)).size > 1;
        for (const one of answer.episodes) {
          episodes.push(one);
          rows.append(drawRow(one, several));
        }
        element.hidden = total < 1;
        title.textContent = `${count(total)} ${total === 1 ? "episode" : "episodes"}`;
        more.hidden = episodes.length >= total;
        mark();
      } while (episodes.length < Math.min(wanted, total));
    } catch (error) {
      if (error.name !== "AbortError") rows.append(failure(error.message));
    }
    reading = false;
  }

  function drawRow(one, several) {
    return h("button", { class: "episode-row", role: "option", "aria-selected": "false", disabled: one.index === null, title: one.text || "",
      "data-episode": one.episode, "data-dataset": one.dataset, onclick: () => choose(one) },
      h("b", {}, several && one.dataset ? `${one.dataset} ${one.episode}` : String(one.episode)),
      h("span", { class: "quiet length" }, one.length === null ? "" : `${count(one.length)} steps`),
      one.text ? h("span", { class: "text" }, one.text) : h("span", { class: "text quiet" }, one.text === "" ? "no instruction" : ""));
  }

  function mark() {
    [...rows.children].forEach((row, n) => {
      const own = current !== null && episodes[n]?.episode === current.episode && episodes[n].dataset === current.dataset;
      row.setAttribute("aria-selected", String(own));
      if (own && element.open) rows.scrollTop = Math.max(0, row.offsetTop - rows.clientHeight / 2);
    });
  }

  const at = () => episodes.findIndex((one) => current && one.episode === current.episode && one.dataset === current.dataset);

  function onKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const row = document.activeElement?.closest(".episode-row");
    const next = by > 0 ? row?.nextElementSibling : row?.previousElementSibling;
    if (next?.matches("button:not(:disabled)")) {
      next.focus();
      next.click();
    }
  }

  read();
  return {
    element,
    show(found) {
      current = found;
      mark();
    },
    go(by) {
      const wanted = episodes[at() + by];
      if (!wanted || wanted.index === null) return;
      current = wanted; // before the answer: the next key goes on from here
      choose(wanted);
    },
    close: () => left.abort(),
  };
}

/** Why there is no sample to draw; null if there is one. */
function explain(answer) {
  if (answer.failure) {
    return h("div", {}, failure(answer.failure.message, answer.failure.trace),
      h("button", { class: "link", onclick: () => go({ panel: "elements" }) }, "Show the records that it is made of"));
  }
  if (answer.missing) return notice(`A filter has removed element ${answer.index}.`);
  if (answer.ended !== null) return notice(`There is no element ${answer.index}: the data end after ${count(answer.ended)} elements.`);
  if (answer.progress) return notice(`Reading forward to element ${count(answer.progress.wanted)}: at ${count(answer.progress.at)} …`);
  if (!answer.robot) {
    return h("p", { class: "quiet" }, "The elements after ", h("code", {}, answer.call.slice(0, 80)), " are not samples of a robot. ",
      h("button", { onclick: () => go({ step: null }) }, "Show the last step"));
  }
  return null;
}

function drawHead(answer) {
  const at = answer.place;
  const name = (at && at.dataset) || answer.dataset;
  const words = [];
  if (name) words.push(h("strong", { class: "dataset" }, name));
  if (at) words.push(h("span", { class: "episode-number", title: at.describe }, `episode ${at.episode}`));
  if (at && at.own_time !== null && at.time !== at.own_time) {
    words.push(h("span", { class: "quiet" }, `element ${answer.index} itself is step ${at.own_time}`,
      at.draws_anew ? "; random changes of this step are drawn anew" : ""));
  }
  const text = answer.instruction;
  return [
    h("p", { class: "origin" }, words),
    text === null ? null : text === ""
      ? h("p", { class: "instruction quiet" }, "no instruction (empty)")
      : h("blockquote", { class: "instruction" }, text),
  ].filter(Boolean);
}

function drawCamera(camera, kind, large) {
  const own = camera.frames.length - 1; // the last frame of a window is that of the element's own step
  return h("figure", { class: kind, "data-name": camera.name },
    h("figcaption", {}, kind === "goal" ? `goal: ${camera.name}` : camera.name, left(camera.left_out, "earlier frames")),
    h("div", { class: "frames" }, camera.frames.map((frame, n) => {
      const small = frame.size && Math.max(...frame.size) < SMALL;
      const wide = frame.size ? fit(frame.size, n === own ? large : EARLIER) : EARLIER;
      const label = frame.time === null ? "" : `step ${frame.time}`;
      return h("div", { class: `frame${frame.real ? "" : " padded"}`, "data-time": frame.time },
        frame.url
          ? h("div", { class: "picture" }, h("img", { src: frame.url, alt: `${camera.name} ${label}`, class: small ? "small" : "", style: { width: `${wide}px` } }))
          : h("div", { class: "empty", style: { width: `${n === own ? large / 2 : EARLIER}px` } }, frame.error || "no image"),
        h("span", { class: "label" }, label, frame.real ? "" : h("em", {}, label ? " · padding" : "padding"), frame.note ? h("span", { class: "quiet" }, ` ${frame.note}`) : ""),
      );
    })),
  );
}

/** How wide an image is drawn whose longer side should have `wanted` pixels. */
function fit([height, width], wanted) {
  return Math.round((width * wanted) / Math.max(height, width));
}

/** The numbers of a single step, where there is no curve to draw. */
function drawValues(chunks) {
  return h("dl", { class: `values${chunks.real[0][0] ? "" : " padded"}` },
    chunks.y[0].map((y, n) => h("div", {}, h("dt", {}, chunks.names[n]), h("dd", {}, format(y[0])))));
}

function drawCurves(x, chunks, slot, marker, xLabel) {
  return lines({
    x,
    series: chunks.y[slot].map((y, n) => ({ label: chunks.names[n], y })),
    shaded: shade(x, chunks.real[slot]),
    marker: chunks.has_times && marker !== null && marker > x[0] && marker <= x[x.length - 1] ? marker : null,
    height: 170,
    width: 560,
    xLabel,
    legend: false,
  });
}

/** Stretches of x where nothing is real: from half a step before the first padded number to half a step after the last. */
function shade(x, real) {
  const stretches = [];
  for (let n = 0; n < x.length; n++) {
    if (real[n]) continue;
    const begin = n;
    while (n + 1 < x.length && !real[n + 1]) n++;
    stretches.push([begin === 0 ? x[0] - 0.5 : (x[begin - 1] + x[begin]) / 2, n === x.length - 1 ? x[n] + 0.5 : (x[n] + x[n + 1]) / 2]);
  }
  return stretches;
}

function describePadding(real) {
  const padded = real.filter((one) => !one).length;
  if (!padded) return "";
  return padded === real.length ? " · all of it is padding" : ` · ${padded} of ${real.length} steps are padding`;
}

/** The names of dimensions, or their numbers, in the colours of their curves. */
function legend(names) {
  return h("span", { class: "legend" }, names.map((dimension, n) => h("span", { style: { color: COLORS[n % COLORS.length] } }, dimension)));
}

function left(number, what = "dimensions") {
  return number ? h("span", { class: "quiet" }, ` · ${number} more ${what} are not drawn`) : null;
}

function format(value) {
  return typeof value === "number" ? value.toFixed(4) : String(value);
}
