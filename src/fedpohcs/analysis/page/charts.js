"use strict";
// Drawing: every chart is one SVG that is as many units wide as it is pixels, so that text keeps its size.

const DASHES = ["", "7 4", "8 3 2 3", "2 3"];
const CIVIDIS = [
  "#00224e",
  "#123570",
  "#3b496c",
  "#575d6d",
  "#707173",
  "#8a8678",
  "#a59c74",
  "#c3b369",
  "#e1cc55",
  "#fee838",
];
const PHASE_COLOURS = {
  measure: "var(--c3)",
  select: "var(--c4)",
  train: "var(--c0)",
  aggregate: "var(--c2)",
  evaluate: "var(--soft)",
};

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "image", "title", "clipPath"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function format(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(digits - 1);
  const decimals = Math.max(0, Math.min(4, digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1))));
  return value
    .toFixed(decimals)
    .replace(/^-(?=0(\.0*)?$)/, "")
    .replace("-", "−");
}

function extent(arrays) {
  let low = Infinity,
    high = -Infinity;
  for (const array of arrays)
    for (const value of array)
      if (Number.isFinite(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  return low <= high ? [low, high] : [0, 1];
}

function padded([low, high], share = 0.05) {
  const room = share * (high - low) || Math.abs(low) * share || 1;
  return [low - room, high + room];
}

function ticks([low, high], count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + 1e-9 * step; tick++)
    found.push(+(tick * step).toPrecision(12));
  return found;
}

// Decimals that a number needs; JavaScript writes small ones as 5e-7.
function decimalsOf(value) {
  const [digits, exponent] = String(value).split("e");
  return Math.max(0, (digits.split(".")[1] ?? "").length - Number(exponent ?? 0));
}

// Labels of ticks: as many decimals as the finest needs.
function tickLabels(values) {
  const decimals = Math.max(0, ...values.map(decimalsOf));
  return values.map((value) => (decimals > 6 ? value.toExponential(1) : value.toFixed(decimals)).replace("-", "−"));
}

// A frame with labelled axes. `x` and `y`: {domain, label, whole: ticks at whole numbers only, ticks: how many}.
function frame(figure, { title, height, x, y, left = 56, right = 12, description }) {
  const width = Math.max(260, figure.clientWidth),
    top = 8,
    bottom = 38;
  const inner = { left, top, width: width - left - right, height: height - top - bottom };
  const scale = (domain, from, to) => (value) =>
    from + ((value - domain[0]) / (domain[1] - domain[0] || 1)) * (to - from);
  const sx = scale(x.domain, left, left + inner.width),
    sy = scale(y.domain, top + inner.height, top);
  const svg = element("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": description,
  });
  const all = (domain, axis, count) =>
    ticks(domain, axis.ticks ?? count).filter((tick) => !axis.whole || Number.isInteger(tick));
  const yTicks = y.ticks === 0 ? [] : all(y.domain, y, inner.height / 45),
    yLabels = tickLabels(yTicks);
  for (const [i, tick] of yTicks.entries()) {
    svg.append(
      element("line", { class: "grid-line", x1: left, x2: left + inner.width, y1: sy(tick), y2: sy(tick) }),
      element("text", { x: left - 6, y: sy(tick) + 4, "text-anchor": "end" }, yLabels[i]),
    );
  }
  const xTicks = all(x.domain, x, inner.width / 80),
    xLabels = tickLabels(xTicks);
  for (const [i, tick] of xTicks.entries()) {
    svg.append(
      element("line", {
        class: "axis",
        x1: sx(tick),
        x2: sx(tick),
        y1: top + inner.height,
        y2: top + inner.height + 4,
      }),
      element("text", { x: sx(tick), y: top + inner.height + 17, "text-anchor": "middle" }, xLabels[i]),
    );
  }
  svg.append(
    element("line", {
      class: "axis",
      x1: left,
      x2: left + inner.width,
      y1: top + inner.height,
      y2: top + inner.height,
    }),
    element("text", { x: left + inner.width / 2, y: height - 4, "text-anchor": "middle" }, x.label),
  );
  if (y.label)
    svg.append(
      element(
        "text",
        { transform: `translate(13 ${top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle" },
        y.label,
      ),
    );
  const id = `clip-${(frame.count = (frame.count ?? 0) + 1)}`;
  const plot = element("g", { "clip-path": `url(#${id})` });
  svg.append(
    element(
      "clipPath",
      { id },
      element("rect", { x: left, y: top - 3, width: inner.width + 3, height: inner.height + 6 }),
    ),
    plot,
  );
  const focused = figure.contains(document.activeElement);
  figure.replaceChildren(...(title ? [element("h3", {}, title)] : []), svg);
  return { svg, plot, sx, sy, inner, width, focused };
}

function linePath(xs, ys, { sx, sy }) {
  let path = "",
    pen = "M";
  for (let i = 0; i < ys.length; i++) {
    if (!Number.isFinite(ys[i])) {
      pen = "M";
      continue;
    }
    path += `${pen}${sx(xs[i]).toFixed(1)} ${sy(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function bandPath(xs, low, high, { sx, sy }) {
  const at = (ys) => (i) => `${sx(xs[i]).toFixed(1)} ${sy(ys[i]).toFixed(1)}`;
  const order = [...xs.keys()].filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
  return order.length ? `M${order.map(at(high)).join("L")}L${order.reverse().map(at(low)).join("L")}Z` : "";
}

// The mean of the last `width` values, of fewer at the start.
function smooth(values, width) {
  if (width <= 1) return values;
  const result = new Float32Array(values.length);
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    sum += values[i] - (i >= width ? values[i - width] : 0);
    result[i] = sum / Math.min(i + 1, width);
  }
  return result;
}

function cividis(share) {
  const place = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1),
    below = Math.min(CIVIDIS.length - 2, Math.floor(place));
  const parse = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [a, b] = [parse(CIVIDIS[below]), parse(CIVIDIS[below + 1])];
  return a.map((channel, i) => Math.round(channel + (b[i] - channel) * (place - below)));
}

// Values by round and client as a picture; `colour` gives [r, g, b] or null for nothing.
function heatMap(
  figure,
  { title, rounds, clients, value, colour, key, caption, readout, onPick, description, marked },
) {
  const height = Math.max(170, Math.min(330, clients * 4 + 60));
  const view = frame(figure, {
    title,
    height,
    description,
    x: { domain: [rounds[0] - 0.5, rounds.at(-1) + 0.5], label: "round", whole: true },
    y: { domain: [-0.5, clients - 0.5], label: "client id", whole: true },
  });
  const canvas = element("canvas", { width: rounds.length, height: clients });
  const context = canvas.getContext("2d"),
    image = context.createImageData(rounds.length, clients);
  for (let client = 0; client < clients; client++) {
    for (let i = 0; i < rounds.length; i++) {
      const rgb = colour(value(i, client));
      if (rgb) image.data.set([...rgb, 255], 4 * ((clients - 1 - client) * rounds.length + i));
    }
  }
  context.putImageData(image, 0, 0);
  const { left, top, width, height: tall } = view.inner;
  view.plot.append(
    element("image", {
      href: canvas.toDataURL(),
      x: left,
      y: top,
      width,
      height: tall,
      preserveAspectRatio: "none",
      style: `image-rendering: ${rounds.length > width ? "auto" : "pixelated"}`,
    }),
  );
  const unit = tall / clients;
  view.plot.append(
    element("rect", { class: "cursor", x: left, width, y: view.sy(marked) - unit / 2, height: unit }),
  );
  figure.append(...(key ? [key] : []), element("figcaption", {}, caption));
  explore(figure, view, {
    columns: rounds.length,
    rows: clients,
    start: [rounds.length - 1, marked],
    locate: (x, y) => [
      Math.floor(((x - left) / width) * rounds.length),
      clients - 1 - Math.floor(((y - top) / tall) * clients),
    ],
    mark: (column, row) => ({ x: view.sx(rounds[column]), y: view.sy(row) }),
    readout,
    onPick,
  });
}

function colourBar(low, high, label) {
  const stops = CIVIDIS.map((colour, i) => `${colour} ${(100 * i) / (CIVIDIS.length - 1)}%`).join(",");
  const bar = element("i", { class: "bar", style: `background: linear-gradient(90deg, ${stops})` });
  return element(
    "div",
    { class: "key" },
    element("span", {}, format(low), bar, format(high)),
    element("span", {}, label),
  );
}

// Pointer and arrow keys move a cursor over a chart; `readout(column, row)` says what is there.
function explore(figure, view, { columns, rows = 1, start, locate, mark, readout, onPick }) {
  const output = element("output", { class: "readout", "aria-live": "polite" });
  const cursor = element("path", { class: "cursor" });
  let at = null;
  const clip = (value, count) => Math.min(count - 1, Math.max(0, value));
  const show = (column, row) => {
    at = [clip(column, columns), clip(row, rows)];
    const { x, y } = mark(...at),
      { left, top, width, height } = view.inner;
    cursor.setAttribute("d", `M${x} ${top}V${top + height}` + (y === undefined ? "" : `M${left} ${y}H${left + width}`));
    output.replaceChildren(...[].concat(readout(...at)));
  };
  const fromEvent = (event) => {
    const box = view.svg.getBoundingClientRect(),
      zoom = view.width / box.width;
    return locate((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
  };
  view.svg.setAttribute("tabindex", "0");
  view.svg.append(cursor);
  figure.append(output);
  if (view.focused) view.svg.focus({ preventScroll: true }); // what is drawn anew keeps the focus
  view.svg.addEventListener("pointermove", (event) => show(...fromEvent(event)));
  view.svg.addEventListener("pointerleave", () => {
    cursor.removeAttribute("d");
    output.replaceChildren();
  });
  view.svg.addEventListener("click", (event) => {
    show(...fromEvent(event));
    onPick?.(...at);
  });
  view.svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step && event.key !== "Enter") return;
    event.preventDefault();
    const [column, row] = at ?? start;
    if (step) show(column + step[0], row + step[1]);
    else onPick?.(column, row);
  });
}

// Horizontal bars made of parts, one bar per row. `rows`: [{name, parts: {phase: value}}].
function stackedBars(figure, { title, rows, unit, caption, description }) {
  const total = (row) => Object.values(row.parts).reduce((sum, value) => sum + (value || 0), 0);
  const view = frame(figure, {
    title,
    height: 52 + 30 * rows.length,
    left: 8,
    description,
    x: { domain: [0, Math.max(...rows.map(total), 1e-9) * 1.02], label: unit },
    y: { domain: [0, rows.length], ticks: 0 },
  });
  rows.forEach((row, index) => {
    const y = view.inner.top + 30 * index;
    let start = 0;
    view.svg.append(
      element(
        "text",
        { class: "name", x: 8, y: y + 10 },
        `${row.name}: ${row.note ?? format(total(row)) + " " + unit}`,
      ),
    );
    for (const [phase, value] of Object.entries(row.parts)) {
      if (!value) continue;
      const bar = element("rect", {
        x: view.sx(start),
        y: y + 14,
        height: 11,
        width: Math.max(0, view.sx(start + value) - view.sx(start)),
        fill: PHASE_COLOURS[phase],
      });
      bar.append(element("title", {}, `${row.name}, ${phase}: ${format(value)} ${unit}`));
      view.plot.append(bar);
      start += value;
    }
  });
  const phases = [...new Set(rows.flatMap((row) => Object.keys(row.parts).filter((phase) => row.parts[phase])))];
  figure.append(
    element(
      "div",
      { class: "key" },
      ...phases.map((phase) =>
        element("span", {}, element("i", { style: `background:${PHASE_COLOURS[phase]}` }), phase),
      ),
    ),
    element("figcaption", {}, caption),
  );
}

// The range of the values without the lowest and the highest share of them.
function robustRange(values, lowest = 0.05, highest = 0) {
  const known = Float32Array.from(values).filter(Number.isFinite).sort();
  return known.length
    ? [known[Math.floor(lowest * (known.length - 1))], known[Math.ceil((1 - highest) * (known.length - 1))]]
    : [0, 1];
}
