// The two axes of a chart: positions of numbers, ticks, and number formats.
//
// An axis has a title, a scale (linear, log, or power: the numbers are exponents of ten), digits and
// a unit, and may have fixed ends (low, high) and ticks.

function makeAxis(axis, numbers, from, to, room) {
  const along = axis.scale === "log" ? Math.log10 : (value) => value;
  const usable = axis.scale === "log" ? numbers.filter((value) => value > 0) : numbers;
  const [low, high] = endsOf(axis, usable).map(along);
  const place = (value) => from + ((along(value) - low) / (high - low)) * (to - from);
  const inside = (value) => along(value) >= low - 1e-9 && along(value) <= high + 1e-9;
  const most = Math.max(2, Math.floor(Math.abs(to - from) / room));
  const ticks = ticksOf(axis, low, high, most).filter(inside);
  return { place, inside, ticks, shows: (value) => axis.scale !== "log" || value > 0 };
}

function endsOf(axis, numbers) {
  let low = axis.low ?? smallest(numbers);
  let high = axis.high ?? largest(numbers);
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [1, 2];
  if (axis.scale === "log") {
    const margin = low === high ? 2 : (high / low) ** 0.04;
    return [axis.low ?? low / margin, axis.high ?? high * margin];
  }
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const margin = 0.05 * (high - low);
  return [axis.low ?? low - margin, axis.high ?? high + margin];
}

function ticksOf(axis, low, high, most) {
  if (axis.ticks) return thinned(axis.ticks, most);
  if (axis.scale !== "log") return even(low, high, most, axis.scale === "power" ? 0 : axis.digits);
  const decades = Math.floor(high) - Math.ceil(low) + 1;
  if (decades < 2) {
    const fine = [1, 2, 5].flatMap((digit) =>
      [0, 1, 2].map((more) => digit * 10 ** (Math.floor(low) + more)));
    return thinned(fine.filter((one) => Math.log10(one) >= low && Math.log10(one) <= high), most);
  }
  return thinned(Array.from({ length: decades }, (_, i) => 10 ** (Math.ceil(low) + i)), most);
}

// Keep the last tick, and as many before it as fit without touching.
function thinned(ticks, most) {
  const sorted = [...new Set(ticks)].sort((a, b) => a - b);
  const gap = Math.max(1, Math.ceil((sorted.length - 1) / Math.max(1, most - 1)));
  return sorted.filter((_, i) => (sorted.length - 1 - i) % gap === 0);
}

// Multiples of 1, 2 or 5 times a power of ten; no finer than the numbers of the axis are.
function even(low, high, most, digits) {
  const rough = Math.max((high - low) / most, 10 ** -digits);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// Format a value of an axis; at a tick, as short as possible.
function say(axis, value, tick = false) {
  if (value === null || value === undefined) return ABSENT;
  const unit = axis.unit && !tick ? `\u00a0${axis.unit}` : "";
  if (axis.scale === "power") return power(value);
  if (axis.scale === "log" && (value < 0.001 || value >= 1e7)) {
    return tick ? `10^${Math.round(Math.log10(value))}` : value.toExponential(1) + unit;
  }
  if (tick) return whole(Number(value.toPrecision(6)));
  return fixed(value, axis.digits) + unit;
}

function power(exponent) {
  return exponent < 6 ? whole(Math.round(10 ** exponent)) : `10^${exponent.toFixed(0)}`;
}
