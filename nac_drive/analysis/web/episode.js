// The page of one or more recorded episodes: one clock moves all panels.
"use strict";

const chooser = (text, names, chosen) => {
  const select = make("select", { onchange: () => chosen(select.value) }, ...names.map(name => new Option(name || "none", name)));
  return [make("label", {}, text, select), select];
};
const loaded = source => new Promise((done, failed) => {
  const image = new Image();
  image.onload = () => done(image);
  image.onerror = () => failed(new Error("an image of this page cannot be read"));
  image.src = source;
});

// One episode in one column. `draw(seconds)` shows the decision of that time.
class Episode {
  static async open(data) {
    const maps = {};
    for (const [name, source] of Object.entries(data.saliency)) maps[name] = await loaded(source);
    return new Episode(data, await loaded(data.frames), maps);
  }
  constructor(data, atlas, maps) {
    this.series = Object.fromEntries(Object.entries(data.series).map(([name, packed]) => [name, unpack(packed).values]));
    this.neurons = Object.fromEntries(Object.entries(data.neurons).map(([name, packed]) => [name, unpack(packed)]));
    this.times = this.series.time;
    this.panels = [];
    const section = make("section"), note = make("p", { className: "note" });
    section.append(make("h2", { textContent: data.title }));
    this.note = note;

    const frame = make("canvas", { className: "frame" }), track = make("canvas", { className: "track" });
    this.frame = new FramePanel(frame, atlas, maps, data.size, data.columns);
    this.track = new TrackPanel(track, unpack(data.road).values, unpack(data.position).values);
    const [overlay, method] = chooser("saliency", ["", ...Object.keys(maps)], name => { this.frame.method = name; this.redraw(); });
    method.value = this.frame.method = Object.keys(maps)[0] || "";
    const names = Object.keys(this.series).filter(name => !["time", "dt"].includes(name));
    const neurons = Object.entries(this.neurons).flatMap(([group, { shape }]) =>
      Array.from({ length: shape[1] }, (_, i) => `${group} ${i}`));
    const [paint, painted] = chooser("paint", [...names, ...neurons], name => this.paint(name));
    this.painted = painted;
    section.append(make("div", { className: "pair" },
      make("div", {}, frame, overlay), make("div", {}, track, paint, note)));
    this.panels.push(this.frame, this.track);

    this.lines(section, "Actions", ["steer", "gas", "brake"], [-1, 1]);
    this.lines(section, "Speed, units/s", ["speed"]);
    this.lines(section, "Return", ["return"]);
    const method0 = Object.keys(maps)[0];
    if (method0) {
      const regions = ["far road", "near road", "verge", "grass", "status bar"].map(region => `${method0} on ${region}`);
      this.lines(section, `Where ${method0} looks: fraction of the map`, regions, [0, 1], name => name.split(" on ")[1]);
    }
    if (data.attention) this.attention(section, unpack(data.attention));
    this.heats = {};
    for (const [group, { shape, values }] of Object.entries(this.neurons)) {
      const canvas = make("canvas", { className: "pick" }), [steps, rows] = shape;
      const panel = new HeatPanel(canvas, steps, rows, (step, row) => values[step * rows + row], Math.min(Math.max(3 * rows, 48), 200));
      canvas.onclick = event => this.paint(`${group} ${panel.rowAt(event)}`);
      section.append(make("h3", { textContent: `Neurons: ${group} (${rows}); each has its own scale; select one to paint the track` }), canvas);
      this.heats[group] = panel;
      this.panels.push(panel);
    }
    document.querySelector("main").append(section);
    this.paint("speed");
  }
  lines(section, title, names, bounds, label = name => name) {
    const curves = names.filter(name => name in this.series).map(name => [label(name), this.series[name]]);
    if (!curves.length) return;
    const canvas = make("canvas"), legend = make("p", { className: "legend" });
    section.append(make("h3", { textContent: title }), canvas, legend);
    this.panels.push(new LinesPanel(canvas, curves, bounds, legend));
  }
  attention(section, { shape, values }) {
    const [steps, heads, ages] = shape, canvas = make("canvas");
    const mean = (step, age) => {
      let sum = 0;
      for (let head = 0; head < heads; head++) sum += values[(step * heads + head) * ages + age];
      return sum / heads / 255;
    };
    const panel = new HeatPanel(canvas, steps, ages, mean, Math.min(14 * ages, 160), [0, Math.min(1, 3 / ages)]);
    section.append(make("h3", { textContent: `Attention: weight of each frame of the window, the present one on top; mean of ${heads} heads, yellow is ${format(Math.min(1, 3 / ages))} or more, uniform ${format(1 / ages)}` }), canvas);
    this.panels.push(panel);
    if (this.series["attention entropy"]) this.lines(section, "Entropy of attention (1: uniform)", ["attention entropy"], [0, 1]);
  }
  values(name) {
    if (name in this.series) return this.series[name];
    const cut = name.lastIndexOf(" "), { shape, values } = this.neurons[name.slice(0, cut)], row = Number(name.slice(cut + 1));
    return Float32Array.from({ length: shape[0] }, (_, step) => values[step * shape[1] + row]);
  }
  paint(name) {
    this.painted.value = this.name = name;
    this.track.paint(this.values(name));
    for (const [group, panel] of Object.entries(this.heats || {})) {
      panel.marked = name.startsWith(`${group} `) ? Number(name.slice(group.length + 1)) : -1;
    }
    this.redraw();
  }
  redraw() { if (this.shown !== undefined) this.draw(this.shown); }
  draw(seconds) {
    this.shown = seconds;
    let step = this.times.findIndex(time => time > seconds + 1e-6) - 1;
    if (step < 0) step = seconds < this.times[0] ? 0 : this.times.length - 1;
    this.panels.forEach(panel => panel.draw(step));
    const [low, high] = this.track.bounds;
    this.note.textContent = `${this.name}: ${format(this.track.values[step])} (${format(low)} dark to ${format(high)} yellow)`;
  }
}

