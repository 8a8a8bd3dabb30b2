// What the page asks of the server, and small tools for the document. Text always goes in as text, never as markup.

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const words = new URLSearchParams(given).toString();
  return answer(fetch(words ? `${path}?${words}` : path, { cache: "no-store" }));
}

export async function post(path, content = {}) {
  const headers = { "Content-Type": "application/json" };
  return answer(fetch(path, { method: "POST", headers, body: JSON.stringify(content) }));
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error("The server is gone; nothing is lost. Start `selfadapt review` again and open the new address.");
  }
  if (response.status === 403) throw new Error("This address is no longer valid; open the one that was printed last.");
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error || `The server answered ${response.status}.`);
  return content;
}

export const $ = (id) => document.getElementById(id);

// An element with properties, classes, aria- and data- attributes, and children that are elements or plain text.
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

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
export const count = (value) => value.toLocaleString("en");
