// A plane of tiles. Pointer, wheel, two fingers and keys move and zoom it. Requests for tiles outside the view are aborted.

import { isServed, request } from "./host.js";

const BUSY = 8; // concurrent requests; more of them delay the first tiles
const KEPT = 400; // tiles in memory beyond those in view

export class Plane {
  constructor(canvas, { moved, pointed, picked = () => {} }) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.moved = moved;
    this.pointed = pointed;
    this.picked = picked; // by a click, or the Enter key in the middle
    this.tiles = new Map(); // url -> ImageBitmap, in the order of use
    this.loading = new Map(); // url -> AbortController
    this.failed = new Map(); // url -> time of the failure
    this.pointers = new Map();
    this.source = this.before = null;
    new ResizeObserver(() => this.#resized()).observe(canvas);
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.#up(event));
    canvas.addEventListener("pointerleave", () => this.pointed(null));
    canvas.addEventListener("dblclick", (event) => this.zoomBy(2, this.#at(event)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /**
   * Shows another plane, or the same plane in another style.
   * source: {rows, columns, tile, minZoom, maxZoom, url(z, x, y), name, over, lines}; the view stays if the name is the same.
   * over: another source for the same plane, drawn half transparent over the first one; null for none.
   * lines: a promise of a path in columns and rows, drawn above; null for none.
   */
  show(source) {
    const same = this.source?.name === source.name;
    this.before = same ? this.source : null; // drawn below the new tiles until they have arrived
    this.source = source;
    this.lines = null;
    source.lines?.then((path) => {
      if (this.source !== source) return;
      this.lines = path;
      this.draw();
    });
    this.canvas.setAttribute("aria-busy", "true");
    for (const abort of this.loading.values()) abort.abort();
    this.loading.clear();
    if (same) return this.draw();
    this.scale = undefined; // until the canvas has a size
    this.fit();
  }

  /** The view: the element in the middle, and screen pixels per element. */
  get view() {
    return { row: this.row, column: this.column, scale: this.scale };
  }

  set view({ row, column, scale }) {
    this.row = row;
    this.column = column;
    this.scale = scale;
    this.#changed();
  }

  fit() {
    if (!this.source || !this.width) return;
    const { rows, columns } = this.source;
    this.view = { row: rows / 2, column: columns / 2, scale: Math.max(this.#least(), 0.96 * this.#whole()) };
    this.fitted = true;
  }

  /** Shows rows and columns, with all of them in view. */
  frame({ top, bottom, left, right }) {
    if (!this.source || !this.width) return void (this.framed = { top, bottom, left, right }); // until the canvas has a size
    const scale = 0.96 * Math.min(this.width / (right - left), this.height / (bottom - top));
    this.view = { row: (top + bottom) / 2, column: (left + right) / 2, scale: Math.min(64, Math.max(scale, this.#least())) };
    this.framed = null;
  }

  zoomBy(factor, [x, y] = [this.width / 2, this.height / 2]) {
    if (!this.source) return;
    const scale = Math.min(64, Math.max(factor * this.scale, Math.min(this.#least(), this.scale)));
    // The element under the pointer stays there.
    this.column += (x - this.width / 2) * (1 / this.scale - 1 / scale);
    this.row += (y - this.height / 2) * (1 / this.scale - 1 / scale);
    this.scale = scale;
    this.#changed();
  }

  /** The element at a position of the canvas; null outside the plane. */
  element([x, y]) {
    if (!this.source) return null;
    const row = Math.floor(this.row + (y - this.height / 2) / this.scale);
    const column = Math.floor(this.column + (x - this.width / 2) / this.scale);
    const inside = row >= 0 && column >= 0 && row < this.source.rows && column < this.source.columns;
    return inside ? { row, column } : null;
  }

  /** Whether all tiles in view have arrived. */
  get settled() {
    return this.source !== null && !this.loading.size && this.#needed().every((tile) => this.tiles.has(tile.url));
  }

  // ------------------------------------------------------------ drawing

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.#paint();
    });
  }

  #paint() {
    const { pen, source } = this;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!source || !this.scale || !this.width) return;
    const ratio = this.canvas.width / this.width;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.imageSmoothingEnabled = this.scale * ratio < 1;
    const zoom = this.#zoom();
    if (this.before && !this.settled) this.#layer(this.before, zoom);
    for (let z = source.minZoom; z <= zoom; z++) this.#layer(source, z);
    if (source.over) {
      pen.globalAlpha = 0.5;
      this.#layer(source.over, this.#zoom(source.over)); // coarser layers would add up
      pen.globalAlpha = 1;
    }
    if (this.lines) this.#stroke(this.lines, ratio);
    if (this.settled) this.before = null;
    this.canvas.setAttribute("aria-busy", String(!this.settled));
    this.#fetch();
  }

  /** Draws a path over the plane, dark with light edges, so that it is seen on all colours. */
  #stroke(path, ratio) {
    const { pen, source, scale } = this;
    pen.save();
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * (this.width / 2 - this.column * scale), ratio * (this.height / 2 - this.row * scale));
    pen.beginPath();
    pen.rect(0, 0, source.columns, source.rows);
    pen.clip();
    pen.lineJoin = "round";
    for (const [width, colour] of [[3, "#ffffff90"], [1.2, "#000000c0"]]) {
      pen.lineWidth = width / scale;
      pen.strokeStyle = colour;
      pen.stroke(path);
    }
    pen.restore();
  }

  #layer(source, zoom) {
    for (const { x, y, url } of this.#wanted(source, zoom)) {
      const bitmap = this.tiles.get(url);
      if (!bitmap) continue;
      this.tiles.delete(url); // keeps the map in the order of use
      this.tiles.set(url, bitmap);
      const size = source.tile * 2 ** (source.maxZoom - zoom) * this.scale;
      const left = (0 - this.column) * this.scale + this.width / 2 + x * size;
      const top = (0 - this.row) * this.scale + this.height / 2 + y * size;
      this.pen.drawImage(bitmap, left, top, size, size);
    }
  }

  /** The tiles in view, from the middle outwards. */
  #wanted(source = this.source, zoom = this.#zoom()) {
    const across = source.tile * 2 ** (source.maxZoom - zoom);
    const half = [this.height / 2 / this.scale, this.width / 2 / this.scale];
    const span = (middle, reach, extent) => [
      Math.max(0, Math.floor((middle - reach) / across)),
      Math.min(Math.ceil(extent / across) - 1, Math.floor((middle + reach) / across)),
    ];
    const [top, bottom] = span(this.row, half[0], source.rows);
    const [left, right] = span(this.column, half[1], source.columns);
    const found = [];
    for (let y = top; y <= bottom; y++)
      for (let x = left; x <= right; x++) {
        const far = Math.hypot((x + 0.5) * across - this.column, (y + 0.5) * across - this.row);
        found.push({ x, y, far, url: source.url(zoom, x, y) });
      }
    return found.sort((one, other) => one.far - other.far);
  }

  /** The tiles in view of the source and of the one over it. */
  #needed() {
    const { over } = this.source;
    return over ? [...this.#wanted(), ...this.#wanted(over, this.#zoom(over))] : this.#wanted();
  }

  #fetch() {
    const wanted = this.#needed().map((tile) => tile.url);
    for (const [url, abort] of this.loading) if (!wanted.includes(url)) abort.abort();
    for (const url of wanted) {
      if (this.loading.size >= BUSY) break;
      const late = Date.now() - (this.failed.get(url) ?? 0) < 4000;
      if (!this.tiles.has(url) && !this.loading.has(url) && !late) this.#load(url);
    }
  }

  async #load(url) {
    const abort = new AbortController();
    this.loading.set(url, abort);
    try {
      const answer = await request(url, { signal: abort.signal });
      if (answer.status === 503) setTimeout(() => this.draw(), 1000 * (Number(answer.headers.get("Retry-After")) || 1));
      if (!answer.ok) throw new Error(`${answer.status}`);
      this.tiles.set(url, await createImageBitmap(await answer.blob()));
      const most = KEPT + 2 * this.#needed().length;
      while (this.tiles.size > most) this.tiles.delete(this.tiles.keys().next().value);
    } catch (error) {
      if (error.name !== "AbortError") this.failed.set(url, Date.now());
    } finally {
      if (this.loading.get(url) === abort) this.loading.delete(url);
      this.draw();
    }
  }

