// Two packs side by side. A comparison decides nothing.

import { figure, get, h, problem, table } from "./dom.js";
import { outcomeMark } from "./packs_room.js";

export async function comparison(place, first, second) {
  place.replaceChildren(h("section", {}, h("p", { class: "note", role: "status" }, "Comparing.")));
  try {
    place.replaceChildren(part(await get("api/compare", { first, second })));
  } catch (error) {
    place.replaceChildren(h("section", {}, problem(error)));
  }
}

function part(found) {
  const rows = found.formats.flatMap((format) =>
    format.clauses.filter((clause) => !descriptive(clause)).map((clause) => ({ format, clause })),
  );
  return h(
    "section",
    { id: "comparison" },
    h("h2", {}, "Compared"),
    h(
      "p",
      {},
      "First ",
      h("strong", {}, found.first),
      ", second ",
      h("strong", {}, found.second),
      ". Differences are second minus first; a comparison decides nothing.",
    ),
    same("contract", found.contract_differences),
    same("model", found.model_differences),
    rows.length
      ? table(
          "Clauses of both packs",
          [
            ["format", ({ format }) => h("code", {}, format.arm)],
            [
              "verdicts",
              ({ format }) =>
                format.first === format.second
                  ? outcomeMark(format.first)
                  : h("span", {}, outcomeMark(format.first), " → ", outcomeMark(format.second)),
            ],
            ["clause", ({ clause }) => (clause.slice === "all" ? clause.clause : `${clause.clause} [${clause.slice}]`)],
            ["first", ({ clause }) => figure(clause.first?.estimate), true],
            ["second", ({ clause }) => figure(clause.second?.estimate), true],
            [
              "paired difference",
              ({ clause }) => (clause.paired ? figure(clause.paired.estimate) : "not paired"),
              true,
            ],
            [
              "90% interval",
              ({ clause }) =>
                clause.paired
                  ? `${figure(clause.paired.lower, 3, "none")} to ${figure(clause.paired.upper, 3, "none")}`
                  : clause.unpaired,
              false,
            ],
            ["n", ({ clause }) => (clause.paired ? `${clause.paired.n} ${clause.paired.n_unit}` : "–"), true],
          ],
          rows,
          { kind: "small" },
        )
      : h("p", {}, "The packs have no format in common."),
    only("first", found.first_only),
    only("second", found.second_only),
  );
}

function descriptive(clause) {
  return [clause.first, clause.second].every((one) => one === null || one.details.descriptive === true);
}

function same(what, differences) {
  if (!differences.length) return h("p", { class: "note" }, `Same ${what}.`);
  return h(
    "div",
    {},
    h("p", {}, `Other ${what}:`),
    table(
      `Differences of the ${what}`,
      [
        ["key", (each) => h("code", {}, each.path)],
        ["first", (each) => JSON.stringify(each.stored)],
        ["second", (each) => JSON.stringify(each.again)],
      ],
      differences,
      { kind: "small" },
    ),
  );
}

function only(which, names) {
  return names.length ? h("p", { class: "note" }, `Only in the ${which}: ${names.join(", ")}.`) : null;
}
