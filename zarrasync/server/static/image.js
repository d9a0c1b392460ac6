// The plane of two axes of an array or a pyramid: sliders, colours, axes, the cursor, and the histogram.

import { Plane } from "./canvas.js";
import { Chart } from "./chart.js";
import { coastlinesOver, isOnEarth } from "./coast.js";
import * as code from "./code.js";
import { isServed, urlOf } from "./host.js";
import { ask, byId, coordinate, digitsFor, draw, isLabelled, latest, make, notice, numberTicks, sliders, symbol, ticks, titled, trimmed, withUnit } from "./page.js";

const COLOURS = ["viridis", "magma", "cividis", "turbo", "gray", "matplotlib:coolwarm", "colorbrewer:RdBu_r", "YlGnBu", "terrain", "labels"];
const SCALES = ["linear", "log", "diverging"];
export const state = { path: null, view: null, index: [], cmap: "viridis", low: null, high: null, scale: "linear", flip: false, stored: false, coast: true, plane: "", labels: null };
let changed = () => {};

/** The parameter of requests for values: none for decoded ones. */
export function decoding() {
  return state.stored ? { decode: 0 } : {};
}

/** The parameters of requests for the plane. */
function planeParameters() {
  return { path: state.path, ...(state.plane ? { plane: state.plane } : {}), ...decoding() };
}

const planeIn = (path, told) => ((told.get("path") ?? "") === path ? told.get("plane") ?? "" : "");

export function asksForStored(path, told) {
  return (told.get("path") ?? "") === path && told.has("stored");
}

/** Shows the plane of a node, as it is described in an address; hides it without a node. Returns what is invalid in the address. */
export async function show(path, told) {
  state.path = path;
  state.view = null;
  byId("plane").hidden = byId("profile").hidden = true;
  state.picked = state.profile = null;
  pointed(null);
  if (path === null) return [];
  state.stored = asksForStored(path, told);
  state.plane = planeIn(path, told);
  const asked = state.plane;
  let view = await ask("view", planeParameters(), asked ? { failed: () => {} } : {});
  if (!view && asked && state.path === path) {
    state.plane = "";
    view = await ask("view", planeParameters());
  }
  if (!view || state.path !== path) return [];
  byId("plane").hidden = false;
  state.view = view;
  const problems = await arrange(told, state.plane);
  return state.plane === asked ? problems : [...problems, `the plane ${asked}, which does not exist or takes too many chunks`];
}

/** Shows the view of the node in an address, or the default view. Returns what is invalid in the address. */
export async function arrange(told, plane = planeIn(state.path, told)) {
  const { path } = state;
  if (state.plane !== plane) return show(path, told);
  if (state.stored !== asksForStored(path, told)) return showStored(!state.stored, told);
  const { view } = state;
  state.index = view.axes.slice(0, -2).map(() => 0);
  [state.low, state.high] = view.range;
  state.ranged = false;
  state.scale = "linear";
  state.cmap = usual(["labels", "rgb"].includes(state.cmap) ? COLOURS[0] : state.cmap);
  state.flip = view.origin === "lower";
  await overlay(null);
  const problems = restore(path, told);
  if (told.get("path") === path && view.labels.includes(told.get("labels"))) await overlay(told.get("labels"));
  if (state.view !== view) return []; // another node was picked meanwhile
  byId("sliders").replaceChildren(...sliders(view.axes.slice(0, -2), state.index, refresh));
  controls();
  const drawn = refresh();
  if (told.get("path") === path) go(told);
  await drawn;
  return problems;
}

/** The colours of a node by default. */
const usual = (cmap = COLOURS[0]) => (state.view.has_colours ? "rgb" : state.view.is_labels ? "labels" : cmap);

/** The colours from which to choose. */
const colours = () => (state.view?.samples ? [...COLOURS, "rgb"] : COLOURS);

/** The numbers of the places that an address may have: the middle and the scale, or rows and columns. */
const PLACES = { at: 3, box: 4 };

