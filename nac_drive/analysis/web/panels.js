// Panels of one episode. Each draws a moment; none knows the others.
"use strict";

const COLOURS = ["#0b8ad9", "#2e9e4f", "#d6453d", "#a06bd6", "#c98a12", "#12a09b", "#d65fa0", "#7d828a"];
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis
const HEAT = [[0, 0, 0], [120, 28, 109], [237, 105, 37], [252, 255, 164]]; // inferno

function palette(stops) {
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = i / 255 * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
    for (let c = 0; c < 3; c++) table[3 * i + c] = stops[low][c] + part * (stops[low + 1][c] - stops[low][c]);
  }
  return table;
}
const VIRIDIS = palette(STOPS), INFERNO = palette(HEAT);

const make = (tag, attributes = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
};
// Append a heading, and below it the drawing that it names. To a screen reader the drawing is one image.
const titled = (section, title, drawing, ...more) =>
  section.append(make("h3", { textContent: title }), Object.assign(drawing, { role: "img", ariaLabel: title }), ...more);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]+$)/, ""); // no -0.000
const format = value => !Number.isFinite(value) ? "-" : fixed(value, Math.abs(value) >= 100 ? 0 : 3);
const DISTINCT = 0.001; // the least difference that such a text shows

// Arrays come as base64: {type, shape, data}.
function unpack({ type, shape, data }) {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const values = type === "float32" ? new Float32Array(bytes.buffer) : bytes;
  return { shape, values };
}

// Make the pixels of a canvas those of the screen; returns its context and size in CSS pixels.
function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 300, tall = height || canvas.clientHeight || width;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(tall * ratio);
  if (height) canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [context, width, tall];
}

// Least and largest of some values; what spans less than `least`, such as a constant, gets an interval of its own.
function range(values, least = 0) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0, 1];
  return high > low && high - low >= least ? [low, high] : [low - 0.5, high + 0.5];
}

// Lay a map over RGBA pixels: a pixel that counts for nothing keeps its colour. The map has one value for each pixel,
// `stride` apart.
function blend(pixels, map, stride) {
  for (let i = 0, j = 0; i < pixels.length; i += 4, j += stride) {
    const value = map[j], share = 0.85 * value / 255;
    for (let c = 0; c < 3; c++) pixels[i + c] = (1 - share) * pixels[i + c] + share * INFERNO[3 * value + c];
  }
}

// What the driver sees, with a saliency map over it. Frames and maps are tiles of larger images, which all hold as many
// as the first one.
class FramePanel {
  constructor(canvas, atlases, maps, [height, width]) {
    Object.assign(this, { canvas, atlases, maps, height, width, method: "" });
    Object.assign(canvas, { width, height });
    this.context = canvas.getContext("2d", { willReadFrequently: true });
  }
  tile(images, step) {
    const { width, height } = this, columns = images[0].naturalWidth / width, most = columns * images[0].naturalHeight / height;
    const at = step % most, x = at % columns * width, y = Math.floor(at / columns) * height;
    this.context.drawImage(images[Math.floor(step / most)], x, y, width, height, 0, 0, width, height);
    return this.context.getImageData(0, 0, width, height);
  }
  draw(step) {
    const frame = this.tile(this.atlases, step), map = this.maps[this.method];
    if (!map) return;
    blend(frame.data, this.tile(map, step).data, 4);
    this.context.putImageData(frame, 0, 0);
  }
}

