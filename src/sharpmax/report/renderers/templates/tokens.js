// Inputs as text, each token coloured by the weight that the chosen head gives it from the last token.

const ALL_HEADS = "all";
const MOST_LISTED = 24; // heads or tokens in a list

function makeTokens(box) {
  const data = dataOf(box);
  const ui = Object.fromEntries(["layer", "head", "readout"]
    .map((name) => [name, part(box, `tokens-${name}`)]));
  const panels = [...box.querySelectorAll(".token-panel")].map((panel, place) =>
    makeTokenPanel(panel, data, data.inputs[place], { choose, tell }));
  let current = data.first;

  function show() {
    const all = ui.layer.value === ALL_HEADS;
    ui.head.disabled = all;
    for (const panel of panels) panel.show(all ? null : current);
  }

  function choose(row, column) {
    if (!data.present[row][column]) column = data.present[row].lastIndexOf(true);
    current = [row, column];
    ui.layer.value = String(row);
    ui.head.value = String(column);
    announceHead(box, current);
    show();
  }

  // Which heads give a token weight, the strongest first.
  function tell(input, token, text) {
    const heads = data.layers.flatMap((_, row) => data.heads.map((__, column) =>
      ({ row, column, weight: weightOf(input.heads[row][column], token) })))
      .filter(({ weight }) => weight > 0).sort((a, b) => b.weight - a.weight);
    const place = `token ${whole(token + 1)} of “${input.name}”`;
    const count = heads.length === 1 ? "1 head looks" : `${heads.length || "No"} heads look`;
    const buttons = heads.slice(0, MOST_LISTED).map(({ row, column, weight }) => {
      const name = `layer ${data.layers[row].index}, head ${data.heads[column]}`;
      const button = element("button", { type: "button" }, `${name}: ${share(weight)}`);
      button.addEventListener("click", () => choose(row, column));
      return button;
    });
    const more = heads.length > MOST_LISTED ? ` and ${heads.length - MOST_LISTED} more` : "";
    ui.readout.replaceChildren(
      element("p", {}, element("strong", {}, text), `, ${place}: ${count} at it.`),
      element("div", { className: "chips" }, ...buttons, more));
  }

  ui.layer.addEventListener("change", () => {
    if (ui.layer.value === ALL_HEADS) show();
    else choose(Number(ui.layer.value), current[1]);
  });
  ui.head.addEventListener("change", () => choose(current[0], Number(ui.head.value)));
  onHead(box, ([row, column]) => {
    current = [row, column];
    ui.layer.value = String(row);
    ui.head.value = String(column);
    show();
  });
  ui.layer.value = String(current[0]);
  ui.head.value = String(current[1]);
  show();
}