/** The numbers of a place in an address; null without one, or if they are invalid. */
function placeIn(told, name) {
  const found = told.get(name)?.split(",").map((part) => (part.trim() ? Number(part) : NaN));
  return found?.length === PLACES[name] && found.every(Number.isFinite) && (name !== "at" || found[2] > 0) ? found : null;
}

/** Goes to the part of the plane in an address. */
function go(told) {
  const [at, box] = [placeIn(told, "at"), placeIn(told, "box")];
  if (at) plane.view = { row: at[0], column: at[1], scale: at[2] };
  else if (box) {
    const rows = state.view.axes.at(-2).size;
    const [top, bottom] = state.flip ? [rows - box[1], rows - box[0]] : box;
    plane.frame({ top, bottom, left: box[2], right: box[3] });
  }
}

/** Shows the stored numbers, or the values that they stand for. The range of the colours then changes, too. */
async function showStored(stored, told = null) {
  const { path } = state;
  state.stored = stored;
  const view = await ask("view", planeParameters());
  if (!view || state.path !== path || state.stored !== stored) return [];
  state.view = view;
  if (told) return arrange(told);
  set({ low: view.range[0], high: view.range[1], ranged: false });
  return [];
}

/** The parameters of the view in an address. */
export function parameters() {
  const told = {};
  if (state.index.length) told.index = state.index.join(",");
  if (state.plane) told.plane = state.plane;
  if (state.cmap !== usual()) told.cmap = state.cmap;
  if (state.ranged) told.range = `${state.low},${state.high}`;
  if (state.scale !== "linear") told.scale = state.scale;
  if (state.flip !== (state.view.origin === "lower")) told.flip = state.flip ? "1" : "0";
  if (state.stored) told.stored = "1";
  if (!state.coast && isOnEarth(state.view)) told.coast = "0";
  if (state.labels) told.labels = state.labels.path;
  const { row, column, scale } = plane.view;
  if (scale) told.at = [row, column, scale].map((n) => Number(n.toPrecision(6))).join(",");
  return told;
}

/** Restores the view of a node from an address. Returns what is invalid in it. */
function restore(path, told) {
  if ((told.get("path") ?? "") !== path) return [];
  const problems = [];
  const numbers = (name) => told.get(name).split(",").map(Number);
  const axes = state.view.axes.slice(0, -2);
  if (told.has("index")) {
    const index = told.get("index") === "" ? [] : numbers("index");
    const isValid = index.length === axes.length && index.every((n, axis) => Number.isInteger(n) && n >= 0 && n < axes[axis].size);
    if (isValid) state.index = index;
    else problems.push(`the index ${told.get("index")} (${axes.map(({ name, size }) => `${name} has ${size} elements`).join(", ") || "there are no other axes"})`);
  }
  state.cmap = colours().includes(told.get("cmap")) ? told.get("cmap") : usual();
  if (told.has("cmap") && !colours().includes(told.get("cmap"))) problems.push(`the colours ${told.get("cmap")}`);
  if (told.has("range")) {
    const range = numbers("range");
    if (range.length === 2 && range.every(Number.isFinite)) [state.low, state.high, state.ranged] = [...range, true];
    else problems.push(`the range ${told.get("range")}`);
  }
  if (SCALES.includes(told.get("scale"))) state.scale = told.get("scale");
  else if (told.has("scale")) problems.push(`the scale ${told.get("scale")}`);
  for (const name of Object.keys(PLACES)) if (told.has(name) && !placeIn(told, name)) problems.push(`the place ${told.get(name)}`);
  if (told.has("labels") && !state.view.labels.includes(told.get("labels"))) problems.push(`the labels ${told.get("labels")}`);
  if (told.has("coast")) state.coast = told.get("coast") !== "0";
  if (told.has("flip")) state.flip = told.get("flip") !== "0";
  return problems;
}

// ------------------------------------------------------------ controls

