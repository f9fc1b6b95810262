// What room 1 shows of one run: the answer, bytes, errors, and the codes and scales of one side.

import { histogram, key, ownerBars, ownerKeys, tokenErrors } from "./charts.js";
import { details, figure, h, percent, responsive, table, whole } from "./dom.js";

export const named = (found, name) => found.figures.find((row) => row.name === name);

export function answer(found) {
  const output = named(found, "output");
  const clipped = found.clipped.keys + found.clipped.values;
  const rows = [
    [
      "stored bits per value",
      figure(found.bytes.bits_per_value, 4),
      `${figure(found.bytes.float32_over_stored, 4)} times smaller than float32`,
    ],
    ["bytes", whole(found.bytes.total), `${percent(found.bytes.share_of_16_bit, 4)} of 16 bit`],
    ["output error, largest", figure(output.max_abs, 4), `RMSE ${figure(output.rmse)}`],
    [
      "output error, relative",
      output.relative === null ? "no signal" : percent(output.relative),
      clipped ? `${whole(clipped)} values clipped` : "nothing clipped",
    ],
  ];
  return [
    h(
      "dl",
      { class: "figures" },
      rows.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, more)))),
    ),
    h(
      "p",
      { class: "format-line" },
      "Format ",
      h("code", {}, found.format),
      h("span", { class: "note" }, ` digest ${found.digest}. ${found.label} `, h("span", { class: "drawn-in" })),
    ),
  ];
}

export function bytesPart(found) {
  const sides = [
    ["K", found.bytes.keys],
    ["V", found.bytes.values],
  ];
  const rows = sides.map(([name, parts]) => ({ name, parts }));
  const owners = [...new Set(sides.flatMap(([, parts]) => Object.keys(parts)))];
  const total = {
    title: "Bytes by owner",
    description:
      "Stored bytes of keys and of values, stacked by what they are for; the dashed line is each side in 16 bits.",
    reference: { name: "16 bit", value: found.bytes.float16 / 2 },
  };
  const cells = sides.flatMap(([side, parts]) =>
    Object.entries(parts).map(([owner, nbytes]) => ({ side, owner, nbytes })),
  );
  return [
    h("h2", {}, "Bytes by owner"),
    responsive((width) => ownerBars(rows, width, total)),
    ownerKeys(owners),
    fold(
      "bytes",
      "Figures, and what they leave out",
      table(
        "Bytes by owner",
        [
          ["side", (row) => row.side],
          ["owner", (row) => row.owner.replaceAll("_", " ")],
          ["bytes", (row) => whole(row.nbytes), true],
        ],
        cells,
      ),
      h(
        "ul",
        {},
        found.bytes.assumptions.map((line) => h("li", {}, line)),
      ),
    ),
  ];
}

function fold(name, summary, ...children) {
  const found = details(summary, ...children);
  found.dataset.name = name;
  return found;
}

export function errorPart(found) {
  return [
    h("h2", {}, "From array to output"),
    h(
      "p",
      { class: "note" },
      "An error of keys moves scores and softmax weights; one of values goes straight into the sum. No line stands in for another.",
    ),
    table(
      "Errors of arrays, scores, softmax weights and outputs",
      [
        ["compared with float64", (row) => row.name],
        ["largest", (row) => figure(row.max_abs, 4), true],
        ["RMSE", (row) => figure(row.rmse), true],
        ["relative", (row) => (row.relative === null ? "no signal" : percent(row.relative)), true],
      ],
      found.figures,
      { kind: "tight" },
    ),
    h("h2", {}, "Error by token"),
    responsive((width) => tokenErrors(found.tokens_error, width)),
    h(
      "p",
      {},
      key("square", "keys", "K"),
      key("square", "values", "V"),
      found.tokens_error.length < found.tokens
        ? h("span", { class: "note" }, "A bar is the worst of neighbouring tokens.")
        : null,
    ),
    fold(
      "tokens",
      "Figures",
      table(
        "RMSE by token",
        [
          ["tokens", (row) => (row.first === row.last ? String(row.first) : `${row.first} to ${row.last}`)],
          ["K", (row) => figure(row.keys), true],
          ["V", (row) => figure(row.values), true],
        ],
        found.tokens_error,
      ),
    ),
  ];
}

export function sidePart(bench, found) {
  const { side } = found;
  const letter = side.name === "keys" ? "K" : "V";
  const swap = h(
    "button",
    {
      type: "button",
      onclick: () => {
        bench.change({ side: side.name === "keys" ? "values" : "keys" });
      },
    },
    `Show ${letter === "K" ? "V" : "K"} instead`,
  );
  const parts = [h("h2", {}, `Codes of ${letter}`), h("div", { class: "buttons" }, swap)];
  if (side.codes === null && side.raw === null)
    parts.push(h("p", { class: "note" }, "No token is stored as codes: all are in the windows."));
  else if (side.codes === null && !side.raw) parts.push(h("p", { class: "note" }, "No token is stored as codes."));
  else if (side.codes === null) {
    parts.push(
      h("p", { class: "note" }, `Method ${side.method} stores no codes of an integer grid. Its first bytes:`),
      h("pre", {}, side.raw),
    );
  } else {
    parts.push(
      h(
        "p",
        {},
        `${whole(side.levels_used)} of ${whole(side.levels)} codes are used`,
        side.rows_with_changed_codes === null
          ? "."
          : `; the enlarged element changed codes in ${whole(side.rows_with_changed_codes)} of ${whole(side.coded_tokens)} rows.`,
      ),
      responsive((width) => histogram(side.histogram, width, `Codes of ${letter}`)),
      codeTable(side, letter),
    );
  }
  parts.push(h("h2", {}, `Scales of ${letter}`));
  if (side.scales === null) parts.push(h("p", { class: "note" }, "No scale is stored beside these codes."));
  else {
    const { scales } = side;
    parts.push(
      h(
        "p",
        {},
        `${whole(scales.count)} in ${scales.dtype}, from ${figure(scales.smallest, 4)} to ${figure(scales.largest, 4)}.`,
        scales.changed === null ? "" : ` The enlarged element changed ${whole(scales.changed)}.`,
      ),
      fold(
        "scales",
        scales.shown_every === 1 ? "All scales" : `Each ${scales.shown_every}th scale`,
        h("pre", {}, scales.shown.map((value) => figure(value, 4)).join("  ")),
      ),
    );
  }
  return parts;
}

// The first codes; a stronger colour is a larger magnitude on the grid.
function codeTable(side, letter) {
  const middle = side.lowest < 0 ? 0 : (side.lowest + side.highest) / 2;
  const level = (code) => Math.min(5, Math.ceil((5 * Math.abs(code - middle)) / (side.highest - middle)));
  const rows = side.codes.map((codes, index) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `token ${side.first_coded_token + index}`),
      codes.map((code, channel) =>
        h(
          "td",
          {
            class: `l${level(code)}`,
            title: `${letter}[${side.first_coded_token + index}, ${channel}] = ${figure(side.values[index]?.[channel], 5)}`,
          },
          String(code).replace("-", "−"),
        ),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `First codes of ${letter}` },
    h(
      "table",
      { class: "codes" },
      h("caption", { class: "visually-hidden" }, `First codes of ${letter}`),
      h("tbody", {}, rows),
    ),
  );
}