  #zoom({ minZoom, maxZoom } = this.source) {
    const ratio = this.canvas.width / this.width || 1;
    return Math.min(maxZoom, Math.max(minZoom, Math.ceil(maxZoom + Math.log2(this.scale * ratio) - 0.25)));
  }

  #whole() {
    return Math.min(this.width / this.source.columns, this.height / this.source.rows);
  }

  /** The smallest scale: the whole plane fits, or the server has no coarser tiles. */
  #least() {
    const coarsest = 2 ** (this.source.minZoom - this.source.maxZoom);
    return this.source.minZoom === 0 ? 0.5 * this.#whole() : Math.max(0.5 * this.#whole(), 0.5 * coarsest);
  }

  #resized() {
    const box = this.canvas.getBoundingClientRect();
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * devicePixelRatio);
    this.canvas.height = Math.round(box.height * devicePixelRatio);
    if (this.framed) this.frame(this.framed);
    else if (this.fitted || !this.scale) this.fit(); // surrounding elements may have changed its size
    else this.draw();
  }

  #changed() {
    this.fitted = false;
    const { rows, columns } = this.source;
    this.row = Math.min(rows, Math.max(0, this.row));
    this.column = Math.min(columns, Math.max(0, this.column));
    this.moved(this.view);
    this.draw();
  }

  // ------------------------------------------------------------ input

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #wheel(event) {
    if (!isServed && !event.ctrlKey && !this.canvas.matches(":focus")) return; // the wheel scrolls the notebook
    event.preventDefault();
    this.zoomBy(2 ** (-event.deltaY / (event.deltaMode ? 6 : 240)), this.#at(event));
    this.pointed(this.element(this.#at(event)));
  }

  #down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.#at(event));
    this.pressed = this.pointers.size === 1 ? this.#at(event) : null;
  }

  #move(event) {
    const now = this.#at(event);
    const last = this.pointers.get(event.pointerId);
    if (last && this.pointers.size === 2) this.#pinch(event.pointerId, now);
    else if (last && this.source) {
      this.column -= (now[0] - last[0]) / this.scale;
      this.row -= (now[1] - last[1]) / this.scale;
      this.#changed();
    }
    if (last) this.pointers.set(event.pointerId, now);
    this.pointed(this.element(now));
  }

  #pinch(id, now) {
    const [other] = [...this.pointers].filter(([one]) => one !== id).map(([, at]) => at);
    const last = this.pointers.get(id);
    const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]);
    this.zoomBy(apart(now) / Math.max(apart(last), 1), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
  }

  #up(event) {
    this.pointers.delete(event.pointerId);
    const at = this.#at(event);
    const isClick = event.type === "pointerup" && this.pressed && Math.hypot(at[0] - this.pressed[0], at[1] - this.pressed[1]) < 4;
    if (isClick && this.element(at)) this.picked(this.element(at));
    this.pressed = null;
  }

  #key(event) {
    const step = 80 / this.scale;
    const moves = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-step, 0], ArrowDown: [step, 0] };
    if (event.key in moves) {
      this.row += moves[event.key][0];
      this.column += moves[event.key][1];
      this.#changed();
    } else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter") this.picked(this.element([this.width / 2, this.height / 2]));
    else return;
    event.preventDefault();
    this.pointed(this.element([this.width / 2, this.height / 2])); // without a pointer, read the element in the middle
  }
}