/** Shows a label image over the image; null for none. */
async function overlay(path) {
  const view = path && !state.plane && (await ask("view", { path }));
  state.labels = view ? { path, array: view.array, axes: view.axes, minZoom: view.min_zoom, properties: view.label_properties } : null;
}

function controls() {
  const labels = state.view?.labels ?? [];
  byId("labels").replaceChildren(new Option("none", ""), ...labels.map((path) => new Option(path.split("/").pop(), path)));
  byId("labels").value = state.labels?.path ?? "";
  byId("labels").parentElement.hidden = !labels.length;
  byId("cmap").replaceChildren(...colours().map((name) => new Option(name === "rgb" ? "red, green, blue" : name.split(":").pop(), name)));
  byId("cmap").value = state.cmap;
  const channel = state.cmap === "rgb" ? state.view.channel : -1; // a picture in colours has all channels
  [...byId("sliders").children].forEach((element, number) => (element.hidden = Math.floor(number / 3) === channel)); // a label, a slider, a text
  axisChoice();
  const digits = digitsFor(state.low, state.high);
  byId("low").value = trimmed(state.low, digits);
  byId("high").value = trimmed(state.high, digits);
  byId("scaling").value = state.scale;
  for (const id of ["scaling", "low", "high", "auto"]) byId(id).disabled = state.cmap === "labels" || (id === "scaling" && state.cmap === "rgb");
  byId("flip").checked = state.flip !== (state.view?.origin === "lower");
  byId("coast").checked = state.coast;
  byId("coast").parentElement.hidden = !state.view || !isOnEarth(state.view);
  byId("stored").checked = state.stored;
  byId("stored").parentElement.hidden = !state.view?.encoded;
  byId("unit").textContent = symbol(state.view?.unit ?? "");
}

export function listen(whenChanged) {
  changed = whenChanged;
  byId("cmap").addEventListener("change", (event) => set({ cmap: event.target.value, ...rangeFor(event.target.value) }));
  for (const id of ["rows", "columns"]) byId(id).addEventListener("change", choosePlane);
  for (const id of ["low", "high"])
    byId(id).addEventListener("change", (event) => {
      if (event.target.value !== "") set({ [id]: Number(event.target.value), ranged: true });
    });
  byId("labels").addEventListener("change", async (event) => {
    await overlay(event.target.value || null);
    refresh();
  });
  byId("scaling").addEventListener("change", (event) => set({ scale: event.target.value }));
  byId("flip").addEventListener("change", (event) => set({ flip: event.target.checked !== (state.view.origin === "lower") }));
  byId("coast").addEventListener("change", (event) => set({ coast: event.target.checked }));
  byId("stored").addEventListener("change", (event) => showStored(event.target.checked));
  byId("profile-axis").addEventListener("change", (event) => profile(state.picked, Number(event.target.value)));
  byId("profile-close").addEventListener("click", () => profile(null));
  byId("auto").addEventListener("click", () => state.stats && state.stats.low !== null && set({ low: state.stats.low, high: state.stats.high }));
  byId("in").addEventListener("click", () => plane.zoomBy(2));
  byId("out").addEventListener("click", () => plane.zoomBy(0.5));
  byId("fit").addEventListener("click", () => plane.fit());
  new ResizeObserver(rulers).observe(byId("stage"));
}

/** Offers the axes of the array for rows and columns, if there are more than two. */
function axisChoice() {
  const axes = state.view?.axes ?? [];
  byId("axes").hidden = axes.length < 3;
  if (axes.length < 3) return;
  const options = () => inOrder(axes).flatMap(({ name, size }, number) => (size > 1 || state.view.order.slice(-2).includes(number) ? [new Option(name, number)] : []));
  ["rows", "columns"].forEach((id, number) => {
    byId(id).replaceChildren(...options());
    byId(id).value = state.view.order.at(number - 2);
  });
}