function makeTokenPanel(panel, data, input, { choose, tell }) {
  const text = panel.querySelector(".token-text");
  const strongest = panel.querySelector(".strongest");
  const positions = input.positions ?? input.pieces.map((_, i) => i);
  const at = new Map(positions.map((position, i) => [position, i]));
  const pieces = input.pieces.map((piece, i) => {
    const gap = i > 0 && positions[i] > positions[i - 1] + 1 ? " … " : "";
    const made = element("span", { className: "token" }, piece);
    made.dataset.token = String(positions[i]);
    if (input.needle?.includes(positions[i])) made.classList.add("needle");
    if (gap) text.append(gap);
    text.append(made);
    return made;
  });
  const everyHead = input.heads.flat();
  let coloured = [];

  text.addEventListener("click", ({ target }) => {
    const token = target.closest(".token")?.dataset.token;
    if (token !== undefined) pick(Number(token), false);
  });

  function scrollTo(made) {
    text.scrollTop += made.getBoundingClientRect().top - text.getBoundingClientRect().top -
      text.clientHeight / 2;
  }

  function pick(token, scroll) {
    const made = pieces[at.get(token)];
    if (!made) return;
    for (const one of text.querySelectorAll(".picked")) one.classList.remove("picked");
    made.classList.add("picked");
    if (scroll) scrollTo(made);
    tell(input, token, label(token));
  }

  // What a token says, with the word that it is a part of: “7 in 715”.
  function label(token) {
    const place = at.get(token);
    if (place === undefined) return ABSENT;
    const piece = visible(input.pieces[place]);
    const word = wordAt(input.pieces, input.pieces[place].trim() === "" ? place + 1 : place);
    if (input.pieces[place].trim() === "") return word ? `${piece} before ${word}` : piece;
    return word === piece || word.length > 20 ? piece : `${piece} in ${word}`;
  }

  // The tokens of a head with their weights, or of all heads with the mean of their weights.
  function weights(head) {
    if (head !== null) return pairs(input.heads[head[0]][head[1]]);
    const sums = new Map();
    for (const one of everyHead) {
      for (const [token, weight] of pairs(one)) sums.set(token, (sums.get(token) ?? 0) + weight);
    }
    const heads = everyHead.filter((one) => one.length).length;
    return [...sums].map(([token, sum]) => [token, sum / heads]).sort((a, b) => b[1] - a[1]);
  }

  function show(head) {
    for (const one of coloured) {
      one.style.background = "";
      one.removeAttribute("title");
    }
    const shown = weights(head);
    coloured = shown.map(([token, weight]) => {
      const made = pieces[at.get(token)];
      if (!made) return null;
      made.style.background = tokenColour(weight);
      made.title = share(weight);
      return made;
    }).filter((one) => one);
    const kept = shown.slice(0, 8);
    const buttons = kept.map(([token, weight]) => {
      const button = element("button", { type: "button" }, `${label(token)} ${share(weight)}`);
      button.style.background = tokenColour(weight);
      button.title = `token ${whole(token + 1)}`;
      button.addEventListener("click", () => pick(token, true));
      return button;
    });
    const seen = shown.find(([token]) => token > 0);
    if (seen && at.has(seen[0])) scrollTo(pieces[at.get(seen[0])]);
    const total = kept.reduce((sum, [, weight]) => sum + weight, 0);
    const whose = head === null ? "the mean weight of all heads" : "its weight";
    strongest.replaceChildren(
      ...(kept.length ? [`${share(total)} of ${whose} on `, ...buttons] : ["no token stands out"]));
  }
  return { show };
}

// The word around a piece: up to the next space on either side.
function wordAt(pieces, place) {
  if (place >= pieces.length) return "";
  let first = place;
  let after = place + 1;
  while (first > 0 && !/^\s/.test(pieces[first]) && !/\s$/.test(pieces[first - 1])) first -= 1;
  while (after < pieces.length && !/^\s/.test(pieces[after])) after += 1;
  return pieces.slice(first, after).join("").trim();
}

function pairs(flat) {
  return flat.filter((_, i) => i % 2 === 0).map((token, i) => [token, flat[2 * i + 1]]);
}

function weightOf(flat, token) {
  for (let i = 0; i < flat.length; i += 2) if (flat[i] === token) return flat[i + 1];
  return 0;
}

// The colour grows with the root of the weight, so that a weight of 5 % can be seen.
function tokenColour(weight) {
  const part = Math.round(62 * Math.sqrt(Math.min(1, weight)));
  return `color-mix(in srgb, var(--last) ${part}%, transparent)`;
}

function share(weight) {
  return `${fixed(100 * weight, weight < 0.0995 ? 1 : 0)}\u00a0%`;
}

function visible(text) {
  return text.trim() === "" ? text.replaceAll("\n", "↵").replaceAll(" ", "␣") : text.trim();
}

// The parts of one result choose the same head.
function announceHead(box, head) {
  const result = box.closest(".result, .palette") ?? document.body;
  result.dispatchEvent(new CustomEvent("sharpmax-head", { detail: { head, from: box } }));
}

function onHead(box, follow) {
  const result = box.closest(".result, .palette") ?? document.body;
  result.addEventListener("sharpmax-head", ({ detail }) => {
    if (detail.from !== box) follow(detail.head);
  });
}
