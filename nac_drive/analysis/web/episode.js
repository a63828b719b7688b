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

const allLoaded = sources => Promise.all(sources.map(loaded));

const SEEN = { above: "the world from above", seat: "the world from the seat" };

// One episode in one column. `draw(seconds)` shows the decision of that time.
class Episode {
  static async open(data, page) {
    const maps = {};
    for (const [name, sources] of Object.entries(data.saliency)) maps[name] = await allLoaded(sources);
    return new Episode(data, await allLoaded(data.frames), data.other && await allLoaded(data.other.frames), maps, page);
  }
  // Of the page, `last` is the end of the longest episode, `scale(names)` the range of some series in all episodes, and
  // `seek(seconds)` moves the clock.
  constructor(data, atlases, other, maps, { last, scale, seek }) {
    Object.assign(this, { last, scale, seek, title: data.title, series: data.series });
    this.neurons = Object.fromEntries(Object.entries(data.neurons).map(([name, packed]) => [name, unpack(packed)]));
    this.times = this.series.time;
    this.panels = [];
    const section = make("section"), heading = make("h2"), note = make("p", { className: "note" });
    section.append(heading);
    Object.assign(this, { section, heading, note });

    const frame = make("canvas", { className: "frame", role: "img", ariaLabel: "what the driver sees" });
    const track = make("canvas", { className: "track", role: "img", ariaLabel: "the track from above" });
    this.frame = new FramePanel(frame, atlases, maps, data.size);
    this.track = data.position && new TrackPanel(track, unpack(data.road).values, unpack(data.position).values);
    const [overlay, method] = chooser("saliency", ["", ...Object.keys(maps)], name => { this.frame.method = name; this.redraw(); });
    method.value = this.frame.method = Object.keys(maps)[0] || "";
    const names = Object.keys(this.series).filter(name => !["time", "dt"].includes(name));
    const neurons = Object.entries(this.neurons).flatMap(([group, { shape }]) =>
      Array.from({ length: shape[1] }, (_, i) => `${group} ${i}`));
    const [paint, painted] = chooser("paint", [...names, ...neurons], name => this.paint(name));
    this.painted = painted;
    const map = this.track ? [make("div", { className: "lap" }, track, paint, note)] : [];
    const pair = make("div", { className: "pair" }, make("div", {}, frame, overlay), ...map);
    section.append(pair);
    this.panels.push(this.frame, ...(this.track ? [this.track] : []));
    if (other) {
      const canvas = make("canvas", { className: "frame other", role: "img", ariaLabel: SEEN[data.other.view] });
      pair.classList.add("views");
      pair.firstChild.after(make("div", {}, canvas, make("p", { className: "note", textContent: SEEN[data.other.view] })));
      this.panels.push(new FramePanel(canvas, other, {}, data.other.size));
    }

    const plots = make("div");
    section.append(plots);
    const steered = data.actions.includes("steer");
    const recorded = data.actions.filter(name => `recorded ${name}` in this.series);
    for (const name of recorded) this.lines(plots, `${name}, and as it was recorded`, [name, `recorded ${name}`], { unit: name });
    if (!recorded.length) this.lines(plots, steered ? "Actions; positive steer is to the right" : "Actions", data.actions, { unit: "action", bounds: steered && [-1, 1] });
    this.lines(plots, "Speed", ["speed"], { unit: "units/s" });
    this.lines(plots, "Return", ["return"], { unit: "return" });
    const method0 = Object.keys(maps)[0];
    if (method0) {
      const regions = names.filter(name => name.startsWith(`${method0} on `));
      this.lines(plots, `Where ${method0} looks`, regions, { unit: "fraction of map", bounds: [0, 1] }, name => name.split(" on ")[1]);
    }
    if (data.attention) this.attention(plots, unpack(data.attention));
    this.heats = {};
    for (const [group, { shape, values }] of Object.entries(this.neurons)) {
      const node = make("div", { className: "pick" }), [steps, rows] = shape;
      const value = (step, row) => values[step * rows + row];
      const panel = new HeatPanel(node, this.times, rows, value, { unit: "neuron", last: this.last, height: Math.min(Math.max(3 * rows, 60), 200) });
      titled(plots, `Neurons: ${group} (${rows}); each has its own scale${this.track ? "; select one to paint the track" : ""}`, node);
      this.place(node, panel, event => this.paint(`${group} ${panel.rowAt(event)}`));
      this.heats[group] = panel;
    }
    document.querySelector("main").append(section);
    this.paint(["speed", "return"].find(name => name in this.series) || names[0]);
  }
  lines(section, title, names, about, label = name => name) {
    const curves = names.filter(name => name in this.series).map(name => [label(name), this.series[name]]);
    if (!curves.length) return;
    const node = make("div"), legend = make("p", { className: "legend" });
    titled(section, title, node, legend);
    const bounds = about.bounds || uPlot.rangeNum(...this.scale(names), 0.1, true);
    this.place(node, new LinesPanel(node, this.times, curves, legend, { ...about, bounds, last: this.last }));
  }
  // A click on a plot moves the clock there.
  place(node, panel, picked = () => {}) {
    this.panels.push(panel);
    node.onclick = event => {
      picked(event);
      this.seek(panel.value(event, "x"));
    };
  }
  attention(section, { shape, values }) {
    const [, heads, ages] = shape, node = make("div");
    const mean = (step, age) => {
      let sum = 0;
      for (let head = 0; head < heads; head++) sum += values[(step * heads + head) * ages + age];
      return sum / heads / 255;
    };
    const most = Math.min(1, 3 / ages);
    const panel = new HeatPanel(node, this.times, ages, mean, { unit: "frames ago", last: this.last, height: Math.min(Math.max(14 * ages, 60), 160), common: [0, most] });
    titled(section, `Attention: weight of each frame of the window, the present one on top; mean of ${heads} heads, yellow is ${format(most)} or more, uniform ${format(1 / ages)}`, node);
    this.place(node, panel);
    if (this.series["attention entropy"]) this.lines(section, "Entropy of attention", ["attention entropy"], { unit: "1: uniform", bounds: [0, 1] });
  }
  values(name) {
    if (name in this.series) return this.series[name];
    const cut = name.lastIndexOf(" "), { shape, values } = this.neurons[name.slice(0, cut)], row = Number(name.slice(cut + 1));
    return Float32Array.from({ length: shape[0] }, (_, step) => values[step * shape[1] + row]);
  }
  paint(name) {
    this.painted.value = this.name = name;
    const values = this.values(name);
    if (this.track) this.track.paint(values, name in this.series ? this.scale([name]) : range(values));
    for (const [group, panel] of Object.entries(this.heats || {})) {
      panel.choose(name.startsWith(`${group} `) ? Number(name.slice(group.length + 1)) : -1);
    }
    this.redraw();
  }
  redraw() { if (this.shown !== undefined) this.draw(this.shown); }
  draw(seconds) {
    this.shown = seconds;
    let step = this.times.findIndex(time => time > seconds + 5e-4) - 1; // times are float32
    if (step < 0) step = seconds < this.times[0] ? 0 : this.times.length - 1;
    this.panels.forEach(panel => panel.draw(step));
    const end = this.times.at(-1), ended = seconds > end;
    this.section.classList.toggle("ended", ended);
    this.heading.textContent = ended ? `${this.title}; ended at ${end.toFixed(2)} s` : this.title;
    if (!this.track) return;
    const [low, high] = this.track.bounds;
    this.note.textContent = `${this.name}: ${format(this.track.values[step])} (${format(low)} dark to ${format(high)} yellow)`;
  }
}

