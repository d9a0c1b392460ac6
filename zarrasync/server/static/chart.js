// A line chart of the values along one axis. Dragging selects a range; keys move the cursor and zoom.

import { ask, byId, coordinate, digitsFor, draw, latest, make, notice, numberTicks, symbol, ticks, titled, trimmed, withUnit } from "./page.js";

const POINTS = 1200;
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 50, 12, 40]; // the least pixels around the curves
const LEAST = 8; // elements of the shortest range

export class Chart {
  constructor(section, { changed }) {
    this.changed = changed;
    this.svg = draw("svg", { tabindex: 0, role: "application" });
    this.output = make("output", { "aria-live": "polite" });
    this.legend = make("p", { className: "legend" });
    section.append(make("div", { className: "frame" }, this.svg, this.#buttons()), this.output, this.legend);
    new ResizeObserver(() => this.#paint()).observe(this.svg);
    for (const name of ["down", "move", "up", "cancel", "leave"]) this.svg.addEventListener(`pointer${name}`, (event) => this.#pointer(name, event));
    this.svg.addEventListener("dblclick", () => this.zoom(1, 0));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.load = latest((signal) => this.#load(signal));
  }

  /** Shows the values of an array. `before` and `after` are the indices of the other axes. */
  show({ path, axis, before = [], after = [], span = null, decoding = {} }) {
    Object.assign(this, { path, axis, before, after, decoding, told: null, at: null });
    this.span = span ?? [0, axis.size];
    this.svg.replaceChildren();
    return this.load();
  }

  get isWhole() {
    return this.span[0] === 0 && this.span[1] === this.axis.size;
  }

  /** Shows a part of the range, whose length is a share of the present one, from an element on; all of it for 0 elements. */
  zoom(share, first) {
    const length = Math.max(LEAST, Math.round((this.span[1] - this.span[0]) * share));
    const begin = Math.max(0, Math.min(Math.round(first), this.axis.size - length));
    this.span = share === 1 && first === 0 ? [0, this.axis.size] : [begin, Math.min(begin + length, this.axis.size)];
    this.changed();
    return this.load();
  }

  async #load(signal) {
    const select = [...this.before, `${this.span[0]}:${this.span[1]}`, ...this.after].join(",");
    let problem = null;
    const told = await ask("chart", { path: this.path, select, points: POINTS, ...this.decoding }, { signal, failed: (text, status) => (problem = { text, status }) });
    if (signal.aborted) return null;
    if (problem?.status === 413 && this.isWhole && this.axis.size > 1_000_000) {
      notice("The array is too long for one chart: its first million elements are shown.");
      this.span = [0, 1_000_000];
      return this.load();
    }
    if (problem) notice(problem.text);
    this.told = told;
    return this.#paint();
  }

  // ------------------------------------------------------------ drawing

  #paint() {
    const { told, svg } = this;
    const box = svg.getBoundingClientRect();
    if (!told || !box.width) return;
    const lows = told.curves.flatMap(({ values, low }) => values ?? low).filter(Number.isFinite);
    const highs = told.curves.flatMap(({ values, high }) => values ?? high).filter(Number.isFinite);
    const least = lows.reduce((a, b) => Math.min(a, b), Infinity);
    const most = highs.reduce((a, b) => Math.max(a, b), -Infinity);
    const margin = (most - least) / 25 || Math.max(1, Math.abs(most) / 1e6); // enough to change a large number
    this.range = least <= most ? [least - margin, most + margin] : [0, 1];
    const digits = digitsFor(...this.range);
    this.rows = numberTicks(...this.range, Math.max(2, (box.height - TOP - BOTTOM) / 50)).map((value) => ({ value, text: `${trimmed(value, digits)}` }));
    this.left = Math.max(LEFT, 18 + 7.7 * Math.max(...this.rows.map(({ text }) => text.length)));
    this.size = [box.width - this.left - RIGHT, box.height - TOP - BOTTOM];
    svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    svg.setAttribute("aria-label", `chart from ${coordinate(this.axis, this.span[0])} to ${coordinate(this.axis, this.span[1] - 1)}, ${trimmed(this.range[0])} to ${withUnit(trimmed(this.range[1]), told.unit)}: arrow keys read values, plus and minus zoom, 0 shows all`);
    svg.replaceChildren(...this.#frame(), ...told.curves.map((curve, number) => this.#curve(curve, number)), draw("g", { class: "cursor" }));
    this.legend.replaceChildren(...(told.curves.length > 1 ? told.curves.map(({ name }, number) => make("span", { className: `curve-${number}` }, name)) : []));
    if (!lows.length) this.legend.append(" There are no finite values.");
    this.legend.append(told.width > 1 ? ` Each point shows the least and the greatest of ${told.width.toLocaleString("en")} values.` : "");
    if (this.at !== null) this.#point(this.at);
  }

  #x(element) {
    const [first, end] = this.span;
    return this.left + (this.size[0] * (element - first)) / Math.max(end - 1 - first, 1);
  }

  #y(value) {
    const [least, most] = this.range;
    return TOP + this.size[1] * (1 - (value - least) / (most - least));
  }

  #frame() {
    const { left, rows } = this;
    const [right, bottom] = [left + this.size[0], TOP + this.size[1]];
    const across = ticks(this.axis, this.span[0], this.span[1] - 1, Math.max(2, this.size[0] / 90));
    const unit = symbol(this.told.unit);
    return [
      ...rows.flatMap(({ value, text }) => [
        draw("line", { x1: left, x2: right, y1: this.#y(value), y2: this.#y(value), class: "rule" }),
        draw("text", { x: left - 8, y: this.#y(value) + 4, "text-anchor": "end" }, text),
      ]),
      ...across.flatMap(({ index, text }) => [
        draw("line", { x1: this.#x(index), x2: this.#x(index), y1: bottom, y2: bottom + 5, class: "tick" }),
        draw("text", { x: this.#x(index), y: bottom + 18, "text-anchor": "middle" }, text),
      ]),
      draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "tick" }),
      draw("text", { x: right, y: bottom + 34, "text-anchor": "end", class: "name" }, titled(this.axis)),
      ...(unit ? [draw("text", { x: 4, y: bottom + 34, class: "name" }, `in ${unit}`)] : []),
    ];
  }

  #curve({ values, low, high }, number) {
    const { start, step, width } = this.told;
    const element = (point) => Math.min(start + step * (point * width + (width - 1) / 2), this.span[1] - 1);
    const at = (point, value) => `${this.#x(element(point)).toFixed(1)} ${this.#y(value).toFixed(1)}`;
    const numbers = values ?? high;
    const isShown = (point) => Number.isFinite(numbers[point]) && (values !== undefined || Number.isFinite(low[point]));
    const runs = []; // of points that are neither missing nor infinite
    numbers.forEach((_, point) => {
      if (!isShown(point)) return;
      if (point && isShown(point - 1)) runs.at(-1).push(point);
      else runs.push([point]);
    });
    const line = (points, source) => points.map((point) => at(point, source[point])).join("L");
    const alone = (points) => (points.length === 1 ? "h0.01" : ""); // round ends make a dot
    const path = runs.map((points) => `M${line(points, numbers)}${values ? alone(points) : `L${line([...points].reverse(), low)}Z`}`).join("");
    return draw("path", { d: path, class: `${values ? "line" : "band"} curve-${number}` });
  }

  /** Marks a point and tells its values. */
  #point(point) {
    const { told, svg } = this;
    if (!told?.curves[0]) return;
    const count = (told.curves[0].values ?? told.curves[0].low).length;
    this.at = Math.max(0, Math.min(point, count - 1));
    const first = told.start + told.step * this.at * told.width;
    const last = Math.min(first + told.step * (told.width - 1), this.span[1] - 1);
    const x = this.#x((first + last) / 2);
    const parts = told.curves.map(({ name, values, low, high }) => {
      const [least, most] = values ? [values[this.at], values[this.at]] : [low[this.at], high[this.at]];
      const text = least === null ? "missing" : values ? withUnit(trimmed(least, 9), told.unit) : `${trimmed(least)} to ${withUnit(trimmed(most), told.unit)}`;
      return name ? `${name} ${text}` : text;
    });
    const where = first === last ? coordinate(this.axis, first) : `${coordinate(this.axis, first)} to ${coordinate(this.axis, last)}`;
    this.output.textContent = `${this.axis.name} ${where}: ${parts.join(", ")}`;
    const dots = told.curves.flatMap(({ values }) => (values && Number.isFinite(values[this.at]) ? [draw("circle", { cx: x, cy: this.#y(values[this.at]), r: 4 })] : []));
    svg.querySelector(".cursor").replaceChildren(draw("line", { x1: x, x2: x, y1: TOP, y2: TOP + this.size[1] }), ...dots);
  }

  // ------------------------------------------------------------ input

  #buttons() {
    const button = (text, label, act) => {
      const element = make("button", { type: "button", "aria-label": label }, text);
      element.addEventListener("click", act);
      return element;
    };
    const [zoomIn, out] = [() => this.#around(0.5), () => this.#around(2)];
    return make("div", { className: "zoom" }, button("+", "zoom into the chart", zoomIn), button("−", "zoom out of the chart", out), button("⤢", "show the whole chart", () => this.zoom(1, 0)));
  }

  #around(share) {
    const { start, step, width } = this.told ?? { start: this.span[0], step: 1, width: 1 };
    const middle = this.at === null ? (this.span[0] + this.span[1]) / 2 : start + step * this.at * width;
    const length = (this.span[1] - this.span[0]) * share;
    return length >= this.axis.size ? this.zoom(1, 0) : this.zoom(share, middle - length / 2);
  }

  #element(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    return this.span[0] + ((x - this.left) / this.size[0]) * Math.max(this.span[1] - 1 - this.span[0], 1);
  }

  #pointer(name, event) {
    if (!this.told || !this.size) return;
    const element = Math.max(this.span[0], Math.min(this.#element(event), this.span[1] - 1));
    if (name === "down") {
      this.svg.setPointerCapture(event.pointerId);
      this.from = element;
    } else if (name === "move") {
      this.#point(Math.round((element - this.told.start) / this.told.step / this.told.width - (this.told.width > 1 ? 0.5 : 0)));
      if (this.from !== undefined) this.#mark(this.from, element);
    } else if (name === "up" && this.from !== undefined) {
      const [first, last] = [this.from, element].sort((a, b) => a - b);
      this.from = undefined;
      const length = this.span[1] - this.span[0];
      if (last - first > 0.02 * length) this.zoom((last - first + 1) / length, first);
    } else if (name === "cancel") this.from = undefined;
  }

  #mark(first, last) {
    const [left, right] = [this.#x(first), this.#x(last)].sort((a, b) => a - b);
    this.svg.querySelector(".cursor").append(draw("rect", { x: left, y: TOP, width: right - left, height: this.size[1] }));
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.#point((this.at ?? -1) + moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.#around(0.5);
    else if (event.key === "-") this.#around(2);
    else if (event.key === "0") this.zoom(1, 0);
    else return;
    event.preventDefault();
  }
}
