// Requests to the server of this page. The token comes from the address and stays in this tab.

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  let token = given.get("token");
  try {
    if (token) sessionStorage.setItem("bushel-token", token);
    else token = sessionStorage.getItem("bushel-token");
  } catch {
    // A frame in a notebook may have no storage. The token in the address then stays there.
    return token || "";
  }
  if (given.has("token")) {
    given.delete("token"); // so that it is not seen over one's shoulder, or copied with the address
    history.replaceState(null, "", `${location.pathname}#${given}`);
  }
  return token || "";
}

const token = takeToken();

const pending = new Map(); // the requests that are not answered yet: name -> {path, query, since}
const listeners = new Set();
let requests = 0;
const page = Math.random().toString(36).slice(2); // several pages may look at one session

/** Calls a function with the requests that are not answered yet, whenever one begins or ends. */
export function onPending(listener) {
  listeners.add(listener);
}

/** What the server does for its requests, by their names; {} if it does not say. */
export async function askActivity() {
  try {
    const response = await fetch("api/activity", { headers: { "X-Bushel-Token": token }, cache: "no-store" });
    return response.ok ? await response.json() : {};
  } catch {
    return {}; // the request that waits says so
  }
}

/** A request that the page makes again and again by itself: it is no work to be shown. */
const QUIET = new Set(["running/snapshot"]);

/** GET /api/PATH?ARGUMENTS as JSON. Throws an Error with the server's sentence; `signal` cancels. */
export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const address = `api/${path}?${new URLSearchParams(given)}`;
  const name = `${page}.${++requests}`;
  if (!QUIET.has(path)) pending.set(name, { path, query, since: performance.now() });
  for (const listener of listeners) listener(pending);
  let answer;
  try {
    const headers = { "X-Bushel-Token": token, "X-Bushel-Request": name };
    const response = await fetch(address, { headers, signal, cache: "no-store" });
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Has the program that serves this page ended?");
  } finally {
    pending.delete(name);
    for (const listener of listeners) listener(pending);
  }
  if (answer && answer.error) throw new Error(answer.error.message);
  return answer;
}
