// Requests to the server, and helpers for the document. Text is always inserted as text, never as markup.

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(given).toString();
  return responseOf(fetch(parameters ? `${path}?${parameters}` : path, { cache: "no-store" }));
}

export async function post(path, content = {}) {
  const headers = { "Content-Type": "application/json" };
  return responseOf(fetch(path, { method: "POST", headers, body: JSON.stringify(content) }));
}

async function responseOf(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error("The server has stopped; nothing is lost. Start `selfadapt review` again and open the new address.");
  }
  if (response.status === 403) throw new Error("This address is no longer valid; open the latest one that `selfadapt review` printed.");
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error || `The server returned status ${response.status}.`);
  return content;
}

export const $ = (id) => document.getElementById(id);

// An element with properties, classes, aria- and data- attributes, and children: elements or plain text.
export function element(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined) continue;
    if (name === "class") made.className = value;
    else if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A class name that may wrap after separators, but not within a word.
export const breakable = (name) => name.split(/(?<=[_\-/.,])/).flatMap((word) => [word, element("wbr")]);

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
export const count = (value) => value.toLocaleString("en");
