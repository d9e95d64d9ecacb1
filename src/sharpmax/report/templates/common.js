// Colours, numbers and the few helpers that the map, the curves and the table share.

const ABSENT = "\u2013";

// Viridis at eleven even steps: lightness rises evenly, and survives any colour vision and grey.
const VIRIDIS = [
  [68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140],
  [34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37],
];

function viridis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const below = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const part = place - below;
  const mixed = VIRIDIS[below].map((low, i) =>
    Math.round(low + part * (VIRIDIS[below + 1][i] - low)));
  return `rgb(${mixed.join(",")})`;
}

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

// A line needs contrast with the page, so each scheme leaves out the end that comes near it.
function lineColour(place, count) {
  const share = count > 1 ? place / (count - 1) : 0.5;
  return darkScheme.matches ? viridis(0.25 + 0.75 * share) : viridis(0.85 * share);
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

function part(section, role) {
  return section.querySelector(`[data-role="${role}"]`);
}

function fixed(value, digits) {
  if (value === null || value === undefined) return ABSENT;
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text; // no minus sign before a zero
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

// Charts take their colours from the page, so that they follow its scheme.
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "faint", "paper", "panel", "last", "mean"];
  return Object.fromEntries(
    names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Lengths are the ticks: few enough of them that their numbers do not touch.
function lengthAxis(ticks, title, most, colours) {
  const sorted = [...new Set(ticks)].sort((a, b) => a - b);
  const gap = Math.max(1, Math.ceil((sorted.length - 1) / Math.max(1, most - 1)));
  const shown = sorted.filter((_, i) => (sorted.length - 1 - i) % gap === 0);
  const margin = sorted.length > 1 ? 0.04 * Math.log10(sorted.at(-1) / sorted[0]) : 0.3;
  return {
    ...axis(colours),
    type: "log",
    range: [Math.log10(sorted[0]) - margin, Math.log10(sorted.at(-1)) + margin],
    tickvals: shown,
    ticktext: shown.map(whole),
    title: { text: title, standoff: 6, font: { size: 12 } },
    showgrid: false,
    spikethickness: 1,
    spikedash: "solid",
    spikecolor: colours.muted,
    showline: true,
    linecolor: colours.muted,
    hoverformat: ",d",
  };
}

function axis(colours) {
  return {
    color: colours.muted,
    gridcolor: colours.faint,
    zeroline: false,
    fixedrange: true, // a finger on a chart must scroll the page
    tickfont: { size: 11 },
    automargin: true,
  };
}

function layout(colours, changes) {
  return {
    paper_bgcolor: colours.paper,
    plot_bgcolor: colours.paper,
    font: { color: colours.ink, family: "system-ui, sans-serif", size: 12 },
    margin: { l: 40, r: 10, t: 8, b: 36 },
    showlegend: false,
    dragmode: false,
    hoverlabel: {
      bgcolor: colours.panel,
      bordercolor: colours.muted,
      font: { color: colours.ink, size: 11 },
      namelength: -1,
      align: "left",
    },
    ...changes,
  };
}

const CHART = { displayModeBar: false, responsive: true, doubleClick: false };
