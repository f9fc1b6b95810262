// The tutorial's exercise as a walk: arrays of zeros, then one enlarged element, then what it costs.
// Every figure that a step shows is measured when the step is opened; only the questions are written down.

const ROW = { key_scales: "token-head", value_scales: "token-head" };
const TENSOR = { key_scales: "tensor", value_scales: "tensor" };
const BASE = { key_bits: 8, value_bits: 8, width: 32, exact: "f32" };
const ZEROS = { ...BASE, source: "zeros", tokens: 64 };
const WORST = { ...BASE, source: "normal", seed: 41, tokens: 1024, outlier: 40 };
const SCALES_CHANGED = { question: "How many scales of K change?", of: (found) => found.side.scales.changed };

export const TOUR = [
  {
    title: "Nothing at all",
    view: { ...ZEROS, ...TENSOR, outlier: 1 },
    text: "K and V are zero everywhere, stored with one scale for the whole tensor. A group of zeros has no range to divide, so it takes scale one, and zero is read back as zero.",
    question: "How large is the scale?",
    of: (found) => found.side.scales.largest,
  },
  {
    title: "One element grows, one scale for all",
    view: { ...ZEROS, ...TENSOR, outlier: 40 },
    text: "Element [0, 0] becomes 40. The one scale is now 40/127, for every element of every token.",
    ...SCALES_CHANGED,
  },
  {
    title: "One element grows, one scale a row",
    view: { ...ZEROS, ...ROW, outlier: 40 },
    text: "The same element, with one scale for each of the 64 rows. Rows that do not hold the element know nothing of it.",
    ...SCALES_CHANGED,
  },
  {
    title: "Real values beside it: the tensor",
    view: { ...BASE, ...TENSOR, source: "normal", seed: 7, tokens: 64, outlier: 40 },
    text: "Standard normal values, one of them 40 times larger, one scale. The grid has 255 codes, and the outlier stretches them over its own range: see how few are left for all the others.",
    question: "How many codes of K are used?",
    of: (found) => found.side.levels_used,
  },
  {
    title: "Real values beside it: rows",
    view: { ...BASE, ...ROW, source: "normal", seed: 7, tokens: 64, outlier: 40 },
    text: "One scale a row gives the other 63 rows their resolution back. In row 0 nothing is gained: the outlier sets the scale of its own row, as it set the tensor's.",
    question: "In how many rows of K do codes change by the outlier?",
    of: (found) => found.side.rows_with_changed_codes,
  },
  {
    title: "The worst of the 36 rows",
    view: { ...WORST, ...ROW },
    text: "Seed 41, 1,024 tokens. With one scale a tensor the output error is 3.96. A scale a row cuts the error of K 18-fold.",
    question: "What is the output error now?",
    of: (found) => output(found),
  },
  {
    title: "A scale a channel for K",
    view: { ...WORST, key_scales: "channel", value_scales: "token-head" },
    text: "The outlier's channel takes the coarse scale, and the other 31 channels of its row are fine again. What remains is the error of V.",
    question: "What is the output error now?",
    of: (found) => output(found),
  },
  {
    title: "Or keep the first row exact",
    view: { ...WORST, ...ROW, sinks: 1 },
    text: "Row 0 of K and V is stored in float32, beside the codes of all others. Its bytes are counted: see “first tokens kept”.",
    question: "What is the output error now?",
    of: (found) => output(found),
  },
];

function output(found) {
  return found.figures.find((row) => row.name === "output").max_abs;
}
