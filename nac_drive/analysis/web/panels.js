// Panels of one episode. Each draws a moment; none knows the others.
"use strict";

const COLOURS = ["#0b8ad9", "#2e9e4f", "#d6453d", "#a06bd6", "#c98a12"];
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
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const format = value => !Number.isFinite(value) ? "-" : value.toFixed(Math.abs(value) >= 100 ? 0 : 3);

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

// Least and largest of some values; a constant gets an interval of its own.
function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0, 1];
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

// Lay a map over RGBA pixels. The map has one value for each pixel, `stride` apart.
function blend(pixels, map, stride) {
  for (let i = 0, j = 0; i < pixels.length; i += 4, j += stride) {
    const value = map[j], share = 0.85 * value / 255;
    for (let c = 0; c < 3; c++) pixels[i + c] = (1 - share) * (0.6 * pixels[i + c]) + share * INFERNO[3 * value + c];
  }
}

// What the driver sees, with a saliency map over it. Frames and maps are tiles of one image each.
class FramePanel {
  constructor(canvas, atlas, maps, [height, width], columns) {
    Object.assign(this, { canvas, atlas, maps, height, width, columns, method: "" });
    Object.assign(canvas, { width, height });
    this.context = canvas.getContext("2d", { willReadFrequently: true });
  }
  tile(image, step) {
    const { width, height } = this;
    const x = step % this.columns * width, y = Math.floor(step / this.columns) * height;
    this.context.drawImage(image, x, y, width, height, 0, 0, width, height);
    return this.context.getImageData(0, 0, width, height);
  }
  draw(step) {
    const frame = this.tile(this.atlas, step), map = this.maps[this.method];
    if (!map) return;
    blend(frame.data, this.tile(map, step).data, 4);
    this.context.putImageData(frame, 0, 0);
  }
}

// Draw the circuit from above. Returns the context, and the place of point i of some points [x, y, x, y, ...].
function drawRoad(canvas, road) {
  const [context, width, height] = fit(canvas), edge = 14;
  const [x0, x1] = range(road.filter((_, i) => i % 2 === 0)), [y0, y1] = range(road.filter((_, i) => i % 2));
  const scale = Math.min((width - 2 * edge) / (x1 - x0), (height - 2 * edge) / (y1 - y0));
  const place = (points, i) => [
    width / 2 + (points[2 * i] - (x0 + x1) / 2) * scale, height / 2 - (points[2 * i + 1] - (y0 + y1) / 2) * scale,
  ];
  context.clearRect(0, 0, width, height);
  context.lineWidth = Math.max(13.3 * scale, 3);
  context.strokeStyle = css("--road");
  context.lineJoin = "round";
  context.beginPath();
  for (let i = 0; i < road.length / 2; i++) context.lineTo(...place(road, i));
  context.closePath();
  context.stroke();
  return [context, place];
}

// The circuit from above, painted with a quantity; a ring is the car.
class TrackPanel {
  constructor(canvas, road, position) { Object.assign(this, { canvas, road, position }); }
  paint(values) {
    this.values = values;
    this.bounds = range(values);
  }
  draw(step) {
    const [context, place] = drawRoad(this.canvas, this.road);
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

// Curves over the episode, on one scale, with a cursor.
class LinesPanel {
  constructor(canvas, curves, bounds, legend) {
    Object.assign(this, { canvas, curves, legend, bounds: bounds || range(curves.flatMap(([, values]) => [...values])) });
  }
  draw(step) {
    const [context, width, height] = fit(this.canvas, 92), [low, high] = this.bounds;
    const steps = this.curves[0][1].length, x = i => steps > 1 ? i / (steps - 1) * width : 0;
    const y = value => 4 + (high - value) / (high - low) * (height - 8);
    context.clearRect(0, 0, width, height);
    context.strokeStyle = css("--line");
    for (const level of [low, 0, high]) if (level >= low && level <= high) {
      context.beginPath();
      context.moveTo(0, y(level));
      context.lineTo(width, y(level));
      context.stroke();
    }
    this.curves.forEach(([, values], number) => {
      context.strokeStyle = COLOURS[number % COLOURS.length];
      context.lineWidth = 1.2;
      context.beginPath();
      values.forEach((value, i) => context.lineTo(x(i), y(value)));
      context.stroke();
    });
    cursor(context, x(step), height);
    this.legend.innerHTML = this.curves.map(([name, values], number) =>
      `<b style="color:${COLOURS[number % COLOURS.length]}">${name}</b> ${format(values[step])}`).join(" &nbsp; ");
  }
}

// Rows over the episode as colours: neurons, or ages of attention. Every row has its own scale, or all have one.
class HeatPanel {
  constructor(canvas, steps, rows, value, height, common) {
    Object.assign(this, { canvas, steps, rows, height });
    const image = new ImageData(steps, rows);
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
    this.marked = -1;
  }
  draw(step) {
    const [context, width, height] = fit(this.canvas, this.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, width, height);
    if (this.marked >= 0) {
      const tall = height / this.rows;
      context.strokeStyle = "#fff";
      context.lineWidth = 1.5;
      context.strokeRect(0.75, this.marked * tall, width - 1.5, Math.max(tall, 2));
    }
    cursor(context, step / Math.max(this.steps - 1, 1) * width, height);
  }
  rowAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(Math.floor((event.clientY - box.top) / box.height * this.rows), this.rows - 1);
  }
}

function cursor(context, x, height) {
  context.strokeStyle = css("--text");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.stroke();
}