/** Shows the plane of the chosen axes. If both are the same, the other one takes the place of the one before. */
function choosePlane({ target }) {
  const before = state.view.order.slice(-2);
  const chosen = [byId("rows"), byId("columns")].map(({ value }) => Number(value));
  if (chosen[0] === chosen[1]) chosen[target.id === "rows" ? 1 : 0] = before[target.id === "rows" ? 0 : 1];
  const index = inOrder([...state.index, 0, 0]);
  const others = state.view.axes.map((_, axis) => axis).filter((axis) => !chosen.includes(axis));
  const told = { ...parameters(), path: state.path, plane: chosen.join(","), index: others.map((axis) => index[axis]).join(",") };
  for (const name of ["at", "flip", "labels"]) delete told[name]; // they belong to the plane before
  show(state.path, new URLSearchParams(told)).then((problems) => {
    failed(problems);
    target.focus();
  });
}

/** Tells what of a chosen plane cannot be shown. */
function failed(problems) {
  notice(problems.length ? `This cannot be shown: ${problems.join("; ")}.` : "");
}

/** The range of colours that suits a colour map: all bytes for colours. */
function rangeFor(cmap) {
  const isWhole = cmap === "rgb" && state.view.dtype === "uint8";
  const [low, high] = isWhole ? [0, 255] : state.cmap === "rgb" && state.stats?.low !== undefined && state.stats?.low !== null ? [state.stats.low, state.stats.high] : [state.low, state.high];
  return { low, high };
}

/** Items of the axes of the plane, in the order of the array. */
const inOrder = (items) => items.map((_, axis) => items[state.view.order.indexOf(axis)]);

/** The selection of what is shown at indices of all axes: if channels are colours, all of them. */
const selected = (at) => inOrder(state.cmap === "rgb" ? at.with(state.view.channel, `0:${state.view.samples}`) : at);

function set(changes) {
  Object.assign(state, changes);
  controls();
  refresh();
}

// ------------------------------------------------------------ the plane

export const plane = new Plane(byId("canvas"), {
  moved: () => {
    rulers();
    bar();
    changed();
  },
  pointed,
  picked: (element) => element && profile(place(element)),
});

/** Reads the element under the pointer, and again when another slice is shown; nothing without an element. */
function pointed(element) {
  state.pointed = element;
  if (element) return read(element);
  read.cancel();
  return byId("readout").replaceChildren();
}

/** The indices of an element of the picture along all axes: those of the plane at the end. */
function place({ row, column }) {
  return [...state.index, state.flip ? state.view.axes.at(-2).size - 1 - row : row, column];
}

/** Links to the map of the slice, if its axes are latitudes and longitudes. */
function mapLink() {
  const { view, index, low, high, cmap } = state;
  const isUsual = view.order.every((axis, number) => axis === number); // maps show the last two axes
  if (!view.is_map || !isUsual || state.stored || !isServed || cmap === "rgb") return;
  const query = new URLSearchParams({ variable: state.path, rescale: `${low},${high}`, colormap_name: cmap });
  view.axes.slice(0, -2).forEach(({ name, labels, step, origin }, axis) => {
    const label = labels ? labels[index[axis]] : step === undefined ? index[axis] : `nearest::${origin + step * index[axis]}`;
    query.append("sel", `${name}=${label}`);
  });
  byId("downloads").append("· ", make("a", { href: urlOf(`WebMercatorQuad/map.html?${query}`) }, "Show on a map"));
}

// ------------------------------------------------------------ profiles

const chart = new Chart(byId("profile-chart"), { changed: () => {} });

/** Shows the values through an element along an axis: by default the first one with several elements. */
function profile(at, axis = state.profile ?? state.view.axes.findIndex(({ size }) => size > 1)) {
  const { axes, array } = state.view;
  Object.assign(state, { picked: at, profile: axis });
  byId("profile").hidden = !at || axis < 0;
  if (byId("profile").hidden) return null;
  byId("profile-axis").replaceChildren(...axes.flatMap(({ name, size }, number) => (size > 1 ? [new Option(name, number)] : [])));
  byId("profile-axis").value = axis;
  byId("profile-place").textContent = axes.map((other, number) => (number === axis ? "" : `${other.name} ${coordinate(other, at[number])}`)).filter(Boolean).join(", ");
  const own = state.view.order[axis];
  const [places, along] = [inOrder(at), axes[axis]];
  return chart.show({ path: array, axis: along, before: places.slice(0, own), after: places.slice(own + 1), decoding: decoding() });
}

