// The worst of the 36 rows taken apart: what its codes show, and what else could have been stored.

import { link } from "./address.js";
import { figure, h, percent, table, whole } from "./dom.js";

export function worstCell(found) {
  const { worst } = found;
  const [tensor, row, channel, exact] = worst.ways;
  const outliers = worst.codes;
  return h(
    "section",
    {},
    h("h2", {}, "Why a scale a row does not help here"),
    h(
      "ol",
      { class: "steps" },
      h(
        "li",
        {},
        `A scale a row isolates the other rows: the RMSE of K falls ${figure(worst.fold, 2)}-fold, from ${figure(tensor.keys_rmse)} to ${figure(row.keys_rmse)}. Below, row 1 has ${whole(worst.levels_used_in_other_rows.row)} codes to choose from in place of ${whole(worst.levels_used_in_other_rows.tensor)}.`,
      ),
      h(
        "li",
        {},
        `It does not isolate the outlier inside its row. The outlier sets the scale of row 0 exactly as it set the scale of the tensor (${figure(worst.row_scales[0], 4)} and ${figure(worst.tensor_scale, 4)}), so row 0 keeps the same codes: ${whole(worst.equal_codes_in_row_0)} of ${whole(worst.width)} are equal.`,
      ),
      h(
        "li",
        {},
        `The score of row 0 is what moves the output. With K alone replaced the error is ${figure(row.output_keys_only_max_abs, 5)}, with V alone ${figure(row.output_values_only_max_abs)}. So the output error goes from ${figure(tensor.output_max_abs)} to ${figure(row.output_max_abs)}, up, while the array error fell.`,
      ),
      h(
        "li",
        {},
        `A scale a channel for K puts the outlier's channel apart and leaves ${figure(channel.output_max_abs)}, which is the share of V. Row 0 kept exact leaves ${figure(exact.output_max_abs)}, for ${whole(exact.stored_nbytes - row.stored_nbytes)} bytes more.`,
      ),
    ),
    codeRows("Row 0, which holds the outlier", outliers["row 0"]),
    codeRows("Row 1", outliers["row 1"]),
    table(
      "Ways to store the worst cell",
      [
        ["stored with", (way) => way.title],
        ["output error", (way) => figure(way.output_max_abs, 4), true],
        ["relative", (way) => percent(way.output_relative), true],
        ["K alone", (way) => figure(way.output_keys_only_max_abs, 4), true],
        ["V alone", (way) => figure(way.output_values_only_max_abs, 4), true],
        ["RMSE of K", (way) => figure(way.keys_rmse), true],
        ["bytes", (way) => whole(way.stored_nbytes), true],
      ],
      worst.ways,
    ),
    h("p", {}, h("a", { href: bench(found.rows[0]) }, "Open this cell on the bench")),
  );
}

function codeRows(title, rows) {
  const lines = [
    ["one scale a tensor", rows.tensor],
    ["one scale a row", rows.row],
  ];
  const most = 127;
  return h(
    "div",
    {},
    h("h3", {}, `${title}: its first codes of K`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Codes of ${title}` },
      h(
        "table",
        { class: "codes" },
        h("caption", { class: "visually-hidden" }, `Codes of ${title}`),
        h(
          "tbody",
          {},
          lines.map(([name, codes]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, name),
              codes.map((code) =>
                h("td", { class: `l${Math.ceil((5 * Math.abs(code)) / most)}` }, String(code).replace("-", "−")),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

// Where the bench shows the same arrays and the same format.
export function bench(row) {
  const scales = row.quantizer === "int8-tensor" ? "tensor" : "token-head";
  return link("bytes", {
    seed: row.seed,
    tokens: row.n_tokens,
    outlier: row.input === "outlier40" ? 40 : 1,
    key_scales: scales,
    value_scales: scales,
  });
}
