// The frame of the page: loads the panels, shows a tab for each that applies, and renders the chosen one.

import * as api from "./api.js";
import { failure, h, notice } from "./dom.js";
import { go, onChange, place } from "./place.js";
import { showSigns } from "./sign.js";

const main = document.getElementById("panel");
const tabs = document.getElementById("tabs");

async function open() {
  const info = await api.get("info");
  document.title = `${info.target} · Bushel`;
  const target = document.getElementById("target");
  target.textContent = info.target.length > 48 ? `…/${info.target.split("/").slice(-2).join("/")}` : info.target;
  target.title = info.target;
  const panels = [];
  for (const name of Object.keys(info.panels)) {
    try {
      const panel = await import(`./panels/${name}.js`);
      if (panel.applies(info)) panels.push({ name, panel });
    } catch (error) {
      console.error(name, error);
      panels.push({ name, panel: { title: name, render: (element) => element.append(failure(String(error))) } });
    }
  }
  const first = panels.find(({ name }) => name === info.first) || panels[0];
  let shown = null;
  let leave = null;

  function show() {
    const chosen = panels.find(({ name }) => name === place().panel) || first;
    for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.dataset.panel === chosen?.name);
    const tab = tabs.querySelector("[aria-selected=true]"); // on a phone not all tabs fit
    if (tab) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - 12;
    if (!chosen) return main.replaceChildren(notice("There is nothing to show."));
    if (chosen.name === shown) return;
    shown = chosen.name;
    if (leave) leave();
    leave = null;
    const element = h("section", { class: `panel ${chosen.name}` });
    main.replaceChildren(element);
    Promise.resolve(chosen.panel.render(element, api, info)).then(
      (close) => (typeof close === "function" ? (shown === chosen.name ? (leave = close) : close()) : null),
      (error) => element.append(failure(String(error.message || error))),
    );
  }

  const drawTab = ({ name, panel }) =>
    h("button", { role: "tab", "data-panel": name, onclick: () => go({ panel: name }) }, panel.title);
  tabs.replaceChildren(...panels.map(drawTab));
  onChange(show);
  show();
  if (info.panels.running.may_begin) awaitProgram();

  // An iterator of this process may begin to run after the page was opened: its tab is added then.
  async function awaitProgram() {
    try {
      const { running } = (await api.get("info")).panels;
      if (running.applies) {
        info.panels.running = running;
        const added = { name: "running", panel: await import("./panels/running.js") };
        panels.push(added);
        tabs.append(drawTab(added));
        return;
      }
    } catch {
      // The server has ended, or is busy. The panel that is shown says so.
    }
    setTimeout(awaitProgram, 2000);
  }
}

showSigns(document.getElementById("sign"));
open().catch((error) => main.replaceChildren(failure(error.message)));
