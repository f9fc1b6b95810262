// Charts as inline SVG in the page's own colours. Each names itself and has its figures in a table beside it.

import { figure, h, s, whole } from "./dom.js";

let drawings = 0;

function frame(width, height, title, description, ...children) {
  drawings += 1;
  const id = `drawing-${drawings}`;
  return s(
    "svg",
    { class: "drawn", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${id}-t ${id}-d` },
    s("title", { id: `${id}-t` }, title),
    s("desc", { id: `${id}-d` }, description),
    ...children,
  );
}

function label(x, y, words, attributes = {}) {
  return s("text", { x, y, ...attributes }, words);
}

// Powers of ten that enclose all positive values.
function decades(values) {
  const positive = values.filter((value) => value > 0);
  if (!positive.length) return null;
  const low = Math.floor(Math.log10(Math.min(...positive)) - 1e-9);
  const high = Math.max(Math.ceil(Math.log10(Math.max(...positive)) + 1e-9), low + 1);
  return { low, high, at: (value) => (Math.log10(value) - low) / (high - low) };
}

function power(exponent) {
  return exponent >= -3 && exponent <= 4
    ? String(Number((10 ** exponent).toPrecision(1)))
    : figure(10 ** exponent, 1).replace("1×", "");
}

// How many values each code has, on a logarithmic axis: one value must be seen beside ten thousand.
export function histogram(bars, width, title) {
  const [left, right, top, height, bottom] = [44, 8, 10, 150, 34];
  const scale = decades([1, ...bars.map((bar) => bar.count)]);
  const y = (count) => top + height * (1 - (count > 0 ? 0.04 + 0.96 * scale.at(count) : 0));
  const step = (width - left - right) / bars.length;
  const marks = [];
  for (let exponent = 0; exponent <= scale.high; exponent += 1) {
    const place = y(10 ** exponent);
    marks.push(s("line", { class: "axis", x1: left, x2: width - right, y1: place, y2: place }));
    marks.push(label(left - 6, place + 4, power(exponent), { class: "faint", "text-anchor": "end" }));
  }
  const shown = bars.map((bar, index) =>
    s("rect", {
      class: "bar",
      x: left + index * step + (step > 4 ? 0.5 : 0),
      width: Math.max(step - (step > 4 ? 1 : 0), 0.6),
      y: y(bar.count),
      height: top + height - y(bar.count),
    }),
  );
  const middle = Math.floor(bars.length / 2);
  const ends = [
    [0, bars[0].first, "start"],
    ...(bars.length > 4 ? [[middle, bars[middle].first, "middle"]] : []),
    [bars.length - 1, bars[bars.length - 1].last, "end"],
  ].map(([index, code, anchor]) =>
    label(
      left + (index + (anchor === "start" ? 0 : anchor === "end" ? 1 : 0.5)) * step,
      top + height + 16,
      String(code).replace("-", "−"),
      { class: "faint", "text-anchor": anchor },
    ),
  );
  const name = label((left + width - right) / 2, top + height + 31, "code", {
    class: "faint",
    "text-anchor": "middle",
  });
  const words = `Number of values at each code, from ${bars[0].first} to ${bars[bars.length - 1].last}; the vertical axis is logarithmic.`;
  return frame(width, top + height + bottom, title, words, ...marks, ...shown, ...ends, name);
}

// Error by token, keys and values side by side.
export function tokenErrors(rows, width) {
  const [left, right, top, height, bottom] = [56, 8, 10, 150, 34];
  const scale = decades(rows.flatMap((row) => [row.keys, row.values]));
  const title = "Error by token";
  const words = "RMSE of each token's keys and values on a logarithmic axis; a token without a bar has no error.";
  if (scale === null) {
    return frame(width, 40, title, words, label(0, 24, "no token has an error", { class: "faint" }));
  }
  const step = (width - left - right) / rows.length;
  const marks = [];
  for (
    let exponent = scale.low;
    exponent <= scale.high;
    exponent += Math.max(1, Math.ceil((scale.high - scale.low) / 5))
  ) {
    const place = top + height * (1 - scale.at(10 ** exponent));
    marks.push(s("line", { class: "axis", x1: left, x2: width - right, y1: place, y2: place }));
    marks.push(label(left - 6, place + 4, power(exponent), { class: "faint", "text-anchor": "end" }));
  }
  const half = Math.max(step / 2 - (step > 6 ? 1 : 0.2), 0.6);
  const shown = rows.flatMap((row, index) =>
    ["keys", "values"].map((side, offset) => {
      const tall = row[side] > 0 ? Math.max(height * scale.at(row[side]), 1) : 0;
      return s("rect", {
        class: side,
        x: left + index * step + offset * (step / 2),
        width: half,
        y: top + height - tall,
        height: tall,
      });
    }),
  );
  const last = rows[rows.length - 1].last;
  return frame(
    width,
    top + height + bottom,
    title,
    words,
    ...marks,
    ...shown,
    label(left, top + height + 16, "0", { class: "faint" }),
    label(width - right, top + height + 16, String(last), { class: "faint", "text-anchor": "end" }),
    label((left + width - right) / 2, top + height + 31, "token", { class: "faint", "text-anchor": "middle" }),
  );
}

// One line a row: a dot and its interval on a logarithmic axis, the name above it.
export function dots(rows, width, { title, description, limit = null, unit }) {
  const scale = decades(
    rows
      .flatMap((row) => [row.value, row.low, row.high, limit])
      .filter((value) => value !== null && value !== undefined),
  );
  if (scale === null) return h("p", { class: "note" }, "No row has a positive value to draw.");
  const [left, right, line, top] = [6, 14, 42, 22];
  const height = top + rows.length * line;
  const x = (value) => left + (width - left - right) * Math.min(Math.max(scale.at(value), 0), 1);
  const marks = [];
  const every = Math.max(1, Math.ceil((scale.high - scale.low) / (width < 420 ? 3 : 7)));
  for (let exponent = scale.low; exponent <= scale.high; exponent += every) {
    marks.push(s("line", { class: "axis", x1: x(10 ** exponent), x2: x(10 ** exponent), y1: top - 6, y2: height }));
    const anchor = exponent === scale.low ? "start" : exponent + every > scale.high ? "end" : "middle";
    marks.push(label(x(10 ** exponent), height + 16, power(exponent), { class: "faint", "text-anchor": anchor }));
  }
  if (limit !== null) {
    marks.push(s("line", { class: "limit", x1: x(limit), x2: x(limit), y1: top - 8, y2: height }));
    const side = x(limit) > width / 2 ? ["end", -5] : ["start", 5];
    marks.push(label(x(limit) + side[1], 11, `limit ${figure(limit)}`, { class: "faint", "text-anchor": side[0] }));
  }
  const shown = rows.flatMap((row, index) => {
    const y = top + index * line + 30;
    const found = [label(left, y - 13, row.name)];
    if (row.low !== null && row.high !== null && row.low !== undefined && row.high > 0) {
      found.push(
        s("line", { class: "span", x1: x(Math.max(row.low, 10 ** scale.low)), x2: x(row.high), y1: y, y2: y }),
      );
    }
    for (const dot of row.dots ?? [{ value: row.value, css: row.css ?? "bar", shape: row.shape }]) {
      if (dot.value > 0) found.push(shape(dot.shape, x(dot.value), y, dot.css));
    }
    return found;
  });
  return frame(
    width,
    height + 38,
    title,
    description,
    ...marks,
    ...shown,
    label((left + width - right) / 2, height + 33, unit, { class: "faint", "text-anchor": "middle" }),
  );
}

// A mark is told apart by its form, not by its colour alone.
export function shape(kind, x, y, css, size = 5.5) {
  if (kind === "diamond")
    return s("path", {
      class: css,
      d: `M${x} ${y - size - 1}L${x + size + 1} ${y}L${x} ${y + size + 1}L${x - size - 1} ${y}Z`,
    });
  if (kind === "square")
    return s("rect", { class: css, x: x - size + 0.5, y: y - size + 0.5, width: 2 * size - 1, height: 2 * size - 1 });
  return s("circle", { class: css, cx: x, cy: y, r: size });
}

export function key(kind, css, words) {
  return h(
    "span",
    { class: "key" },
    s("svg", { class: "drawn", viewBox: "0 0 14 14", "aria-hidden": "true" }, shape(kind, 7, 7, css)),
    words,
  );
}

const OWNERS = {
  codes: "codes",
  scales: "scales",
  zero_points: "minimums",
  window: "recent window",
  sinks: "first tokens kept",
  skipped_layers: "skipped layers",
  padding: "padding",
  block_table: "block table",
  workspace: "workspace",
};

export function ownerName(owner) {
  return OWNERS[owner] ?? owner;
}

// Stacked horizontal bars: `rows` are {name, parts: {owner: nbytes}}, beside the same tokens in 16 bits.
export function ownerBars(rows, width, { reference, title, description }) {
  const [left, right, line] = [2, 2, 46];
  const totals = rows.map((row) => Object.values(row.parts).reduce((sum, part) => sum + part, 0));
  const most = Math.max(reference?.value ?? 0, ...totals);
  const height = rows.length * line + (reference ? 22 : 4);
  const x = (value) => left + ((width - left - right) * value) / most;
  const shown = rows.flatMap((row, index) => {
    const y = index * line;
    let begin = 0;
    const found = [label(left, y + 14, `${row.name}: ${whole(Math.round(totals[index]))} B`)];
    for (const [owner, nbytes] of Object.entries(row.parts)) {
      found.push(
        s("rect", {
          fill: `var(--owner-${owner.replaceAll("_", "-")})`,
          x: x(begin),
          width: Math.max(x(begin + nbytes) - x(begin) - 0.6, 0.4),
          y: y + 20,
          height: 16,
        }),
      );
      begin += nbytes;
    }
    return found;
  });
  if (reference) {
    const place = Math.min(x(reference.value), width - right);
    shown.push(s("line", { class: "limit", x1: place, x2: place, y1: 16, y2: rows.length * line }));
    shown.push(
      label(place, rows.length * line + 14, reference.name, {
        class: "faint",
        "text-anchor": place > width * 0.6 ? "end" : "start",
      }),
    );
  }
  return frame(width, height, title, description, ...shown);
}

export function ownerKeys(owners) {
  return h(
    "p",
    {},
    owners.map((owner) =>
      h(
        "span",
        { class: "key" },
        s(
          "svg",
          { viewBox: "0 0 12 12", "aria-hidden": "true" },
          s("rect", { width: 12, height: 12, fill: `var(--owner-${owner.replaceAll("_", "-")})` }),
        ),
        ownerName(owner),
      ),
    ),
  );
}
