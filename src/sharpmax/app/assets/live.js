// Replace a view as a whole and draw its charts again.

window.sharpmaxShow = (view, html) => {
  view.innerHTML = html ?? "";
  startAll(view);
};

const POINTS = 64; // heights of a drawn curve
const PAUSE = 120; // milliseconds between two updates while drawing

// A field to draw a curve in. Calls `update` with the heights from left to right, each from 0 to 1.
window.sharpmaxPad = (pad, initial, update) => {
  const heights = initial ? initial.split(",").map(Number) : Array(POINTS).fill(0.1);
  const line = pad.querySelector("polyline");
  let last = null;
  let timer = null;

  function show() {
    const across = (i) => (100 * (i + 0.5)) / POINTS;
    line.setAttribute("points", heights.map((y, i) => `${across(i)},${100 - 100 * y}`).join(" "));
  }

  function position(event) {
    const box = pad.getBoundingClientRect();
    const inside = (share) => Math.min(1, Math.max(0, share));
    return {
      at: Math.min(POINTS - 1, Math.floor(POINTS * inside((event.clientX - box.left) / box.width))),
      height: inside(1 - (event.clientY - box.top) / box.height),
    };
  }

  // Connect two positions of a fast pointer by a straight line.
  function draw(event) {
    const now = position(event);
    const from = last ?? now;
    const steps = Math.max(1, Math.abs(now.at - from.at));
    for (let i = 0; i <= steps; i += 1) {
      const at = from.at + Math.round(((now.at - from.at) * i) / steps);
      heights[at] = from.height + ((now.height - from.height) * i) / steps;
    }
    last = now;
    show();
    timer ??= setTimeout(() => {
      timer = null;
      update(heights.map((height) => height.toFixed(3)).join(","));
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

// The report in a frame sends its height; all other messages are ignored.
window.addEventListener("message", (event) => {
  const height = Number(event.data?.sharpmaxHeight);
  if (!Number.isFinite(height)) return;
  for (const frame of document.querySelectorAll("iframe.sheet")) {
    if (frame.contentWindow === event.source) {
      frame.style.height = `${Math.min(Math.max(height, 100), 20000) + 4}px`;
    }
  }
});

const STEP = 900; // milliseconds between two sizes while playing

// A slider over sizes that shows the number. The button grows it, from the start if it is at the end.
window.sharpmaxSize = (box, sizes, initial, update) => {
  const slider = box.querySelector("input");
  const output = box.querySelector("output");
  const button = box.querySelector("button");
  let timer = null;
  slider.max = sizes.length - 1;
  slider.value = Math.max(0, sizes.map(String).indexOf(String(initial)));

  function show() {
    output.textContent = whole(sizes[slider.value]);
    slider.setAttribute("aria-valuetext", `${output.textContent} items`);
  }

  function choose(place) {
    slider.value = place;
    show();
    update(String(sizes[place]));
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  }

  function grow() {
    if (!box.isConnected || Number(slider.value) >= sizes.length - 1) stop();
    else choose(Number(slider.value) + 1);
  }

  slider.addEventListener("input", () => {
    stop();
    choose(Number(slider.value));
  });
  button.addEventListener("click", () => {
    if (timer !== null) {
      stop();
      return;
    }
    if (Number(slider.value) >= sizes.length - 1) choose(0);
    button.textContent = "Pause";
    timer = setInterval(grow, STEP);
  });
  show();
};
