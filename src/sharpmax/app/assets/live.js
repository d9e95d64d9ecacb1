// Parts of the page that change: each is replaced as a whole, and its charts are drawn anew.

window.sharpmaxShow = (view, html) => {
  view.innerHTML = html ?? "";
  startAll(view);
};

const POINTS = 64; // of a drawn curve
const PAUSE = 120; // milliseconds between two of its tellings

// A field to draw a curve in; told where it is drawn, from left to right, each height from 0 to 1.
window.sharpmaxPad = (pad, begun, tell) => {
  const heights = begun ? begun.split(",").map(Number) : Array(POINTS).fill(0.1);
  const line = pad.querySelector("polyline");
  let last = null;
  let waiting = null;

  function show() {
    const across = (i) => (100 * (i + 0.5)) / POINTS;
    line.setAttribute("points", heights.map((y, i) => `${across(i)},${100 - 100 * y}`).join(" "));
  }

  function place(event) {
    const box = pad.getBoundingClientRect();
    const inside = (share) => Math.min(1, Math.max(0, share));
    return {
      at: Math.min(POINTS - 1, Math.floor(POINTS * inside((event.clientX - box.left) / box.width))),
      height: inside(1 - (event.clientY - box.top) / box.height),
    };
  }

  // What lies between two places of a quick pointer is on the straight line between them.
  function draw(event) {
    const now = place(event);
    const from = last ?? now;
    const steps = Math.max(1, Math.abs(now.at - from.at));
    for (let i = 0; i <= steps; i += 1) {
      const at = from.at + Math.round(((now.at - from.at) * i) / steps);
      heights[at] = from.height + ((now.height - from.height) * i) / steps;
    }
    last = now;
    show();
    waiting ??= setTimeout(() => {
      waiting = null;
      tell(heights.map((one) => one.toFixed(3)).join(","));
    }, PAUSE);
  }

  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    last = null;
    draw(event);
  });
  pad.addEventListener("pointermove", (event) => {
    if (pad.hasPointerCapture(event.pointerId)) draw(event);
  });
  show();
};

// A page in the page says how high it is; nothing else of what it says is heard.
window.addEventListener("message", (event) => {
  const height = Number(event.data?.sharpmaxHeight);
  if (!Number.isFinite(height)) return;
  for (const frame of document.querySelectorAll("iframe.sheet")) {
    if (frame.contentWindow === event.source) {
      frame.style.height = `${Math.min(Math.max(height, 100), 20000) + 4}px`;
    }
  }
});
