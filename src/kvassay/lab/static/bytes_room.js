// Room 1: the real quantizer at every move of a slider.

import { link, remember } from "./address.js";
import { controls, DEFAULTS } from "./bench_controls.js";
import { answer, bytesPart, errorPart, named, sidePart } from "./bench_results.js";
import { figure, get, h, post, problem, whole } from "./dom.js";
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