function refresh() {
  const { view, index } = state;
  if (!view) return null;
  const [rows, columns] = view.axes.slice(-2).map((axis) => axis.size);
  const query = new URLSearchParams({ ...planeParameters(), index: index.join(","), cmap: state.cmap });
  query.set("low", state.low);
  query.set("high", state.high);
  if (state.scale !== "linear") query.set("scale", state.scale);
  query.set("origin", state.flip ? "lower" : "upper");
  byId("stage").style.setProperty("--aspect", rows / columns);
  plane.show({
    name: `${state.path}?${state.plane}`, rows, columns, tile: view.tile, minZoom: view.min_zoom, maxZoom: view.max_zoom,
    url: tiles(query), over: labelTiles(rows, columns),
    lines: state.coast && isOnEarth(view) ? coastlinesOver(view.axes.slice(-2), state.flip) : null,
  });
  rulers();
  bar();
  scale();
  changed();
  const style = state.cmap === "rgb" ? null : { cmap: state.cmap, low: state.low, high: state.high, scale: state.scale };
  code.forArray(view.array, view.dataset, selected([...index, ":", ":"]), decoding(), style);
  mapLink();
  if (state.pointed) read(state.pointed);
  if (state.picked) profile([...index, ...state.picked.slice(-2)]);
  return histogram();
}

function tiles(query) {
  return (z, x, y) => `api/tiles/${z}/${x}/${y}.png?${query}`;
}

/** The indices of the label image along its leading axes. */
function labelIndex() {
  const { view, index, labels } = state;
  return labels.axes.slice(0, -2).map(({ name, size }) => Math.min(index[view.axes.findIndex((axis) => axis.name === name)] ?? 0, size - 1));
}

/** The plane of the label image that is shown over the image. Its other axes are found by name. */
function labelTiles(rows, columns) {
  const { view, labels } = state;
  if (!labels) return null;
  const at = labelIndex();
  const query = new URLSearchParams({ path: labels.path, index: at.join(","), cmap: "labels", low: 0, high: 1 });
  query.set("origin", state.flip ? "lower" : "upper");
  const same = labels.axes.slice(-2).every(({ size }, number) => size === [rows, columns][number]);
  return same ? { rows, columns, tile: view.tile, minZoom: Math.max(labels.minZoom, view.min_zoom), maxZoom: view.max_zoom, url: tiles(query) } : null;
}

// ------------------------------------------------------------ axes, scale bar, colours

