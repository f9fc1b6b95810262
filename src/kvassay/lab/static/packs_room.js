// Room 4: evidence packs. The answer first, then what it rests on.

import { link, remember } from "./address.js";
import { dots, ownerBars, ownerKeys, key } from "./charts.js";
import { details, figure, get, h, labelled, problem, responsive, select, table, verdict, whole } from "./dom.js";
import { comparison } from "./packs_compare.js";
import { otherMargins } from "./packs_margins.js";
import { rowBrowser } from "./packs_rows.js";

export const TITLE = "Packs";

export async function enter(holder, view) {
  holder.append(
    h(
      "section",
      {},
      h("h1", {}, "Evidence packs"),
      h("p", { class: "note", role: "status" }, "Reading and hashing the packs."),
    ),
  );
  const shelf = await get("api/packs");
  if (!holder.isConnected) return;
  if (!view.pack) {
    holder.replaceChildren(shelfPart(shelf));
    return;
  }
  const pack = await get(`api/packs/${encodeURIComponent(view.pack)}`);
  if (!holder.isConnected) return;
  const holderOfComparison = h("div");
  holder.replaceChildren(
    ...answerPart(pack, shelf, view, holderOfComparison),
    holderOfComparison,
    clausePart(pack, view),
    chartPart(pack),
    rowBrowser(pack, view),
    otherMargins(pack),
    h(
      "section",
      {},
      h("h2", {}, "What this pack does not prove"),
      pack.limits.map((scope) =>
        details(
          scope.heading,
          h(
            "ul",
            {},
            scope.sentences.map((line) => h("li", {}, line)),
          ),
        ),
      ),
    ),
  );
  if (view.with) await comparison(holderOfComparison, view.pack, view.with);
}

const OUTCOMES = {
  met: { css: "met", symbol: "✓", outcome: "MET" },
  breached: { css: "breached", symbol: "✕", outcome: "BREACHED" },
  inconclusive: { css: "inconclusive", symbol: "?", outcome: "INCONCLUSIVE" },
  not_measured: { css: "unmeasured", symbol: "–", outcome: "NOT MEASURED" },
  invalid_evidence: { css: "invalid", symbol: "!", outcome: "INVALID" },
};

export function outcomeMark(outcome) {
  return verdict(OUTCOMES[outcome]);
}

function shelfPart(shelf) {
  const sound = shelf.packs.filter((pack) => !pack.error);
  const broken = shelf.packs.filter((pack) => pack.error);
  return h(
    "section",
    {},
    h("h1", {}, "Evidence packs"),
    h(
      "p",
      { class: "note" },
      "In ",
      h("code", {}, shelf.folder),
      ", two levels deep, newest first. Every file of a pack was hashed before it is shown.",
    ),
    sound.length
      ? table(
          "Packs",
          [
            ["pack", (pack) => h("a", { href: link("packs", { pack: pack.number }) }, pack.name)],
            ["outcome", (pack) => outcomeMark(pack.outcome)],
            ["contract", (pack) => pack.contract],
            ["model", (pack) => pack.model],
            ["formats", (pack) => whole(pack.formats), true],
            ["root", (pack) => h("code", {}, pack.root)],
          ],
          sound,
        )
      : h(
          "p",
          {},
          "No pack is here. ",
          h("code", {}, "kvassay assess MODEL --contract CONTRACT"),
          " writes one; ",
          h("code", {}, "kvassay lab --packs FOLDER"),
          " names the folder to look in.",
        ),
    broken.map((pack) => h("p", { class: "error" }, `${pack.name}: ${pack.error}`)),
    shelf.left_out ? h("p", { class: "note" }, `${whole(shelf.left_out)} older packs are left out.`) : null,
  );
}