// Draw the circuit from above, with room for what drove beside it. Returns the context, and the place of point i of some
// points [x, y, x, y, ...].
function drawRoad(canvas, road, driven = []) {
  const [context, width, height] = fit(canvas), edge = 14;
  const all = [...road, ...driven];
  const [x0, x1] = range(all.filter((_, i) => i % 2 === 0)), [y0, y1] = range(all.filter((_, i) => i % 2));
  const scale = Math.min((width - 2 * edge) / (x1 - x0), (height - 2 * edge) / (y1 - y0));
  const place = (points, i) => [
    width / 2 + (points[2 * i] - (x0 + x1) / 2) * scale, height / 2 - (points[2 * i + 1] - (y0 + y1) / 2) * scale,
  ];
  context.clearRect(0, 0, width, height);
  context.lineWidth = Math.min(Math.max(13.3 * scale, 3), width / 20);
  context.strokeStyle = css("--road");
  context.lineJoin = "round";
  context.beginPath();
  for (let i = 0; i < road.length / 2; i++) context.lineTo(...place(road, i));
  const [first, end] = [place(road, 0), place(road, road.length / 2 - 1)];
  if (Math.hypot(first[0] - end[0], first[1] - end[1]) < width / 8) context.closePath(); // a circuit
  context.stroke();
  return [context, place];
}

// The circuit from above, painted with a quantity; a ring is the car.
class TrackPanel {
  constructor(canvas, road, position) { Object.assign(this, { canvas, road, position }); }
  paint(values, bounds) { Object.assign(this, { values, bounds }); }
  draw(step) {
    const [context, place] = drawRoad(this.canvas, this.road, this.position);
    const [low, high] = this.bounds;
    for (let i = 0; i < this.values.length; i++) {
      const at = Math.round(255 * (this.values[i] - low) / (high - low));
      context.fillStyle = `rgb(${VIRIDIS.slice(3 * at, 3 * at + 3).join(",")})`;
      const [x, y] = place(this.position, i);
      context.fillRect(x - 1.5, y - 1.5, 3, 3);
    }
    const [x, y] = place(this.position, step);
    context.lineWidth = 2.5;
    context.strokeStyle = css("--text");
    context.beginPath();
    context.arc(x, y, 6, 0, 7);
    context.stroke();
  }
}

// A plot with axes (uPlot) and a line at the present moment. It is made when it is first drawn: only then it has a width.
// `data` holds the values of the horizontal axis and of every curve, `last` is the end of the axis.
class Plot {
  constructor(node, height, { data, last, across = "time, s", unit, series, y, picture, axes }) {
    Object.assign(this, { node, height, data, last, across, unit, series, y, picture, axes, now: data[0][0] });
    node.classList.add("plot");
  }
  open() {
    const { node, height, data, last, series, y, picture } = this;
    this.line = make("div", { className: "now" });
    this.plot = new uPlot({
      width: node.clientWidth, height, padding: [8, 8, 0, 0], legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, range: [data[0][0], last] }, y }, series: [{}, ...series],
      axes: [axis(this.across, { size: 26, labelSize: 14, space: 60, ...this.axes }), axis(this.unit, { size: 46, labelSize: 16, ...this.axes })],
      hooks: { drawClear: picture ? [picture] : [], draw: [() => this.mark(this.now)] },
    }, data, node);
    this.plot.over.append(this.line);
    const sized = new ResizeObserver(() => node.clientWidth && this.plot.setSize({ width: node.clientWidth, height }));
    const dark = matchMedia("(prefers-color-scheme: dark)"), recoloured = () => this.plot.redraw();
    sized.observe(node);
    dark.addEventListener("change", recoloured);
    this.close = () => {
      sized.disconnect();
      dark.removeEventListener("change", recoloured);
      this.plot.destroy();
    };
  }
  close() {} // it was never drawn
  mark(now) {
    this.now = now;
    if (!this.plot) this.open();
    this.line.style.left = `${this.plot.valToPos(now, "x")}px`;
  }
  // Value of a scale, x or y, under the pointer.
  value(event, scale) {
    const box = this.plot.over.getBoundingClientRect();
    return this.plot.posToVal(scale === "x" ? event.clientX - box.left : event.clientY - box.top, scale);
  }
}
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const axis = (label, room) => ({
  label, stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1 },
  ticks: { stroke: () => css("--line"), width: 1, size: 4 }, font: FONT, labelFont: FONT, gap: 3, labelGap: 0, ...room,
});

