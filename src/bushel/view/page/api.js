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

/** GET /api/PATH?ARGUMENTS as JSON. Throws an Error with the server's sentence; `signal` cancels. */
export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const address = `api/${path}?${new URLSearchParams(given)}`;
  let response;
  try {
    response = await fetch(address, { headers: { "X-Bushel-Token": token }, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Has the program that serves this page ended?");
  }
  const answer = await response.json();
  if (answer && answer.error) throw new Error(answer.error.message);
  return answer;
}
