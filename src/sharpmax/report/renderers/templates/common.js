// Colours, number formats and helpers shared by maps, charts and tables.

const ABSENT = "\u2013";

// Viridis at eleven even steps: lightness rises evenly, for any colour vision and in grey.
const VIRIDIS = [
  [68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140],
  [34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37],
];

// Matplotlib's RdBu_r at eleven even steps, for numbers of either sign: 0 is nearly white.
const SIGNED = [
  [5, 48, 97], [32, 101, 171], [67, 147, 195], [144, 196, 221], [209, 229, 240], [247, 246, 246],
  [253, 219, 199], [243, 164, 129], [214, 96, 77], [177, 24, 43], [103, 0, 31],
];

function interpolate(steps, share) {
  const place = Math.min(Math.max(share, 0), 1) * (steps.length - 1);
  const below = Math.min(Math.floor(place), steps.length - 2);
  const part = place - below;
  return steps[below].map((low, i) => Math.round(low + part * (steps[below + 1][i] - low)));
}

function viridis(share) {
  return `rgb(${interpolate(VIRIDIS, share).join(",")})`;
}

function signedColour(share) {
  return `rgb(${interpolate(SIGNED, share).join(",")})`;
}

// A line needs contrast with the page, so each scheme leaves out the end near its background.
function lineColour(place, count) {
  const share = count > 1 ? place / (count - 1) : 0.5;
  return `light-dark(${viridis(0.85 * share)}, ${viridis(0.25 + 0.75 * share)})`;
}

function ramp(colour, steps = 24) {
  const stops = Array.from({ length: steps }, (_, i) => colour(i, steps));
  return `linear-gradient(to right, ${stops.join(",")})`;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function part(section, role) {
  return section.querySelector(`[data-role="${role}"]`);
}

function dataOf(box) {
  return JSON.parse(part(box, "data").textContent);
}

function fixed(value, digits) {
  if (value === null || value === undefined) return ABSENT;
  const text = value.toFixed(digits);
  if (Number(text) === 0) return (0).toFixed(digits); // no minus sign before a zero
  const [before, after] = text.split(".");
  return whole(before) + (after ? `.${after}` : "");
}

function whole(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

function valuesOf(data, where, key) {
  return data.values[`${where}_${key}`];
}

function longest(data) {
  return Math.max(...data.tokens);
}

function everyNumber(nested) {
  return nested.flat(Infinity).filter((value) => value !== null);
}

function largest(numbers) {
  return numbers.reduce((a, b) => Math.max(a, b), -Infinity);
}

function smallest(numbers) {
  return numbers.reduce((a, b) => Math.min(a, b), Infinity);
}