function answerPart(pack, shelf, view, place) {
  const others = shelf.packs.filter((other) => !other.error && other.number !== pack.number);
  const compare = async (number) => {
    view.with = number;
    remember("packs", view);
    if (number) await comparison(place, pack.number, number);
    else place.replaceChildren();
  };
  return [
    h(
      "section",
      {},
      h("p", { class: "kicker" }, h("a", { href: link("packs", {}) }, "All packs"), ` / ${pack.name}`),
      h("h1", { class: "headline" }, pack.headline),
      h("p", {}, outcomeMark(pack.outcome), ` ${pack.reason}`),
      table(
        "Candidates, smallest first",
        [
          ["format", (row) => h("code", {}, row.arm)],
          ["verdict", (row) => verdict(row)],
          ["stored bits per value", (row) => row.stored_bits, true],
          ["of 16 bit", (row) => row.share, true],
          ["why", (row) => row.reason],
        ],
        pack.answer,
      ),
      h(
        "p",
        { class: "note" },
        `${pack.model}, contract “${pack.contract}” (`,
        h("code", {}, pack.contract_sha256.slice(0, 12)),
        "), root ",
        h("code", {}, pack.root.slice(0, 12)),
        ". ",
        h("a", { href: `packs/${pack.number}/report.html`, target: "_blank", rel: "noopener" }, "Its report"),
        ".",
      ),
      others.length
        ? h(
            "div",
            { class: "filters" },
            labelled(
              "Compare with",
              select(
                "compare-with",
                view.with ?? "",
                [["", "no other pack"], ...others.map((other) => [other.number, other.name])],
                compare,
              ),
            ),
          )
        : h("p", { class: "note" }, "There is no second pack here to compare with."),
    ),
  ];
}

function clausePart(pack, view) {
  const list = h("div");
  const note = h("p", { class: "note", role: "status" });
  const shown = {
    verdict: view.verdict ?? "",
    role: view.role ?? "candidate",
    find: view.find ?? "",
    weight: view.weight ?? "",
  };
  const draw = () => {
    remember("packs", Object.assign(view, { ...shown, role: shown.role === "candidate" ? "" : shown.role }));
    const rows = pack.clauses.filter(
      (clause) =>
        (!shown.verdict || clause.outcome === shown.verdict) &&
        (shown.role === "all" || clause.role === shown.role) &&
        (shown.weight === "all" || !clause.descriptive) &&
        (!shown.find ||
          `${clause.arm} ${clause.clause} ${clause.slice}`.toLowerCase().includes(shown.find.toLowerCase())),
    );
    note.textContent = `${rows.length} of ${pack.clauses.length} clauses.`;
    list.replaceChildren(rows.length ? clauseTable(rows) : h("p", {}, "No clause is like that."));
  };
  const pick = (name, words, options) =>
    labelled(
      words,
      select(`clause-${name}`, shown[name], options, (value) => {
        shown[name] = value;
        draw();
      }),
    );
  const section = h(
    "section",
    {},
    h("h2", {}, "Clauses"),
    h(
      "div",
      { class: "filters" },
      pick("verdict", "Verdict", [["", "all"], ...Object.values(OUTCOMES).map((mark) => [mark.outcome, mark.outcome])]),
      pick("role", "Formats", [
        ["candidate", "candidates"],
        ["canary", "canary"],
        ["reference_again", "reference again"],
        ["all", "all"],
      ]),
      pick("weight", "Weight", [
        ["", "those that decide"],
        ["all", "and those that describe"],
      ]),
      labelled(
        "Format, clause or slice holds",
        h("input", {
          id: "clause-find",
          value: shown.find,
          maxlength: "200",
          autocomplete: "off",
          oninput: (event) => {
            shown.find = event.target.value;
            draw();
          },
        }),
      ),
    ),
    note,
    list,
    h("h3", {}, "Controls of the run"),
    pack.controls.length
      ? h(
          "ul",
          { class: "controls" },
          pack.controls.map((control) =>
            h(
              "li",
              {},
              h(
                "span",
                { class: `verdict ${control.passed === null ? "unmeasured" : control.passed ? "met" : "breached"}` },
                control.passed === null ? "– NOT RUN" : control.passed ? "✓ PASSED" : "✕ FAILED",
              ),
              ` ${control.name}: ${control.reason}`,
            ),
          ),
        )
      : h("p", {}, "No control is recorded."),
  );
  draw();
  return section;
}