/** Draws the coordinates along the edges of the plane. */
function rulers() {
  const { view } = state;
  const { row, column, scale: zoom } = plane.view;
  if (!view || !zoom) return;
  const [down, across] = view.axes.slice(-2);
  const edges = (middle, length, size) => [Math.max(0, middle - length / zoom / 2 - 0.5), Math.min(size - 1, middle + length / zoom / 2 - 0.5)];
  const [width, height] = [plane.width, plane.height];
  const turned = (index) => (state.flip ? down.size - 1 - index : index);
  // Closer to each other on small pictures, where one coordinate alone would not show the scale.
  const atLeastTwo = (axis, ends, length, distances) => distances.map((pixels) => ticks(axis, ...ends, Math.max(1, length / pixels))).find((found, number) => found.length > 1 || number === distances.length - 1);
  const columns = atLeastTwo(across, edges(column, width, across.size), Math.min(width, across.size * zoom), [95, 60, 45, Infinity]);
  const rows = atLeastTwo(down, edges(row, height, down.size).map(turned).sort((a, b) => a - b), Math.min(height, down.size * zoom), [45, 30, 20, Infinity]);
  const x = (index) => (index + 0.5 - column) * zoom + width / 2;
  const y = (index) => (turned(index) + 0.5 - row) * zoom + height / 2;
  const inside = (place, length) => place > -1 && place < length + 1;
  byId("across").replaceChildren(
    ...columns.filter(({ index }) => inside(x(index), width)).flatMap(({ index, text }) => [
      draw("line", { x1: x(index), x2: x(index), y1: 0, y2: 5 }),
      draw("text", { x: Math.min(Math.max(x(index), 3.2 * text.length), width - 3.2 * text.length), y: 17, "text-anchor": "middle" }, text),
    ]),
  );
  byId("stage").style.setProperty("--marks", `${34 + 7.7 * Math.max(0, ...rows.map(({ text }) => text.length))}px`);
  byId("down").replaceChildren(
    ...rows.filter(({ index }) => inside(y(index), height)).flatMap(({ index, text }) => [
      draw("line", { x1: "100%", x2: "92%", y1: y(index), y2: y(index) }),
      draw("text", { x: "88%", y: Math.min(Math.max(y(index) + 4, 12), height - 3), "text-anchor": "end" }, text),
    ]),
  );
  byId("across").append(draw("text", { x: width / 2, y: 34, "text-anchor": "middle" }, titled(across)));
  byId("down").append(draw("text", { x: -height / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, titled(down)));
}

/** Draws the scale bar: a round length of up to 140 pixels. */
function bar() {
  const axis = state.view?.axes.at(-1);
  const mark = byId("bar");
  const element = Math.abs(axis?.step ?? 0);
  mark.hidden = !element || axis.kind !== "space" || /^degree/.test(axis.unit) || !plane.view.scale;
  if (mark.hidden) return;
  const most = (140 / plane.view.scale) * element;
  const power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((digit) => digit * power <= most) * power;
  mark.style.setProperty("--length", `${(length / element) * plane.view.scale}px`);
  mark.textContent = `${Number(length.toPrecision(6))} ${symbol(axis.unit)}`.trim();
}

/** Draws the colours with their values, or the names of labels with their colours. */
const scale = latest(async (signal) => {
  const { view, cmap } = state;
  const log = state.scale === "log";
  const most = Math.max(Math.abs(state.low), Math.abs(state.high));
  const [low, high] = state.scale === "diverging" ? [-most, most] : [state.low, state.high];
  const names = Object.entries(view.label_properties).slice(0, 40);
  byId("key").hidden = cmap === "rgb" || (cmap === "labels" && !names.length);
  if (cmap === "rgb") return;
  if (cmap === "labels") {
    byId("key").replaceChildren(make("ul", {}, ...names.map(([label, name]) => {
      const swatch = make("i");
      swatch.style.background = view.label_colours[label];
      return make("li", {}, swatch, name);
    })));
    return;
  }
  const told = await ask("colours", { cmap }, { signal });
  if (!told || signal.aborted) return;
  const stripe = make("div", { className: "stripe" });
  stripe.style.background = `linear-gradient(to top, ${told.colours.join(", ")})`;
  const [first, last] = log ? [Math.log10(low > 0 ? low : high / 1000), Math.log10(high)] : [low, high];
  const places = log ? logTicks(first, last) : first < last ? numberTicks(first, last, 7) : [first];
  const digits = log ? 4 : digitsFor(first, last, 4);
  const marks = places.map((value) => {
    const text = make("span", {}, `${trimmed(log ? 10 ** value : value, digits)}`);
    text.style.bottom = `${last === first ? 0 : (100 * (value - first)) / (last - first)}%`;
    return text;
  });
  const beside = make("div", { className: "marks" }, ...marks);
  beside.style.minWidth = `${Math.max(...marks.map(({ textContent }) => textContent.length))}ch`; // they do not widen it themselves
  byId("key").replaceChildren(make("div", { className: "unit" }, symbol(view.unit)), make("div", { className: "scale" }, stripe, beside));
});

/** The logarithms of round numbers between two logarithms: powers of ten, or numbers at equal distances if there are few powers. */
function logTicks(first, last) {
  const powers = numberTicks(first, last, 7, true);
  return powers.length > 2 ? powers : numberTicks(10 ** first, 10 ** last, 6).filter((value) => value > 0).map(Math.log10);
}

// ------------------------------------------------------------ the cursor

const read = latest(async (signal, { row, column }) => {
  const { view } = state;
  if (!view) return;
  const at = place({ row, column });
  const [down, across] = view.axes.slice(-2);
  const where = `${down.name} ${coordinate(down, at.at(-2))}, ${across.name} ${coordinate(across, column)}`;
  const elements = view.axes.some(isLabelled) ? [make("small", {}, `[${inOrder(at).join(", ")}]`)] : [];
  const say = (text) => byId("readout").replaceChildren(make("span", {}, `${where}: ${text}`), ...elements);
  say("…");
  await new Promise((done) => setTimeout(done, 30)); // no requests while the pointer moves
  if (signal.aborted) return;
  // With strings, because JavaScript's numbers cannot represent all 64-bit integers. Missing values are empty.
  const value = async (path, place, more = {}) => {
    const told = await ask("data", { path, select: place.join(","), int64: "string", ...more }, { signal });
    return told && (typeof told.data === "object" && told.data ? JSON.stringify(told.data) : String(told.data ?? ""));
  };
  const over = plane.source.over ? state.labels : null;
  const [told, label] = await Promise.all([value(view.array, selected(at), decoding()), over && value(over.array, [...labelIndex(), ...at.slice(-2)])]);
  if (told === null || signal.aborted) return;
  const text = told ? `${described(rounded(told), view.label_properties)} ${unitOf(told)}`.trim() : "missing";
  say(text + (label && label !== "0" ? `, ${over.path.split("/").pop()} ${described(label, over.properties)}` : ""));
});

/** A decoded value without the digits that the scale adds: "285.49" for "285.48999999999995". */
function rounded(told) {
  return state.view.encoded && !state.stored && /^-?\d*\.\d{13,}/.test(told) ? String(Number(Number(told).toPrecision(15))) : told;
}

/** The unit of a value; none of dates. */
function unitOf(told) {
  return /^-?(\d|Inf)/.test(told) && !/^\d+-\d/.test(told) ? symbol(state.view.unit) : "";
}

/** A label with its properties: "7 (cell)". */
function described(label, properties) {
  return properties?.[label] ? `${label} (${properties[label]})` : label;
}

// ------------------------------------------------------------ statistics

const histogram = latest(async (signal) => {
  const stats = await ask("stats", { ...planeParameters(), index: state.index.join(","), bins: 80 }, { signal });
  if (!stats || signal.aborted) return;
  state.stats = stats;
  const svg = byId("histogram").querySelector("svg");
  const most = Math.max(1, ...stats.histogram);
  svg.setAttribute("viewBox", `0 0 ${stats.histogram.length || 1} 100`);
  svg.replaceChildren(
    ...stats.histogram.map((count, number) => {
      const height = count ? Math.max(1.5, (100 * count) / most) : 0;
      return draw("rect", { x: number + 0.06, y: 100 - height, width: 0.88, height });
    }),
  );
  const share = stats.count < stats.total ? ` (sample of ${stats.count.toLocaleString("en")})` : "";
  const missing = stats.invalid ? `, ${stats.invalid.toLocaleString("en")} missing` : "";
  const mean = stats.dates?.mean ?? withUnit(trimmed(stats.mean), stats.unit);
  const average = state.view.is_labels ? `${trimmed(stats.low)} to ${trimmed(stats.high)}` : `mean ${mean}, σ ${trimmed(stats.std)}`; // codes have no mean
  byId("histogram").querySelector("figcaption").textContent = stats.mean === null ? "no values" : `${average}${missing}${share}`;
  const [low, high] = byId("scale").children;
  const digits = digitsFor(stats.low, stats.high);
  low.textContent = trimmed(stats.low, digits);
  high.textContent = trimmed(stats.high, digits);
});
