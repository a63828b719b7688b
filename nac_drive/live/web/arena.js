// The live page: what the server sends is drawn, what is clicked is sent. The server alone knows the state.
"use strict";

const at = id => document.getElementById(id);
const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/race`);
socket.binaryType = "arraybuffer";
const send = message => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
const toggle = (text, title, pressed, clicked) => {
  const button = make("button", { type: "button", textContent: text, title, onclick: () => clicked(!pressed) });
  button.setAttribute("aria-pressed", pressed);
  return button;
};
// Replace the buttons of a bar. The one that had the focus keeps it.
const rebuilt = (bar, buttons) => {
  const focused = bar.contains(document.activeElement) ? document.activeElement.textContent : null;
  bar.replaceChildren(...buttons);
  if (focused !== null) buttons.find(button => button.textContent === focused)?.focus();
};
const SHOWN = {
  driver: "What each driver sees", above: "The world from above", seat: "The world from the seat", both: "Both views side by side",
};
const SHUT_DOWN = 1012; // a server that ends closes with this code
const HISTORY = 300; // decisions that curves and maps show

// The latest values of some names, as curves that LinesPanel draws.
class Curves {
  constructor(section, title, names, bounds) {
    this.values = names.map(() => new Float32Array(HISTORY).fill(NaN));
    const ages = Float32Array.from({ length: HISTORY }, (_, i) => i + 1 - HISTORY);
    const node = make("div"), legend = make("p", { className: "legend" });
    titled(section, title, node, legend);
    const curves = names.map((name, i) => [name, this.values[i]]);
    this.panel = new LinesPanel(node, ages, curves, legend, { across: "decisions before now", unit: "action", bounds });
  }
  push(numbers) {
    this.values.forEach((values, i) => { values.copyWithin(0, 1); values[HISTORY - 1] = numbers[i]; });
  }
  draw() {
    this.panel.draw(HISTORY - 1);
    this.panel.plot.setData(this.panel.data, false);
    this.panel.plot.redraw();
  }
}

// Rows of numbers over the last decisions. Each row has the scale of what it showed so far, or all have a common one.
class RollingHeat {
  constructor(canvas, rows, height, common) {
    Object.assign(this, { canvas, rows, height, common, off: new Set(), row: 0 });
    this.low = new Float32Array(rows).fill(Infinity);
    this.high = new Float32Array(rows).fill(-Infinity);
    this.image = new OffscreenCanvas(HISTORY, rows);
    this.context = this.image.getContext("2d");
  }
  push(values) {
    const column = new ImageData(1, this.rows);
    for (let row = 0; row < this.rows; row++) {
      this.low[row] = Math.min(this.low[row], values[row]);
      this.high[row] = Math.max(this.high[row], values[row]);
      const [low, high] = this.common || [this.low[row], this.high[row]];
      const at = high > low ? Math.round(255 * Math.min(Math.max((values[row] - low) / (high - low), 0), 1)) : 0;
      column.data.set([VIRIDIS[3 * at], VIRIDIS[3 * at + 1], VIRIDIS[3 * at + 2], 255], 4 * row);
    }
    this.context.globalCompositeOperation = "copy"; // shifted, nothing is left behind
    this.context.drawImage(this.image, -1, 0);
    this.context.globalCompositeOperation = "source-over";
    this.context.putImageData(column, HISTORY - 1, 0);
  }
  draw() {
    const [context, width, height] = fit(this.canvas, this.height), tall = height / this.rows;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, width, height);
    context.fillStyle = "#d6453d";
    for (const row of this.off) context.fillRect(0, row * tall, width, Math.max(tall, 1.5));
    if (document.activeElement !== this.canvas) return;
    context.strokeStyle = "#fff";
    context.lineWidth = 2;
    context.strokeRect(1, this.row * tall, width - 2, Math.max(tall, 3));
  }
  rowAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(Math.max(Math.floor((event.clientY - box.top) / box.height * this.rows), 0), this.rows - 1);
  }
}

// Draw a frame on its canvas, with a saliency map over it; without a frame there is no canvas.
function paint(canvas, frame, saliency) {
  canvas.hidden = !frame;
  if (!frame) return;
  const { values: pixels, shape: [height, width] } = frame, image = new ImageData(width, height);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  for (let i = 0, j = 0; j < pixels.length; i += 4, j += 3) {
    image.data[i] = pixels[j];
    image.data[i + 1] = pixels[j + 1];
    image.data[i + 2] = pixels[j + 2];
    image.data[i + 3] = 255;
  }
  if (saliency) blend(image.data, saliency.values, 1);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// One car: what it sees, what it does, what goes on in it, and switches.
class CarPanel {
  constructor(number, car, drivers) {
    Object.assign(this, { number, car, heats: {}, decisions: -1 });
    this.section = make("section", { className: car.human ? "human" : "" });
    this.frame = make("canvas", { className: "frame", width: 96, height: 96, role: "img", ariaLabel: "What the driver sees" });
    this.world = make("canvas", { className: "frame world", role: "img", ariaLabel: "The world" });
    this.facts = make("div", { className: "facts" });
    const driver = this.driver = make("select", { onchange: () => send({ type: "driver", car: number, driver: driver.value }) }, ...drivers.map(name => new Option(name, name)));
    driver.value = car.driver;
    driver.setAttribute("aria-label", `driver of car ${number + 1}`);
    const remove = make("button", { type: "button", textContent: "Remove", onclick: () => send({ type: "remove", car: number }) });
    this.section.append(make("div", { className: "bar who" }, swatch(number), driver, remove), make("div", { className: "views" }, ...(car.view === "seat" ? [this.world, this.frame] : [this.frame, this.world])), this.facts);
    this.switches = make("div", { className: "bar switches" });
    this.section.append(this.switches);
    const steered = car.actions.includes("steer"), title = car.human ? "Your actions: arrow keys, gamepad or pads" : `Actions (${car.control})`;
    this.curves = new Curves(this.section, `${title}${steered ? "; positive steer is to the right" : ""}`, car.actions, steered && [-1, 1]);
    this.update(car);
  }
  update(car) {
    this.car = car;
    this.driver.value = car.driver; // another one may have been refused
    const number = this.number, flip = (type, name) => on => send({ type, car: number, [name]: on });
    const buttons = [toggle("Blind", "The camera gives black frames", car.blind, flip("blind", "on"))];
    if (car.network) buttons.push(toggle("Clock off", "The driver gets the nominal time step at every decision", !car.clock, off => send({ type: "clock", car: number, on: !off })));
    if (this.heads) {
      buttons.push(toggle("Uniform", "All observations of the window get the same weight", car.uniform, flip("uniform", "on")));
      for (let head = 0; head < this.heads; head++) {
        buttons.push(toggle(`Head ${head + 1} off`, "This head contributes nothing", car.heads.includes(head), on => send({ type: "head", car: number, index: head, on })));
      }
    }
    rebuilt(this.switches, buttons);
    for (const [group, heat] of Object.entries(this.heats)) {
      heat.off = new Set(car.zeroed.filter(([name]) => name === group).map(([, index]) => index));
      heat.name?.();
    }
  }
  close() { this.curves.panel.close(); }
  heat(group, rows, switched) {
    const canvas = make("canvas", switched ? { className: "pick" } : {});
    const heat = new RollingHeat(canvas, rows, Math.min(Math.max(2 * rows, 40), 130));
    const flip = index => send({ type: "zero", car: this.number, group, index, on: !heat.off.has(index) });
    if (switched) canvas.onclick = event => flip(heat.rowAt(event));
    canvas.onmousemove = event => { canvas.title = `${group} ${heat.rowAt(event)}${switched ? ": click to hold it at 0, or to let it go" : ""}`; };
    titled(this.section, switched ? `Neurons: ${group} (${rows}); click one to hold it at 0` : `Cells: ${group} (${rows})`, canvas);
    if (switched) { // by keys: arrows choose a neuron, Enter switches it
      Object.assign(canvas, { tabIndex: 0, role: "slider", ariaValueMin: 0, ariaValueMax: rows - 1 });
      heat.name = () => Object.assign(canvas, { ariaValueNow: heat.row, ariaValueText: `${group} ${heat.row}${heat.off.has(heat.row) ? ", held at 0" : ""}` });
      canvas.onkeydown = event => {
        const moved = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (event.key !== "Enter" && !moved) return;
        event.preventDefault();
        event.stopPropagation();
        if (moved) heat.row = Math.min(Math.max(heat.row + moved, 0), rows - 1);
        else flip(heat.row);
        heat.name();
        heat.draw();
      };
      canvas.onfocus = canvas.onblur = () => heat.draw();
      heat.name();
    }
    this.heats[group] = heat;
    this.update(this.car);
    return heat;
  }
  push(car, arrays) {
    const fresh = car.decisions !== this.decisions;
    if (car.decisions < this.decisions) this.decisions = -1;
    this.decisions = car.decisions;
    this.latest = [car, arrays];
    if (!fresh) return;
    this.curves.push(car.command);
    for (const [name, { values, shape }] of Object.entries(arrays)) {
      const [kind, group] = [name.split(" ", 1)[0], name.slice(name.indexOf(" ") + 1)];
      if (kind === "neurons" || kind === "cells") {
        (this.heats[group] || this.heat(group, shape[0], kind === "neurons")).push(values);
      } else if (name === "attention") this.attend(values, ...shape);
    }
  }
  attend(values, heads, ages) {
    if (!this.ages) {
      const canvas = make("canvas"), most = Math.min(1, 3 / ages);
      this.ages = new RollingHeat(canvas, ages, Math.min(12 * ages, 110), [0, most]);
      titled(this.section, `Attention: mean weight of each frame of the window, the present one on top; yellow is ${format(most)} or more, uniform ${format(1 / ages)}`, canvas);
      this.heads = heads;
      this.update(this.car);
    }
    const mean = Float32Array.from({ length: ages }, (_, age) => {
      let sum = 0;
      for (let head = 0; head < heads; head++) sum += values[head * ages + age];
      return sum / heads;
    });
    this.ages.push(mean);
  }
  draw() {
    if (!this.latest) return;
    const [car, arrays] = this.latest;
    paint(this.frame, arrays.frame, arrays.saliency);
    paint(this.world, arrays.world);
    this.section.classList.toggle("ended", car.ended);
    const reported = [["speed", car.speed, value => fixed(value, 0)], ["lap", car.completion, value => `${fixed(100 * value, 0)} %`], ["crashes", car.crashes, String]];
    const facts = [["return", fixed(car.return, 1)], ["time", `${car.seconds.toFixed(1)} s`], ...reported.filter(([, value]) => value !== null).map(([name, value, text]) => [name, text(value)]), ...(car.ended ? [["", "ended"]] : [])];
    this.facts.replaceChildren(...facts.map(([name, value]) => make("div", {}, make("span", { textContent: `${name} ` }), make("b", { textContent: value }))));
    this.curves.draw();
    Object.values(this.heats).forEach(heat => heat.draw());
    if (this.ages) this.ages.draw();
  }
}

// The lap from above with every car.
class MapPanel {
  constructor(road) {
    this.road = Float32Array.from(road);
    this.canvas = make("canvas", { className: "track map" });
    this.legend = make("p", { className: "legend" });
    this.section = make("section", { className: "lap" });
    titled(this.section, "The lap", this.canvas, this.legend);
  }
  draw(cars, names) {
    const [context, place] = drawRoad(this.canvas, this.road);
    cars.forEach((car, number) => {
      const [x, y] = place(car.position, 0).map(value => Math.min(Math.max(value, 7), this.canvas.clientWidth - 7)); // it may leave the map
      context.fillStyle = colour(number);
      context.strokeStyle = css("--text");
      context.lineWidth = 1;
      context.beginPath();
      context.arc(x, y, 6, 0, 7);
      context.fill();
      context.stroke();
    });
    this.legend.replaceChildren(...names.flatMap((name, number) => entry(number, name, fixed(cars[number].return, 0))));
  }
}

let state = null, panels = [], map = null, header = null, waiting = false, failure = "";

function setUp(message) {
  const key = m => JSON.stringify([m.track, m.road.length, m.cars.map(car => car.driver)]);
  const same = state && key(state) === key(message);
  state = message;
  label();
  at("note").textContent = "";
  at("again").disabled = state.marked === null;
  at("again").textContent = state.marked === null ? "Again" : `Again from ${(state.marked / 50).toFixed(2)} s`;
  at("track").value = state.track;
  at("speed").value = String(state.speed);
  at("saliency").checked = state.saliency;
  rebuilt(at("views"), state.views.map(show => toggle(show, SHOWN[show], show === state.shown, () => send({ type: "view", show }))));
  if (same) panels.forEach((panel, i) => panel.update(state.cars[i]));
  else {
    panels.forEach(panel => panel.close());
    panels = state.cars.map((car, number) => new CarPanel(number, car, state.drivers));
    map = state.road.length ? new MapPanel(state.road) : null;
    at("cars").replaceChildren(...(map ? [map.section] : []), ...panels.map(panel => panel.section));
    header = null;
  }
  at("add").replaceChildren(new Option("a car", ""), ...state.drivers.map(name => new Option(name, name)));
  at("add").disabled = state.cars.length >= 4;
  document.body.classList.toggle("driving", state.cars.some(car => car.human));
  for (const slider of sliders) {
    slider.parentElement.style.display = state.left_out.includes(slider.id.slice(6)) ? "none" : "";
    const level = state.levels[slider.id.slice(6)] || 0, output = slider.nextElementSibling;
    slider.value = level;
    output.textContent = level ? slider.dataset.levels.split("|")[level - 1] : "off";
    slider.ariaValueText = output.textContent;
    output.classList.toggle("on", level > 0);
  }
  const now = Object.entries(state.levels).map(([name, level]) => `${name} ${level}`).join(", ");
  document.querySelector("#disturb summary").textContent = `Disturb all cars${now ? `: ${now}` : ""}`;
  document.body.dataset.ready = "yes";
}

// The one control: it starts and stops the clock, and after the last car has ended it starts anew.
const beginning = () => !header || header.frame === 0;
function label() {
  at("pause").textContent = header && header.over ? "New race" : !state.paused ? "Pause" : beginning() ? "Start" : "Go on";
}
function control() {
  if (header && header.over) send({ type: "restart" });
  else send({ type: "pause", on: !state.paused });
}

function show(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (header.cars.length !== panels.length) return; // a new setup is under way
  let offset = 4 + length;
  header.cars.forEach((car, number) => {
    const arrays = {};
    for (const [name, type, shape] of car.arrays) {
      const count = shape.reduce((product, size) => product * size, 1);
      arrays[name] = { shape, values: type === "float32" ? new Float32Array(buffer, offset, count) : new Uint8Array(buffer, offset, count) };
      offset += Math.ceil(arrays[name].values.byteLength / 4) * 4; // padded
    }
    panels[number].push(car, arrays);
  });
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(draw);
  }
}

function draw() {
  waiting = false;
  if (!header) return;
  panels.forEach(panel => panel.draw());
  if (map) map.draw(header.cars, state.cars.map(car => car.driver));
  label();
  at("state").textContent = `${(header.frame / 50).toFixed(2)} s${header.over ? ", over" : ""}`;
  document.body.dataset.frame = header.frame;
}

socket.onmessage = ({ data }) => {
  if (data instanceof ArrayBuffer) return show(data);
  const message = JSON.parse(data);
  if (message.type === "setup") setUp(message);
  else if (message.type === "failure") failure = message.text;
  else at("note").textContent = message.text;
};
socket.onclose = ({ code, reason }) => {
  at("note").textContent = failure ? `The arena has ended: ${failure}`
    : code === SHUT_DOWN ? "The arena has ended."
    : `The connection has ended${reason && `: ${reason}`}. Load the page again.`;
};

at("pause").onclick = control;
at("more").open = matchMedia("(min-width: 60rem) and (min-height: 56rem)").matches;
const sliders = [...document.querySelectorAll("#levels input")];
for (const slider of sliders) slider.oninput = () => send({ type: "perturb", name: slider.id.slice(6), level: Number(slider.value) });
at("step").onclick = () => send({ type: "step" });
at("restart").onclick = () => send({ type: "restart" });
at("mark").onclick = () => send({ type: "mark" });
at("again").onclick = () => send({ type: "again" });
at("next").onclick = () => send({ type: "restart", track: state.track + 1 });
at("track").onchange = () => {
  if (at("track").value === "") at("track").value = state.track;
  else send({ type: "restart", track: Math.max(0, Math.round(Number(at("track").value))) });
};
at("speed").onchange = () => send({ type: "speed", value: Number(at("speed").value) });
at("saliency").onchange = () => send({ type: "saliency", on: at("saliency").checked });
at("add").onchange = () => { if (at("add").value) send({ type: "add", driver: at("add").value }); };
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// The wheel: keys and pads, or a gamepad. Steering follows a key in 0.2 s.
const held = new Set();
const controls = (steer, gas, brake) => JSON.stringify({ type: "controls", steer, gas, brake });
let steer = 0, sent = controls(0, 0, 0); // a page that only watches leaves the wheel alone
const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
document.addEventListener("keydown", event => {
  if (browsers(event)) return;
  if (event.key === " " && !event.target.matches("select, input, button, summary")) {
    event.preventDefault();
    control();
  }
  const written = event.target === at("track") && ["ArrowUp", "ArrowDown"].includes(event.key); // they would choose a track
  if (!KEYS.includes(event.key) || (event.target.matches("select, input") && !written) || !state || !state.cars.some(car => car.human)) return;
  event.preventDefault();
  held.add(event.key);
});
document.addEventListener("keyup", event => held.delete(event.key));
window.addEventListener("blur", () => held.clear());
for (const pad of document.querySelectorAll("#pads button")) {
  pad.onpointerdown = () => { held.add(pad.dataset.key); pad.classList.add("held"); };
  pad.onpointerup = pad.onpointercancel = pad.onpointerleave = () => { held.delete(pad.dataset.key); pad.classList.remove("held"); };
}
setInterval(() => {
  if (!state || !state.cars.some(car => car.human)) return;
  const wanted = Number(held.has("ArrowRight")) - Number(held.has("ArrowLeft"));
  steer += Math.min(Math.max(wanted - steer, -0.1), 0.1);
  let wheel = [steer, Number(held.has("ArrowUp")), Number(held.has("ArrowDown"))];
  const gamepad = [...(navigator.getGamepads ? navigator.getGamepads() : [])].find(Boolean);
  if (gamepad && !held.size) {
    const axis = gamepad.axes[0] || 0, pedal = number => (gamepad.buttons[number] || { value: 0 }).value;
    if (Math.abs(axis) > 0.08 || pedal(6) || pedal(7)) wheel = [axis, pedal(7), pedal(6)];
  }
  const message = controls(Math.min(Math.max(wheel[0], -1), 1), wheel[1], wheel[2]);
  if (message !== sent && socket.readyState === WebSocket.OPEN) socket.send(sent = message);
}, 20);
