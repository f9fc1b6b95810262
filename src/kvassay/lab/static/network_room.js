// Room 3: one sigmoid unit. The prediction comes before the run, and is compared after it.

import { link, remember } from "./address.js";
import { figure, get, h, problem, s, table } from "./dom.js";

export const TITLE = "One unit";

const BIAS = -0.5;
const START = { x: 1, w: 1 };
const PLAY_MS = 700;
const PLAYED_STEPS = 5;
const sigmoid = (z) => 1 / (1 + Math.exp(-z));
const four = (value) => value.toFixed(4).replace("-", "−");

export async function enter(holder, given) {
  const lab = {
    x: number(given.x, START.x),
    w: number(given.w, START.w),
    t: 0,
    runs: [],
    predicted: null,
    timer: null,
    y: null,
  };
  const places = {
    drawing: h("div"),
    told: h("p", { class: "lead", role: "status", id: "told" }),
    log: h("div"),
    t: h("output", { id: "step" }, "0"),
  };
  const input = (name) =>
    h("input", {
      id: `unit-${name}`,
      type: "number",
      step: "0.05",
      value: String(lab[name]),
      oninput: (event) => edit(lab, places, name, event.target),
    });
  places.x = input("x");
  places.w = input("w");
  places.prediction = h("input", {
    id: "prediction",
    type: "number",
    step: "any",
    min: "0",
    max: "1",
    autocomplete: "off",
    oninput: () => predict(lab, places),
  });
  places.step = h("button", { type: "button", class: "main", id: "do-step", onclick: () => step(lab, places) }, "Step");
  places.play = h("button", { type: "button", id: "do-play", onclick: () => play(lab, places) }, "Play");
  places.reset = h("button", { type: "button", id: "do-reset", onclick: () => reset(lab, places) }, "Reset");
  holder.append(
    h(
      "section",
      {},
      h("h1", {}, "Predict first: how far does a small change go?"),
      h(
        "p",
        { class: "lead" },
        "One unit, y = σ(w·x + b), with b fixed at −0.5. Change w from 1 to 0.95, as a coarser stored number might, and say what y becomes before you run it.",
      ),
      notice(),
      h(
        "div",
        { class: "blackboard" },
        h("div", {}, places.drawing),
        h(
          "div",
          {},
          h(
            "form",
            {
              onsubmit: (event) => {
                event.preventDefault();
                if (!places.step.disabled) step(lab, places);
              },
            },
            h("div", { class: "field" }, h("label", { for: "unit-x" }, "Input x"), places.x),
            h("div", { class: "field" }, h("label", { for: "unit-w" }, "Weight w"), places.w),
            h(
              "div",
              { class: "field" },
              h("label", { for: "unit-b" }, "Bias b"),
              h("input", { id: "unit-b", value: "−0.5", readonly: true, "aria-describedby": "fixed" }),
            ),
            h("p", { class: "note", id: "fixed" }, "b is fixed. An edit keeps t; Reset sets t to 0, x and w to 1."),
            h("div", { class: "field" }, h("label", { for: "prediction" }, "My prediction"), places.prediction),
            h("div", { class: "buttons" }, places.step, places.play, places.reset),
            h(
              "p",
              { class: "note" },
              "t = ",
              places.t,
              ". Step computes once; Play computes five times, once a step, with the same x and w. Both wait for a prediction.",
            ),
          ),
          places.told,
        ),
      ),
      places.log,
    ),
    h("section", {}, h("h2", {}, "Where real quantizers are tested"), await tests()),
  );
  draw(lab, places);
  return () => clearInterval(lab.timer);
}

function notice() {
  return h(
    "p",
    {},
    h("strong", {}, "What this is not: "),
    "no KV quantization happens here, there is no attention, and nothing estimates the quality of a model. It shows one thing: a small change of a stored number moves a nonlinear output by another amount. The real codecs are on ",
    h("a", { href: link("bytes", {}) }, "the bench"),
    ".",
  );
}

function number(text, otherwise) {
  const found = Number(text);
  return text !== undefined && text !== "" && Number.isFinite(found) && Math.abs(found) <= 100 ? found : otherwise;
}

