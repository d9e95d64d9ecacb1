// Matrices as pixels, on one colour scale.

function makeFrames(box) {
  const data = dataOf(box);
  const readout = part(box, "frames-readout");
  const say = (value) => fixed(value, data.digits);
  const colour = data.signed ? signedColour : viridis;
  rampLegend(part(box, "frames-legend"), data.ends.map(say), data.unit, colour);
  [...box.querySelectorAll("canvas")].forEach((canvas, place) => {
    const values = data.frames[place];
    paintFrame(canvas, values, data.ends, data.signed ? SIGNED : VIRIDIS);
    canvas.addEventListener("pointermove", (event) => {
      const bounds = canvas.getBoundingClientRect();
      const at = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
      const row = at((event.clientY - bounds.top) / bounds.height, values.length);
      const column = at((event.clientX - bounds.left) / bounds.width, values[0].length);
      readout.textContent = `${canvas.title ? `${canvas.title}, ` : ""}${data.rows[row]}, ` +
        `${data.columns[column]}: ${say(values[row][column])}`;
    });
  });
}

function paintFrame(canvas, values, [low, high], steps) {
  canvas.width = values[0].length;
  canvas.height = values.length;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.flat().forEach((value, i) => {
    pixels.data.set([...interpolate(steps, (value - low) / (high - low)), 255], 4 * i);
  });
  context.putImageData(pixels, 0, 0);
}
