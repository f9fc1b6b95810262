// The controls of room 1. Names and ranges are those of the server's BenchSettings, which checks them again.

import { figure, h, select } from "./dom.js";

export const DEFAULTS = {
  source: "normal",
  seed: 7,
  tokens: 256,
  width: 32,
  layer: 0,
  head: 0,
  outlier: 1,
  key_bits: 8,
  value_bits: 8,
  key_scales: "token-head",
  value_scales: "token-head",
  group: 32,
  rotate: false,
  sinks: 0,
  recent: 0,
  exact: "f32",
  format: "",
  side: "keys",
};

const SCALES = [
  ["tensor", "tensor (static)"],
  ["channel", "channel (static)"],
  ["token-head", "row (token)"],
  ["group", "channel group"],
  ["channel-group", "token group"],
];

export function controls(bench) {
  const { view, change } = bench;
  const own = view.format.trim() !== "";
  const captured = view.source === "captured";
  // A choice that shows other controls draws them again and keeps the focus where it was.
  const redraw = (changes) => {
    change(changes);
    const id = document.activeElement?.id;
    bench.redrawControls();
    if (id) document.getElementById(id)?.focus();
  };
  const slider = (name, words, low, high, { step = 1, off = false } = {}) => {
    const out = h("output", { for: name }, figure(Number(view[name]), 4));
    return field(
      name,
      words,
      h("input", {
        id: name,
        type: "range",
        min: low,
        max: high,
        step,
        disabled: off,
        value: view[name],
        oninput: (event) => {
          out.textContent = figure(Number(event.target.value), 4);
          change({ [name]: event.target.value });
        },
      }),
      out,
    );
  };
  const choice = (name, words, options, act = change, off = false) => {
    const found = select(name, view[name], options, (value) => act({ [name]: value }));
    found.disabled = off;
    return field(name, words, found);
  };
  return h(
    "form",
    { onsubmit: (event) => event.preventDefault(), "aria-label": "Settings" },
    h(
      "fieldset",
      {},
      h("legend", {}, "Arrays"),
      choice(
        "source",
        "From",
        [
          ["normal", "normal, synthetic"],
          ["zeros", "zeros, synthetic"],
          ["captured", "a model, captured"],
        ],
        redraw,
      ),
      captured
        ? captureFields(bench, slider)
        : [
            choice("seed", "Seed", [
              ["7", "7"],
              ["19", "19"],
              ["41", "41"],
            ]),
            choice(
              "tokens",
              "Tokens",
              [16, 64, 128, 256, 512, 1024].map((count) => [String(count), String(count)]),
            ),
            choice("width", "Channels", [
              ["32", "32"],
              ["64", "64"],
              ["128", "128"],
            ]),
          ],
      slider("outlier", view.source === "zeros" ? "[0, 0] is" : "[0, 0] times", 1, 100),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", id: "outlier-40", onclick: () => redraw({ outlier: 40 }) }, "Outlier ×40"),
        h("button", { type: "button", id: "outlier-1", onclick: () => redraw({ outlier: 1 }) }, "No outlier"),
      ),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Keys"),
      slider("key_bits", "Bits of K", 1, 8, { off: own }),
      choice("key_scales", "A scale per", SCALES, change, own),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Values"),
      slider("value_bits", "Bits of V", 1, 8, { off: own }),
      choice("value_scales", "A scale per", SCALES, change, own),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Both"),
      choice(
        "group",
        "Group",
        [8, 16, 32, 64, 128].map((size) => [String(size), String(size)]),
        change,
        own,
      ),
      field(
        "rotate",
        "Hadamard",
        h("input", {
          id: "rotate",
          type: "checkbox",
          disabled: own,
          checked: String(view.rotate) === "true",
          onchange: (event) => change({ rotate: event.target.checked }),
        }),
      ),
      slider("sinks", "First kept", 0, 64, { off: own }),
      slider("recent", "Recent kept", 0, 512, { off: own, step: 8 }),
      choice(
        "exact",
        "Kept in",
        [
          ["f32", "float32"],
          ["f16", "float16"],
        ],
        change,
        own,
      ),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Or any format by name"),
      h(
        "div",
        { class: "field whole" },
        h("label", { for: "format" }, "Such as kivi-4,recent=32 or q4_0; empty for the sliders"),
        h("input", {
          id: "format",
          value: view.format,
          maxlength: "300",
          spellcheck: "false",
          autocomplete: "off", // Enter also submits: the form must still be there, so it is drawn again afterwards.
          onchange: (event) => setTimeout(() => redraw({ format: event.target.value.trim() })),
        }),
      ),
    ),
  );
}

function field(name, words, control, out = null) {
  return h("div", { class: "field" }, h("label", { for: name }, words), control, out);
}

function captureFields(bench, slider) {
  const { capture } = bench;
  if (capture.state === "done") {
    const { heads } = capture.captured;
    const most = heads.length - 1;
    return [slider("layer", "Layer", 0, most), slider("head", "KV head", 0, Math.max(...heads) - 1)];
  }
  const words = {
    none: "One text of 256 tokens is run once over the full-precision cache; its keys and values stay in memory.",
    running: `At work: ${capture.stage}.`,
    failed: capture.error,
  }[capture.state];
  return [
    h("p", { class: capture.state === "failed" ? "error" : "note", role: "status" }, words),
    h(
      "div",
      { class: "buttons" },
      h(
        "button",
        { type: "button", class: "main", id: "capture", disabled: capture.state === "running", onclick: bench.take },
        `Capture from ${capture.model}`,
      ),
    ),
  ];
}
