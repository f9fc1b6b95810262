// The raw rows of a pack, worst first, filtered and a page at a time.

import { remember } from "./address.js";
import { figure, get, h, labelled, problem, select, table, whole } from "./dom.js";

export function rowBrowser(pack, view) {
  if (!pack.tables.length) return h("section", {}, h("h2", {}, "Rows"), h("p", {}, "This pack has no rows."));
  const names = pack.tables.map((each) => each.table);
  const shown = {
    table: names.includes(view.table) ? view.table : names[0],
    arm: view.arm ?? "",
    text: view.text ?? "",
    sort: view.sort ?? "",
    falling: view.falling ?? "true",
    offset: Number(view.offset ?? 0) || 0,
  };
  const filters = h("div", { class: "filters" });
  const place = h("div");
  const load = async (changes = {}) => {
    Object.assign(shown, { offset: 0 }, changes);
    remember(
      "packs",
      Object.assign(view, {
        ...shown,
        offset: shown.offset || "",
        falling: shown.falling === "true" ? "" : shown.falling,
      }),
    );
    try {
      const found = await get(`api/packs/${pack.number}/rows`, shown);
      place.replaceChildren(page(found, load));
    } catch (error) {
      place.replaceChildren(problem(error));
    }
  };
  const drawFilters = () => {
    const own = pack.tables.find((each) => each.table === shown.table);
    filters.replaceChildren(
      labelled(
        "Table",
        select(
          "rows-table",
          shown.table,
          pack.tables.map((each) => [each.table, `${each.table}, ${whole(each.rows)} rows`]),
          (value) => {
            load({ table: value, arm: "", sort: "" });
            drawFilters();
            document.getElementById("rows-table").focus();
          },
        ),
      ),
      labelled(
        "Format",
        select("rows-arm", shown.arm, [["", "all"], ...own.arms.map((arm) => [arm, arm])], (value) =>
          load({ arm: value }),
        ),
      ),
      labelled(
        "Sorted by",
        select(
          "rows-sort",
          shown.sort,
          [["", `${own.sort}, worst first`], ...own.columns.map((column) => [column, column])],
          (value) => load({ sort: value }),
        ),
      ),
      labelled(
        "Order",
        select(
          "rows-order",
          shown.falling,
          [
            ["true", "largest first"],
            ["false", "smallest first"],
          ],
          (value) => load({ falling: value }),
        ),
      ),
      labelled(
        "Some text of the row holds",
        h("input", {
          id: "rows-text",
          value: shown.text,
          maxlength: "200",
          autocomplete: "off",
          onchange: (event) => load({ text: event.target.value }),
        }),
      ),
    );
  };
  drawFilters();
  load({ offset: shown.offset });
  return h(
    "section",
    {},
    h("h2", {}, "Rows"),
    h(
      "p",
      { class: "note" },
      "What was measured, one row a position, item or cell; a verdict is computed from these alone. “Order” holds for a column of your choice.",
    ),
    filters,
    place,
  );
}

function page(found, load) {
  const last = Math.min(found.offset + found.rows.length, found.total);
  const columns = found.columns.map((name, index) => [
    name,
    (row) => cell(row[index]),
    typeof found.rows[0]?.[index] === "number",
  ]);
  return h(
    "div",
    {},
    h(
      "p",
      { class: "note", role: "status" },
      found.total
        ? `Rows ${whole(found.offset + 1)} to ${whole(last)} of ${whole(found.total)} that match, ${whole(found.of)} in all, by ${found.sort}.`
        : `None of ${whole(found.of)} rows matches.`,
    ),
    found.rows.length
      ? table(`Rows of ${found.table}`, columns, found.rows, { kind: "small rows-table", rowHeader: false })
      : null,
    h(
      "div",
      { class: "buttons" },
      h(
        "button",
        {
          type: "button",
          disabled: found.offset === 0,
          onclick: () => load({ offset: Math.max(0, found.offset - found.page_rows) }),
        },
        "Rows before",
      ),
      h(
        "button",
        {
          type: "button",
          disabled: last >= found.total,
          onclick: () => load({ offset: found.offset + found.page_rows }),
        },
        "Rows after",
      ),
    ),
  );
}

function cell(value) {
  if (value === null) return "not measured";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : figure(value, 5);
  return typeof value === "boolean" ? (value ? "yes" : "no") : value;
}
