// Room 1: the real quantizer at every move of a slider.

import { link, remember } from "./address.js";
import { histogram, key, ownerBars, ownerKeys, tokenErrors } from "./charts.js";
import { details, figure, get, h, percent, post, problem, responsive, table, whole } from "./dom.js";
import { controls, DEFAULTS } from "./bench_controls.js";
import { TOUR } from "./tour.js";

export const TITLE = "Bytes and error";

export async function enter(holder, given) {
  const { tour = "", ...settings } = given;
  const view = { ...DEFAULTS, ...settings };
  const status = h("p", { class: "visually-hidden", role: "status" });
  const results = h("div", { class: "results", id: "results" });
  const top = h("div", { class: "answer" });
  const walk = h("div");
  const panel = h("div", { class: "controls-panel" });
  const bench = {
    view,
    tour: TOUR[Number(tour) - 1] ? Number(tour) : 0,
    top,
    results,
    status,
    walk,
    running: false,
    waiting: null,
    shown: null,
  };
  bench.capture = await get("api/capture").catch(() => ({ state: "none", model: "" }));
  bench.change = (changes) => change(bench, changes);
  bench.redrawControls = () => panel.replaceChildren(controls(bench));
  bench.take = () => take(bench);
  bench.redrawControls();
  holder.append(
    h(
      "section",
      {},
      h("h1", {}, "How many bytes, at what error"),
      h(
        "p",
        { class: "lead" },
        "Every move runs kvassay's own codec on two arrays, keys and values of one head, and attention on what it reads back.",
      ),
      walk,
      top,
      h("div", { class: "bench" }, panel, h("div", {}, status, results)),
    ),
  );
  drawTour(bench);
  await run(bench, performance.now());
  let polling = null;
  if (bench.capture.state === "running") polling = setTimeout(() => watch(bench), 700);
  return () => {
    bench.left = true;
    clearTimeout(polling);
  };
}

function change(bench, changes) {
  Object.assign(bench.view, changes);
  save(bench);
  run(bench, performance.now());
}

function save(bench) {
  const kept = Object.fromEntries(
    Object.entries(bench.view).filter(([name, value]) => String(value) !== String(DEFAULTS[name])),
  );
  remember("bytes", { ...kept, tour: bench.tour || "" });
}

// One request at a time; while it runs only the latest position of the sliders waits.
async function run(bench, moved) {
  if (bench.running) {
    bench.waiting = moved;
    return;
  }
  bench.running = true;
  bench.results.classList.add("busy");
  try {
    const found = await get("api/bench", bench.view);
    if (!bench.left) show(bench, found);
  } catch (error) {
    bench.shown = null;
    bench.top.replaceChildren();
    bench.results.replaceChildren(problem(error));
  }
  bench.running = false;
  if (bench.waiting !== null) {
    const next = bench.waiting;
    bench.waiting = null;
    await run(bench, next);
    return;
  }
  bench.results.classList.remove("busy");
  await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
  const spent = performance.now() - moved;
  bench.results.dataset.latencyMs = spent.toFixed(1);
  const drawn = bench.top.querySelector(".drawn-in");
  if (drawn) drawn.textContent = `From the move to the charts: ${figure(spent, 2)} ms.`;
}

const named = (found, name) => found.figures.find((row) => row.name === name);

function show(bench, found) {
  bench.shown = found;
  const open = new Set([...bench.results.querySelectorAll("details[open]")].map((each) => each.dataset.name));
  bench.top.replaceChildren(...answer(found));
  bench.results.replaceChildren(...bytesPart(found), ...errorPart(found), ...sidePart(bench, found));
  for (const each of bench.results.querySelectorAll("details")) each.open = open.has(each.dataset.name);
  const output = named(found, "output");
  bench.status.textContent = `${whole(found.bytes.total)} bytes, ${figure(found.bytes.bits_per_value, 4)} bits per value, output error ${figure(output.max_abs)}`;
  showGuess(bench);
}

function answer(found) {
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

function bytesPart(found) {
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

function errorPart(found) {
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

function sidePart(bench, found) {
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

async function take(bench) {
  try {
    bench.capture = await post("api/capture");
  } catch (error) {
    bench.capture = { state: "failed", model: bench.capture.model, error: error.message };
  }
  bench.redrawControls();
  watch(bench);
}

async function watch(bench) {
  while (!bench.left && bench.capture.state === "running") {
    await new Promise((waited) => setTimeout(waited, 700));
    bench.capture = await get("api/capture").catch((error) => ({ state: "failed", model: "", error: error.message }));
    bench.redrawControls();
  }
  if (!bench.left && bench.capture.state === "done" && bench.view.source === "captured") run(bench, performance.now());
}

function drawTour(bench) {
  const step = TOUR[bench.tour - 1];
  if (!step) {
    bench.walk.replaceChildren(
      h(
        "div",
        { class: "buttons" },
        h(
          "button",
          { type: "button", id: "tour-start", onclick: () => goTo(bench, 1) },
          "Take the guided tour: zeros, then one enlarged element",
        ),
      ),
    );
    return;
  }
  const guess = h("input", { id: "guess", inputmode: "decimal", autocomplete: "off", size: "8" });
  const told = h("p", { class: "told", role: "status" });
  const compare = () => {
    bench.guessed = guess.value.trim();
    showGuess(bench);
  };
  bench.guessed = "";
  bench.told = told;
  bench.walk.replaceChildren(
    h(
      "section",
      { class: "tour", "aria-label": "Guided tour" },
      h("h2", {}, `${bench.tour} of ${TOUR.length}: ${step.title}`),
      h("p", {}, step.text),
      h(
        "form",
        {
          class: "guess",
          onsubmit: (event) => {
            event.preventDefault();
            compare();
          },
        },
        h("label", { for: "guess" }, step.question),
        guess,
        h("button", { type: "submit" }, "Compare"),
      ),
      told,
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", disabled: bench.tour === 1, onclick: () => goTo(bench, bench.tour - 1) }, "Back"),
        h(
          "button",
          {
            type: "button",
            class: "main",
            id: "tour-next",
            disabled: bench.tour === TOUR.length,
            onclick: () => goTo(bench, bench.tour + 1),
          },
          "Next",
        ),
        h("button", { type: "button", onclick: () => goTo(bench, 0) }, "Leave the tour"),
        h("a", { href: link("experiment", {}) }, "All 36 rows"),
      ),
    ),
  );
}

function showGuess(bench) {
  const step = TOUR[bench.tour - 1];
  if (!step || !bench.guessed || !bench.shown) return;
  const guess = Number(bench.guessed.replace(",", "."));
  bench.told.textContent = Number.isFinite(guess)
    ? `Your guess ${figure(guess, 4)}; measured ${figure(step.of(bench.shown), 4)}.`
    : `“${bench.guessed}” is no number; measured ${figure(step.of(bench.shown), 4)}.`;
}

function goTo(bench, number) {
  bench.tour = number;
  if (number) Object.assign(bench.view, DEFAULTS, TOUR[number - 1].view);
  save(bench);
  bench.redrawControls();
  drawTour(bench);
  run(bench, performance.now());
}