export function clauseTable(rows) {
  return table(
    "Clauses",
    [
      ["format", (row) => h("code", {}, row.arm)],
      [
        "verdict",
        (row) => h("span", {}, verdict(row), row.descriptive ? h("span", { class: "note" }, " describes") : null),
      ],
      ["clause", (row) => (row.slice === "all" ? row.clause : `${row.clause} [${row.slice}]`)],
      ["estimate", (row) => figure(row.estimate), true],
      ["lower", (row) => figure(row.lower, 3, "none"), true],
      ["upper", (row) => figure(row.upper, 3, "none"), true],
      ["limit", (row) => figure(row.limit, 6), true],
      ["n", (row) => `${whole(row.n)} ${row.n_unit}`, true],
    ],
    rows,
    { kind: "small" },
  );
}

function chartPart(pack) {
  const found = pack.charts["bytes-against-loss"];
  const bytes = pack.charts["bytes-by-owner"];
  const slices = pack.charts["kl-by-slice"];
  const parts = [];
  if (found) {
    const limit =
      pack.clauses.find((clause) => clause.clause === "fidelity.kl_mean" && clause.slice === "all")?.limit ?? null;
    const rows = [...found.rows]
      .sort((one, other) => one.stored_bits - other.stored_bits)
      .map((row) => ({
        name: `${row.arm}, ${figure(row.stored_bits, 4)} bits`,
        value: row.kl_mean_nats,
        low: row.lower_nats,
        high: row.upper_nats,
        css: cssOf(row.outcome),
        shape: row.outcome === "MET" ? "circle" : row.outcome === "BREACHED" ? "square" : "diamond",
      }));
    parts.push(
      h("h3", {}, "Loss, smallest cache first"),
      h(
        "p",
        {},
        key("circle", "met", "met"),
        key("square", "breached", "breached"),
        key("diamond", "inconclusive", "neither"),
      ),
      responsive((width) =>
        dots(rows, width, {
          title: found.title,
          description: found.description,
          limit,
          unit: "mean KL, nats per token (log scale)",
        }),
      ),
      figures(found),
    );
  }
  if (bytes) {
    const rows = stacks(bytes.rows);
    const owners = [...new Set(bytes.rows.filter((row) => row.part === "persistent").map((row) => row.key))];
    parts.push(
      h("h3", {}, "Bytes per token by owner"),
      responsive((width) => ownerBars(rows, width, { title: bytes.title, description: bytes.description })),
      ownerKeys(owners),
      figures(bytes),
    );
  }
  if (slices) {
    const rows = slices.rows.map((row) => ({
      name: `${row.arm}: ${row.slice}`,
      value: row.kl_mean_nats,
      low: row.lower_nats,
      high: row.upper_nats,
    }));
    parts.push(
      h("h3", {}, slices.title),
      responsive((width) =>
        dots(rows, width, {
          title: slices.title,
          description: slices.description,
          unit: "mean KL, nats per token (log scale)",
        }),
      ),
      figures(slices),
    );
  }
  return parts.length
    ? h("section", {}, h("h2", {}, "Loss and bytes"), ...parts)
    : h("section", {}, h("h2", {}, "Loss and bytes"), h("p", {}, "This pack has no rows that a chart could show."));
}

function stacks(rows) {
  const found = new Map();
  for (const row of rows.filter((each) => each.part === "persistent")) {
    const parts = found.get(row.arm) ?? {};
    parts[row.key] = row.nbytes_per_token;
    found.set(row.arm, parts);
  }
  return [...found].map(([name, parts]) => ({ name, parts }));
}

function cssOf(word) {
  return Object.values(OUTCOMES).find((mark) => mark.outcome === word)?.css ?? "unmeasured";
}

function figures(chart) {
  const columns = chart.columns.map(([field, heading]) => [
    heading,
    (row) => (typeof row[field] === "number" ? figure(row[field], 4) : (row[field] ?? "not measured")),
    typeof chart.rows[0]?.[field] === "number",
  ]);
  return details(
    `Figures${chart.left_out ? `, the first ${chart.rows.length}` : ""}`,
    h("p", { class: "note" }, chart.description),
    table(chart.title, columns, chart.rows, { kind: "small" }),
  );
}
