// What the pages ask of the service: the same API that programs use.

import { askForKey } from "../login.js";

/** Where the service is: two folders above this file, whatever prefix a proxy gives it. */
export const ROOT = new URL("../../", import.meta.url);
export const at = (path) => new URL(path, ROOT).href;

/** Ask the service; an error of its one shape becomes an Error with its sentence. */
export async function asked(path, options) {
  const answer = await fetch(at(path), options);
  if (answer.status === 401) askForKey();
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(told.error ?? `the service answered ${answer.status}`), { status: answer.status });
  }
  return answer;
}

export const ask = async (path, options) => {
  const answer = await asked(path, options);
  return answer.status === 204 ? null : answer.json();
};

export const send = (path, body, options = {}) => ask(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...options,
});

/** Every entry of a list that comes in pages, up to `most`; `shown` is called with what there is so far. */
export async function everything(path, member, { most = 20_000, shown = () => {} } = {}) {
  const found = [];
  let cursor = "";
  do {
    const page = await ask(`${path}${path.includes("?") ? "&" : "?"}limit=1000${cursor}`);
    found.push(...page[member]);
    shown(found);
    cursor = page.next ? `&cursor=${encodeURIComponent(page.next)}` : "";
  } while (cursor && found.length < most);
  return found;
}

export const query = (values) => new URLSearchParams(
  Object.entries(values).filter(([, value]) => value != null && value !== "").map(([name, value]) => [name, String(value)]),
).toString();
