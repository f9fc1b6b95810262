// Room 2: the 36 rows, worst first, and why the finer scale does not help in the worst of them.

import { link, remember } from "./address.js";
import { dots, key } from "./charts.js";
import { details, figure, get, h, labelled, percent, post, problem, responsive, select, table, whole } from "./dom.js";
import { bench, worstCell } from "./experiment_worst.js";

export const TITLE = "36 rows";

const WORDS = {
  "int8-tensor": "one scale a tensor",
  "int8-token-head": "one scale a row",
  normal: "normal",
  outlier40: "40×",
};

export async function enter(holder, given) {
  holder.append(
    h(
      "section",
      {},
      h("h1", {}, "Int8 keys and values: 36 rows"),
      h(
        "p",
        { class: "note", role: "status" },
        "Computing the 36 rows with the codecs of this library; a few seconds.",
      ),
    ),
  );
  const found = await get("api/experiment");
  if (!holder.isConnected) return;
  const worst = found.rows[0];
  holder.replaceChildren(
    h(
      "section",
      {},
      h(
        "h1",
        {},
        `The worst of ${found.rows.length} rows is wrong by ${figure(worst.output_max_abs, 4)}, with the finer scales`,
      ),
      h(
        "p",
        { class: "lead" },
        `Seed ${worst.seed}, ${whole(worst.n_tokens)} tokens, one element of K and of V enlarged 40-fold, ${WORDS[worst.quantizer]}. The largest reference output is ${figure(worst.reference_max_abs)}.`,
      ),
      h("p", { class: "note" }, found.label),
    ),
    worstCell(found),
    allRows(found, given),
    bytesTable(found),
    exercise(found),
    audit(),
    h(
      "section",
      {},
      h("h2", {}, "What none of it proves"),
      h(
        "ul",
        {},
        [...found.not_proven, ...found.exclusions].map((line) => h("li", {}, line)),
      ),
    ),
  );
}

function allRows(found, given) {
  const view = { input: "", quantizer: "", seed: "", n: "", ...given };
  const plot = responsive(() => h("p"));
  const list = h("div");
  const note = h("p", { class: "note", role: "status" });
  const keep = (row) =>
    (!view.input || row.input === view.input) &&
    (!view.quantizer || row.quantizer === view.quantizer) &&
    (!view.seed || String(row.seed) === view.seed) &&
    (!view.n || String(row.n_tokens) === view.n);
  const draw = () => {
    const rows = found.rows.filter(keep);
    remember("experiment", view);
    note.textContent = `${rows.length} of ${found.rows.length} rows, worst first.`;
    plot.redraw((width) =>
      dots(cells(rows), width, {
        title: "Output error of the rows shown",
        description:
          "One line a cell: its largest absolute output error with one scale a tensor and with one scale a row, on a logarithmic axis.",
        unit: "largest output error (log scale)",
      }),
    );
    list.replaceChildren(rowTable(rows));
  };
  const pick = (name, words, options) =>
    labelled(
      words,
      select(`filter-${name}`, view[name], [["", "all"], ...options], (value) => {
        view[name] = value;
        draw();
      }),
    );
  const section = h(
    "section",
    {},
    h("h2", {}, "All rows"),
    h(
      "div",
      { class: "filters" },
      pick("input", "Input", [
        ["normal", "normal"],
        ["outlier40", "40×"],
      ]),
      pick("quantizer", "Scales", [
        ["int8-tensor", WORDS["int8-tensor"]],
        ["int8-token-head", WORDS["int8-token-head"]],
      ]),
      pick(
        "seed",
        "Seed",
        ["7", "19", "41"].map((seed) => [seed, seed]),
      ),
      pick(
        "n",
        "Tokens",
        ["64", "256", "1024"].map((count) => [count, count]),
      ),
    ),
    note,
    list,
    h("h3", {}, "The same as a chart"),
    h("p", {}, key("circle", "tensor", "one scale a tensor"), key("diamond", "row", "one scale a row")),
    plot,
  );
  draw();
  return section;
}

function cells(rows) {
  const found = new Map();
  for (const row of rows) {
    const name = `seed ${row.seed}, N = ${row.n_tokens}, ${WORDS[row.input]}`;
    const cell = found.get(name) ?? { name, value: row.output_max_abs, low: null, high: null, dots: [] };
    cell.dots.push({
      value: row.output_max_abs,
      css: row.quantizer === "int8-tensor" ? "tensor" : "row",
      shape: row.quantizer === "int8-tensor" ? "circle" : "diamond",
    });
    found.set(name, cell);
  }
  for (const cell of found.values())
    [cell.low, cell.high] = [
      Math.min(...cell.dots.map((dot) => dot.value)),
      Math.max(...cell.dots.map((dot) => dot.value)),
    ];
  return [...found.values()];
}