async function start(recordings) {
  const episodes = [];
  for (const each of recordings) episodes.push(await Episode.open(each));
  const [slider, time, play, speed] = ["slider", "time", "play", "speed"].map(id => document.getElementById(id));
  const last = Math.max(...episodes.map(episode => episode.times.at(-1)));
  let playing = false, before = 0, now = 0;
  slider.max = last;
  const show = seconds => {
    now = Math.min(Math.max(seconds, 0), last);
    slider.value = now;
    time.textContent = `${now.toFixed(2)} / ${last.toFixed(2)} s`;
    episodes.forEach(episode => episode.draw(now));
  };
  const tick = stamp => {
    if (!playing) return;
    show(now + (stamp - before) / 1000 * Number(speed.value));
    before = stamp;
    if (now >= last) toggle(); else requestAnimationFrame(tick);
  };
  const toggle = () => {
    playing = !playing;
    play.textContent = playing ? "Pause" : "Play";
    if (!playing) return;
    if (now >= last) now = 0;
    before = performance.now();
    requestAnimationFrame(tick);
  };
  play.onclick = toggle;
  slider.oninput = () => show(Number(slider.value));
  window.addEventListener("resize", () => show(now));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(now));
  document.addEventListener("keydown", event => {
    if (event.target.matches("select, input:not([type=range]), button")) return;
    if (event.key === " ") { event.preventDefault(); toggle(); }
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      event.preventDefault();
      show(now + (event.key === "ArrowRight" ? 0.02 : -0.02));
    }
  });
  show(Number(new URLSearchParams(location.hash.slice(1)).get("t")) || 0);  // episode.html#t=6.2
  document.body.dataset.ready = "yes";
}

start(JSON.parse(document.getElementById("recordings").textContent)).catch(error => {
  document.querySelector("main").textContent = `This page cannot be shown: ${error.message}`;
});
