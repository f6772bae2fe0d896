// Where the user is: panel, step and index, kept in the address so that reload, back and links work.

const listeners = new Set();

/** The place now: {panel, step, index, ...}, all texts; numbers are converted by `number`. */
export function place() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** A whole number of the place, or a default. */
export function number(name, otherwise) {
  const value = Number.parseInt(place()[name], 10);
  return Number.isFinite(value) ? value : otherwise;
}

/** Goes to a place: changes the given entries, and tells all listeners. `replace` adds no step to "back". */
export function go(changes, { replace = false } = {}) {
  const next = { ...place(), ...changes };
  for (const [name, value] of Object.entries(next)) if (value === null || value === undefined) delete next[name];
  const hash = `#${new URLSearchParams(next)}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  notify();
}

/** Calls a function after each change of the place. Returns the function that ends this: a panel calls it when it is left. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify() {
  for (const listener of [...listeners]) listener(place());
}

window.addEventListener("popstate", notify);