function rowTable(rows) {
  return table(
    "Rows of the experiment",
    [
      ["cell", (row) => h("a", { href: bench(row) }, `seed ${row.seed}, N = ${row.n_tokens}, ${WORDS[row.input]}`)],
      ["output error", (row) => figure(row.output_max_abs, 4), true],
      ["scales", (row) => WORDS[row.quantizer]],
      ["relative", (row) => percent(row.output_relative), true],
      ["K alone", (row) => figure(row.output_keys_only_max_abs), true],
      ["V alone", (row) => figure(row.output_values_only_max_abs), true],
      ["score", (row) => figure(row.score_max_abs), true],
      ["weight", (row) => figure(row.weight_max_abs), true],
      ["RMSE of K", (row) => figure(row.keys_rmse), true],
      ["RMSE of V", (row) => figure(row.values_rmse), true],
      ["bytes", (row) => whole(row.stored_nbytes), true],
    ],
    rows,
    { kind: "small" },
  );
}

function bytesTable(found) {
  return h(
    "section",
    {},
    h("h2", {}, "“Fourfold” leaves the scales out"),
    h(
      "p",
      {},
      "Codes alone are four times smaller than float32. With the scales that they cannot be read without, at one a row of 32, it is ",
      h(
        "strong",
        {},
        `${figure(found.bytes.find((row) => row.quantizer === "int8-token-head").float32_over_stored, 4)} times`,
      ),
      ", and against a 16-bit cache half of that.",
    ),
    table(
      "Bytes summed from the stored arrays",
      [
        ["N", (row) => whole(row.n_tokens)],
        ["scales", (row) => WORDS[row.quantizer]],
        ["K codes", (row) => whole(row.keys_codes_nbytes), true],
        ["K scales", (row) => whole(row.keys_scales_nbytes), true],
        ["V codes", (row) => whole(row.values_codes_nbytes), true],
        ["V scales", (row) => whole(row.values_scales_nbytes), true],
        ["stored", (row) => whole(row.stored_nbytes), true],
        ["float32", (row) => whole(row.float32_nbytes), true],
        ["times smaller", (row) => figure(row.float32_over_stored, 4), true],
        ["saved of float32", (row) => `${figure(row.saved_of_float32_percent, 5)}%`, true],
        ["saved of 16 bit", (row) => `${figure(row.saved_of_float16_percent, 5)}%`, true],
      ],
      found.bytes,
      { kind: "small" },
    ),
    details(
      "Variants of the 40× input",
      table(
        "Variants",
        [
          ["variant", (row) => row.title],
          ["seed", (row) => String(row.seed), true],
          ["N", (row) => whole(row.n_tokens), true],
          ["output error", (row) => figure(row.output_max_abs, 4), true],
          ["K alone", (row) => figure(row.output_keys_only_max_abs, 4), true],
          ["clipped", (row) => whole(row.keys_clipped + row.values_clipped), true],
          ["bytes", (row) => whole(row.stored_nbytes), true],
        ],
        found.variants,
        { kind: "small" },
      ),
    ),
  );
}

function exercise(found) {
  return h(
    "section",
    {},
    h("h2", {}, "The exercise: which scales change"),
    h(
      "p",
      {},
      "K of 64 rows; element [0, 0] becomes 40, from zeros, or 40 times itself. ",
      h("a", { href: link("bytes", { tour: 1 }) }, "Walk through it on the bench"),
      ".",
    ),
    table(
      "Exercise",
      [
        ["start", (row) => row.start],
        ["scales", (row) => WORDS[row.quantizer]],
        ["number", (row) => whole(row.scales), true],
        ["changed", (row) => whole(row.scales_changed), true],
        ["first before", (row) => figure(row.first_scale_before, 4), true],
        ["first after", (row) => figure(row.first_scale_after, 4), true],
        ["last after", (row) => figure(row.last_scale_after, 4), true],
        ["rows with changed codes", (row) => whole(row.rows_with_changed_codes), true],
      ],
      found.exercise,
      { kind: "small" },
    ),
  );
}

function audit() {
  const place = h("div", { role: "status" });
  const button = h(
    "button",
    {
      type: "button",
      class: "main",
      id: "audit",
      onclick: async () => {
        button.disabled = true;
        place.replaceChildren(h("p", { class: "note" }, "Writing a fresh folder and recomputing it; a few seconds."));
        try {
          const found = await post("api/experiment/audit");
          place.replaceChildren(
            h(
              "p",
              {},
              h(
                "span",
                { class: `verdict ${found.passed ? "met" : "breached"}` },
                found.passed ? "✓ VERIFIED" : "✕ NOT VERIFIED",
              ),
              ` ${found.checks.filter((check) => check.passed).length} of ${found.checks.length} checks passed, root `,
              h("code", {}, found.root.slice(0, 12)),
            ),
            details(
              "Checks",
              table(
                "Checks of the audit",
                [
                  ["check", (check) => check.name],
                  ["passed", (check) => (check.passed ? "yes" : "no")],
                  ["found", (check) => check.sentence],
                ],
                found.checks,
                { kind: "small" },
              ),
            ),
          );
        } catch (error) {
          place.replaceChildren(problem(error));
        }
        button.disabled = false;
      },
    },
    "Run it again and audit it",
  );
  return h(
    "section",
    {},
    h("h2", {}, "Do not take our word"),
    h(
      "p",
      {},
      "The audit imports no torch: NumPy written from the formulas recomputes codes bit for bit and every figure to 10⁻¹². ",
      h("code", {}, "kvassay experiment attention-error --out DIR"),
      " keeps such a folder, and ",
      h("code", {}, "kvassay verify DIR"),
      " audits it.",
    ),
    h("div", { class: "buttons" }, button),
    place,
  );
}
