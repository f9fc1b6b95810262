// Other margins for the same rows. Whoever tries bounds until one fits finds one, so each answer is marked post hoc.

import { h, post, problem, table } from "./dom.js";
import { outcomeMark } from "./packs_room.js";

export function otherMargins(pack) {
  const place = h("div", { role: "status" });
  const inputs = pack.bounds.map((bound, index) => ({
    bound,
    input: h("input", { id: `bound-${index}`, type: "number", step: "any", value: String(bound.value) }),
  }));
  const button = h("button", { type: "submit", class: "main", id: "judge-again" }, "Judge again");
  const submit = async (event) => {
    event.preventDefault();
    const bounds = {};
    for (const { bound, input } of inputs) {
      if (input.value !== "" && Number(input.value) !== bound.value) bounds[bound.path] = Number(input.value);
    }
    button.disabled = true;
    place.replaceChildren(h("p", { class: "note" }, "Judging the rows again."));
    try {
      place.replaceChildren(answer(await post(`api/packs/${pack.number}/judge`, { bounds })));
    } catch (error) {
      place.replaceChildren(problem(error));
    }
    button.disabled = false;
  };
  const restore = () => {
    for (const { bound, input } of inputs) input.value = String(bound.value);
    place.replaceChildren();
  };
  return h(
    "section",
    {},
    h("h2", {}, "With other margins"),
    h(
      "p",
      {},
      "What would these rows have decided under other bounds? The answer is ",
      h("strong", {}, "after the fact"),
      ": the bounds were not fixed before the run, so it is no evidence for a claim.",
    ),
    inputs.length
      ? h(
          "form",
          { onsubmit: submit },
          h(
            "div",
            { class: "bounds-form" },
            inputs.map(({ bound, input }) => h("div", {}, h("label", { for: input.id }, bound.path), input)),
          ),
          h(
            "div",
            { class: "buttons" },
            button,
            h("button", { type: "button", onclick: restore }, "The contract's own"),
          ),
        )
      : h("p", {}, "The contract has no bound that could be changed."),
    place,
  );
}

function answer(found) {
  return h(
    "div",
    { class: "post-hoc" },
    h(
      "p",
      {},
      h("span", { class: "stamp" }, "POST HOC"),
      ` ${found.outcome.replaceAll("_", " ")}; the run was ${found.before.replaceAll("_", " ")}. ${found.sentence}.`,
    ),
    found.changed.length
      ? table(
          "Changed bounds",
          [
            ["key", (each) => h("code", {}, each.key)],
            ["in the pack", (each) => String(each.pack), true],
            ["now", (each) => String(each.now), true],
          ],
          found.changed,
          { kind: "small" },
        )
      : h("p", {}, "No bound was changed."),
    table(
      "Verdicts after the fact",
      [
        ["format", (row) => h("code", {}, row.arm)],
        ["in the pack", (row) => outcomeMark(row.before)],
        ["post hoc", (row) => outcomeMark(row.after)],
        ["why", (row) => row.reason],
      ],
      found.formats.filter((row) => row.role === "candidate"),
      { kind: "small" },
    ),
  );
}