// An edit keeps t and b, and asks for a new prediction.
function edit(lab, places, name, field) {
  stop(lab, places);
  const found = number(field.value, null);
  field.setAttribute("aria-invalid", found === null ? "true" : "false");
  if (found === null) {
    places.told.textContent = `${name} is a number from −100 to 100.`;
    lab.valid = false;
  } else {
    lab[name] = found;
    lab.valid = places.x.getAttribute("aria-invalid") !== "true" && places.w.getAttribute("aria-invalid") !== "true";
    places.told.textContent = "";
    remember("network", { x: lab.x, w: lab.w });
  }
  lab.y = null;
  ask(lab, places);
}

function ask(lab, places) {
  lab.predicted = null;
  places.prediction.value = "";
  draw(lab, places);
}

function predict(lab, places) {
  stop(lab, places);
  const found = Number(places.prediction.value);
  lab.predicted = places.prediction.value !== "" && found >= 0 && found <= 1 ? found : null;
  draw(lab, places);
}

function step(lab, places) {
  advance(lab, places, 1);
  ask(lab, places);
}

function play(lab, places) {
  if (lab.timer !== null) {
    stop(lab, places);
    ask(lab, places);
    return;
  }
  let left = PLAYED_STEPS;
  const once = () => {
    advance(lab, places, left === PLAYED_STEPS ? 1 : 0);
    left -= 1;
    if (left === 0) {
      stop(lab, places);
      ask(lab, places);
    }
  };
  lab.timer = setInterval(once, PLAY_MS);
  once();
  draw(lab, places);
}

function stop(lab, places) {
  clearInterval(lab.timer);
  lab.timer = null;
}

// One step of t. The first of a run is compared with the prediction; a played run goes on with the same numbers.
function advance(lab, places, first) {
  lab.t += 1;
  lab.y = sigmoid(lab.w * lab.x + BIAS);
  if (first) {
    const before = lab.runs[0];
    lab.runs.unshift({
      t: lab.t,
      x: lab.x,
      w: lab.w,
      y: lab.y,
      predicted: lab.predicted,
      moved: before ? lab.y - before.y : null,
    });
    const [run] = lab.runs;
    const moved = run.moved === null ? "" : ` Against the run before, y moved by ${four(run.moved)}.`;
    places.told.textContent = `y = ${four(run.y)}. You predicted ${four(run.predicted)}, off by ${four(Math.abs(run.y - run.predicted))}.${moved}`;
  }
  draw(lab, places);
}

function reset(lab, places) {
  stop(lab, places);
  Object.assign(lab, START, { t: 0, runs: [], y: null, valid: true });
  for (const name of ["x", "w"]) {
    places[name].value = String(lab[name]);
    places[name].setAttribute("aria-invalid", "false");
  }
  places.told.textContent = "";
  remember("network", {});
  ask(lab, places);
}

function draw(lab, places) {
  const ready = lab.predicted !== null && lab.valid !== false;
  places.step.disabled = !ready || lab.timer !== null;
  places.play.disabled = !ready && lab.timer === null;
  places.play.textContent = lab.timer === null ? "Play" : "Stop";
  places.t.textContent = String(lab.t);
  places.drawing.replaceChildren(unit(lab), curve(lab));
  places.log.replaceChildren(
    lab.runs.length ? runs(lab) : h("p", { class: "note" }, "No run yet. Try x = 1, w = 1, then w = 0.95."),
  );
}

function runs(lab) {
  return table(
    "Runs, newest first",
    [
      ["t", (run) => String(run.t)],
      ["x", (run) => figure(run.x, 6), true],
      ["w", (run) => figure(run.w, 6), true],
      ["predicted", (run) => four(run.predicted), true],
      ["y", (run) => four(run.y), true],
      ["off by", (run) => four(Math.abs(run.y - run.predicted)), true],
      ["y moved", (run) => (run.moved === null ? "first run" : four(run.moved)), true],
    ],
    lab.runs,
  );
}