// Curves [name, values] on one scale, with the values of the present moment below.
class LinesPanel extends Plot {
  constructor(node, times, curves, legend, { bounds, ...about }) {
    const series = curves.map(([label], number) => ({ label, stroke: colour(number), width: 1.3, points: { show: false } }));
    const data = [times, ...curves.map(([, values]) => values)];
    super(node, 132, { data, series, last: times.at(-1), y: bounds ? { range: bounds } : {}, ...about });
    Object.assign(this, { curves, legend });
  }
  draw(step) {
    this.mark(this.data[0][step]);
    this.legend.replaceChildren(...this.curves.flatMap(([name, values], number) => entry(number, name, format(values[step]))));
  }
}
const colour = number => COLOURS[number % COLOURS.length];
const swatch = number => {
  const node = make("span", { className: "swatch" });
  node.style.background = colour(number);
  return node;
};
// Entry `number` of a legend. A word joiner keeps the swatch at its name.
const entry = (number, name, value) => [swatch(number), "\u2060", make("b", { textContent: name }), ` ${value}   `];

// Rows as colours: neurons, or ages of attention. Every row has its own scale, or all have one.
class HeatPanel extends Plot {
  constructor(node, times, rows, value, { height, common, ...about }) {
    const y = { range: [0, rows], dir: -1 }, data = [times, times.map(() => null)], series = [{ points: { show: false } }];
    const axes = { grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] };
    super(node, height + 48, { data, y, series, axes, last: times.at(-1), ...about, picture: () => this.paint() });
    Object.assign(this, { times, rows, chosen: -1 });
    const steps = times.length, image = new ImageData(steps, rows);
    for (let row = 0; row < rows; row++) {
      const values = Float32Array.from({ length: steps }, (_, step) => value(step, row));
      const [low, high] = common || range(values);
      values.forEach((each, step) => {
        const at = Math.round(255 * Math.min(Math.max((each - low) / (high - low), 0), 1));
        image.data.set([...VIRIDIS.slice(3 * at, 3 * at + 3), 255], 4 * (row * steps + step));
      });
    }
    this.image = new OffscreenCanvas(steps, rows);
    this.image.getContext("2d").putImageData(image, 0, 0);
  }
  draw(step) { this.mark(this.times[step]); }
  // A decision is shown until the next one, however long that takes.
  paint() {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.imageSmoothingEnabled = false;
    const edges = Array.from(this.times, time => Math.round(this.plot.valToPos(time, "x", true)));
    edges.forEach((left, step) => {
      const wide = Math.max((edges[step + 1] ?? left) - left, 1);
      ctx.drawImage(this.image, step, 0, 1, this.rows, left, bbox.top, wide, bbox.height);
    });
    if (this.chosen >= 0) {
      const tall = bbox.height / this.rows;
      ctx.strokeStyle = "#fff";
      ctx.lineWidth = 2;
      ctx.strokeRect(bbox.left + 1, bbox.top + this.chosen * tall, bbox.width - 2, Math.max(tall, 3));
    }
    ctx.restore();
  }
  choose(row) {
    if (row === this.chosen) return;
    this.chosen = row;
    if (this.plot) this.plot.redraw(false);
  }
  rowAt(event) { return Math.min(Math.max(Math.floor(this.value(event, "y")), 0), this.rows - 1); }
}

// After a click with the mouse, keys are for the page. A control that was reached by keys is used by keys.
let pointed = false;
document.addEventListener("pointerdown", () => { pointed = true; }, true);
document.addEventListener("keydown", event => { if (event.key === "Tab") pointed = false; }, true);
document.addEventListener("click", event => { if (event.detail) event.target.closest("button, summary, [type=checkbox]")?.blur(); });
document.addEventListener("change", event => { if (pointed) event.target.blur(); });
// Whether a key is the browser's own, such as Alt and an arrow, or held down.
const browsers = event => event.altKey || event.ctrlKey || event.metaKey || (event.key === " " && event.repeat);
