// What of a page's state its address keeps: it survives a reload, and a link shows another the same.

/** What the address says of a name, or null. */
export const kept = (name) => new URLSearchParams(location.search).get(name);

/** Have the address say `values`, without a new entry in the history; what is empty is not said. */
export function keep(values) {
  const here = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value == null || value === "") here.searchParams.delete(name);
    else here.searchParams.set(name, value);
  }
  history.replaceState(history.state, "", here);
}