async function start({ episodes: recordings, moments }) {
  for (const each of recordings) {
    each.series = Object.fromEntries(Object.entries(each.series).map(([name, packed]) => [name, unpack(packed).values]));
  }
  const all = recordings.map(({ series }) => series), last = Math.max(...all.map(({ time }) => time.at(-1)));
  const scale = names => range(all.flatMap(series => names.flatMap(name => [...series[name] || []])), DISTINCT);
  const episodes = [];
  for (const each of recordings) episodes.push(await Episode.open(each, { last, scale, seek: seconds => show(seconds) }));
  document.querySelector("main").classList.toggle("single", episodes.length === 1);
  const [slider, time, play, speed] = ["slider", "time", "play", "speed"].map(id => document.getElementById(id));
  let playing = false, before = 0, now = 0;
  slider.max = last;
  const show = seconds => {
    now = Math.min(Math.max(seconds, 0), last);
    slider.value = now;
    slider.ariaValueText = `${now.toFixed(2)} s`;
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
    if (event.target.matches("select, input:not([type=range])") || browsers(event)) return;
    if (event.key === " " && !event.target.matches("button")) { event.preventDefault(); toggle(); }
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      event.preventDefault();
      show(now + (event.key === "ArrowRight" ? 0.02 : -0.02));
    }
  });
  document.getElementById("moments").append(...moments.map(({ name, seconds }) =>
    make("button", { type: "button", textContent: `${name} ${seconds.toFixed(2)} s`, onclick: () => show(seconds) })));
  const follow = () => { // episode.html#t=6.2
    const asked = new URLSearchParams(location.hash.slice(1)).get("t");
    show(asked === null ? moments[0].seconds : Number(asked) || 0);
  };
  window.addEventListener("hashchange", follow);
  follow();
  document.body.dataset.ready = "yes";
}

start(JSON.parse(document.getElementById("recordings").textContent)).catch(error => {
  document.querySelector("main").textContent = `This page cannot be shown: ${error.message}`;
});
