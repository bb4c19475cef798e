// Elements with text and children: never markup from the service.

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((child) => child != null && child !== false));
  return made;
}

export const h = (name, properties = {}, ...children) => filled(document.createElement(name), properties, children);
export const svg = (name, properties = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);

/** A card with a heading, a line that says what it shows, and what is in it. */
export function card(title, told, ...children) {
  const { span = 6, id, aside } = told?.constructor === Object ? told : {};
  const text = told?.constructor === Object ? told.text : told;
  const heading = aside ? h("div", { class: "heading" }, h("h2", {}, title), aside) : h("h2", {}, title);
  return h("section", { class: `card span${span}`, id }, heading, text ? h("p", { class: "quiet" }, text) : null, children);
}

/** A table whose rows are lists of figures where the page is narrow. */
export function table(headings, rows, { caption, empty = "Nothing yet." } = {}) {
  const numeric = (heading) => heading.endsWith("#");
  const named = (heading) => heading.replace(/#$/, "");
  const head = h("tr", {}, headings.map((each) => h("th", { scope: "col", class: numeric(each) && "n" }, named(each))));
  const cell = (content, index) =>
    h("td", { class: numeric(headings[index]) && "n", data: { heading: named(headings[index]) } }, content ?? "–");
  const body = rows.length
    ? rows.map((row) => h("tr", {}, row.map(cell)))
    : h("tr", {}, h("td", { colspan: headings.length, class: "quiet" }, empty));
  return h("table", { class: "list" }, caption ? h("caption", {}, caption) : null, h("thead", {}, head), h("tbody", {}, body));
}

/** One large figure and what it is. */
export const figure = (value, told, className = "") =>
  h("div", { class: `figure ${className}` }, h("b", {}, value), h("span", {}, told));

export function copyButton(label, text) {
  const button = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  } }, label);
  return button;
}

/** A choice of one of several; `chosen` is called with each new one. */
export function choice(label, options, value, chosen) {
  const made = h("select", { onchange: () => chosen(made.value) },
    options.map((each) => h("option", { selected: each === value }, each)));
  return h("label", { class: "inline" }, label, " ", made);
}
