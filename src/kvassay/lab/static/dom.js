// Building pages from data. Text only ever becomes text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children. `on…` are listeners, `value`, `checked`, `disabled` properties.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export class LabError extends Error {}

// Paths are relative, so the token in the page's own address leads every request.
export async function get(path, query = {}, signal = undefined) {
  const text = new URLSearchParams(query).toString();
  return answer(await fetch(text ? `${path}?${text}` : path, { signal, cache: "no-store" }));
}

export async function post(path, body = {}) {
  return answer(
    await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }),
  );
}

async function answer(response) {
  const kind = response.headers.get("content-type") ?? "";
  if (!kind.startsWith("application/json")) throw new LabError((await response.text()).trim());
  const found = await response.json();
  if (!response.ok) throw new LabError(found.error);
  return found;
}

export function problem(error) {
  const lost = error instanceof TypeError ? "the lab does not answer; is kvassay lab still running?" : error.message;
  return h("p", { class: "error", role: "alert" }, lost);
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// Significant digits as the report writes them; what is absent is said to be so and never zero.
export function figure(value, digits = 3, absent = "not measured") {
  if (value === null || value === undefined) return absent;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) {
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: 0 }).replace("-", "−");
  }
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const raised = [...exponent.replace("+", "")].map((character) => SUPERSCRIPTS[character]).join("");
  return `${mantissa.replace("-", "−")}×10${raised}`;
}

export function whole(value) {
  return value === null || value === undefined ? "not measured" : value.toLocaleString("en");
}

export function percent(share, digits = 3) {
  return share === null || share === undefined ? "not measured" : `${figure(100 * share, digits)}%`;
}

// `columns` are [heading, cell(row), numeric]; a cell is text or an element. Wide tables scroll by keyboard too.
export function table(caption, columns, rows, { kind = "", rowHeader = true } = {}) {
  const head = columns.map(([heading, , numeric]) => h("th", { scope: "col", class: numeric ? "n" : null }, heading));
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      columns.map(([, cell, numeric], index) =>
        index === 0 && rowHeader
          ? h("th", { scope: "row" }, cell(row))
          : h("td", { class: numeric ? "n" : null }, cell(row)),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { class: kind || null },
      h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body),
    ),
  );
}

export function details(summary, ...children) {
  return h("details", {}, h("summary", {}, summary), ...children);
}

export function verdict(line) {
  return h("span", { class: `verdict ${line.css}` }, `${line.symbol} ${line.outcome}`);
}

// A choice of one value; `options` are [value, words].
export function select(id, value, options, onchange) {
  const found = h("select", { id, onchange: (event) => onchange(event.target.value) });
  for (const [key, words] of options)
    found.append(h("option", { value: key, selected: String(key) === String(value) }, words));
  return found;
}

export function labelled(label, control) {
  return h("div", {}, h("label", { for: control.id }, label), control);
}

// Draws again when its width changes, so that text keeps its size on any screen.
export function responsive(draw) {
  const holder = h("div", { class: "plot" });
  let drawn = 0;
  const redraw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width < 40 || width === drawn) return;
    drawn = width;
    holder.replaceChildren(draw(width));
  };
  new ResizeObserver(redraw).observe(holder);
  holder.redraw = (next) => {
    draw = next;
    drawn = 0;
    redraw();
  };
  return holder;
}