const text = (x, y, words, more = {}) => s("text", { x, y, "text-anchor": "middle", ...more }, words);

function unit(lab) {
  const y = lab.y === null ? "?" : four(lab.y);
  return s(
    "svg",
    { class: "drawn", viewBox: "0 0 420 150", role: "img", "aria-labelledby": "unit-title" },
    s(
      "title",
      { id: "unit-title" },
      `One unit: x = ${lab.x} times w = ${lab.w} plus b = −0.5 through a sigmoid gives y = ${lab.y === null ? "not run yet" : y}`,
    ),
    s("path", { class: "wire", d: "M62 60H180M240 60H340M210 118V92" }),
    s("circle", { class: "cell", cx: 36, cy: 60, r: 26 }),
    s("circle", { class: "cell", cx: 210, cy: 60, r: 32 }),
    s("rect", { class: "cell", x: 340, y: 36, width: 76, height: 48, rx: 6 }),
    text(36, 64, figure(lab.x, 4), { class: "in-cell" }),
    text(36, 104, "x", { class: "faint" }),
    text(120, 50, `× ${figure(lab.w, 4)}`),
    text(120, 80, "w", { class: "faint" }),
    text(210, 66, "σ", { class: "in-cell" }),
    text(210, 134, "b = −0.5"),
    text(378, 65, y, { class: "in-cell" }),
    text(378, 104, "y", { class: "faint" }),
  );
}

// The sigmoid with the runs on it; the last one is filled.
function curve(lab) {
  const [width, height, left, top] = [420, 190, 34, 12];
  const most = Math.max(6, ...lab.runs.slice(0, 8).map((run) => Math.abs(run.w * run.x + BIAS)));
  const x = (z) => left + ((width - left - 10) * (z + most)) / (2 * most);
  const y = (value) => top + (height - top - 34) * (1 - value);
  const points = Array.from({ length: 81 }, (_, index) => -most + (2 * most * index) / 80);
  const marks = lab.runs
    .slice(0, 8)
    .map((run, index) =>
      s("circle", { class: index ? "cell" : "row", cx: x(run.w * run.x + BIAS), cy: y(run.y), r: index ? 4 : 6 }),
    )
    .reverse();
  return s(
    "svg",
    { class: "drawn", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "curve-title" },
    s(
      "title",
      { id: "curve-title" },
      `The sigmoid from ${-Math.round(most)} to ${Math.round(most)} with the last ${lab.runs.slice(0, 8).length} runs as points`,
    ),
    [0, 0.5, 1].map((value) => [
      s("line", { class: "axis", x1: left, x2: width - 10, y1: y(value), y2: y(value) }),
      text(left - 6, y(value) + 4, String(value), { class: "faint", "text-anchor": "end" }),
    ]),
    s("path", {
      class: "curve",
      d: `M${points.map((z) => `${x(z).toFixed(1)} ${y(sigmoid(z)).toFixed(1)}`).join("L")}`,
    }),
    marks,
    text(x(-most), height - 16, figure(-most, 2), { class: "faint", "text-anchor": "start" }),
    text(x(0), height - 16, "0", { class: "faint" }),
    text(x(most), height - 16, figure(most, 2), { class: "faint", "text-anchor": "end" }),
    text((left + width) / 2, height - 2, "w·x + b", { class: "faint" }),
  );
}

async function tests() {
  try {
    const found = await get("api/network");
    return h(
      "div",
      {},
      h(
        "p",
        {},
        "The figures of this page are three lines of arithmetic. What stores keys and values is held by these tests, and ",
        h("a", { href: link("experiment", {}) }, "the 36 rows"),
        " can be recomputed by an independent audit here.",
      ),
      h(
        "ul",
        {},
        found.tests.map((test) =>
          h(
            "li",
            {},
            test.available
              ? h("a", { href: `reference-tests/${test.number}`, target: "_blank", rel: "noopener" }, test.path)
              : h("code", {}, test.path),
            `: ${test.shows}. `,
            h("code", {}, test.command),
          ),
        ),
      ),
    );
  } catch (error) {
    return problem(error);
  }
}
