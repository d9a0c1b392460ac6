// The page. The address contains the selected node and view, so that they can be shared and bookmarked.

import { Plane } from "./canvas.js";
import { Tree } from "./tree.js";

const BASE = new URL("..", import.meta.url);
const COLOURS = ["viridis", "magma", "cividis", "turbo", "gray", "matplotlib:coolwarm", "colorbrewer:RdBu_r", "YlGnBu", "terrain", "labels"];
const SYMBOLS = { micrometer: "µm", nanometer: "nm", millimeter: "mm", meter: "m", angstrom: "Å", second: "s", millisecond: "ms", minute: "min", hour: "h", degree: "°", degrees_north: "°N", degrees_east: "°E" };
const byId = (id) => document.getElementById(id);
const state = { path: null, told: null, view: null, index: [], cmap: "viridis", low: null, high: null, log: false, flip: false, stored: false, labels: null };

// ------------------------------------------------------------ requests

/** Returns the server's response; null after an error, which is shown. */
async function ask(name, parameters, signal) {
  const url = new URL(`api/${name}`, BASE);
  url.search = new URLSearchParams(parameters);
  try {
    const answer = await fetch(url, { signal });
    const told = await answer.json();
    if (answer.ok) return told;
    if (signal === undefined) notice(told.message ?? `${answer.status}`);
  } catch (error) {
    if (error.name !== "AbortError" && signal === undefined) notice(`The server does not respond: ${error.message}`);
  }
  return null;
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** Returns a function whose calls cancel the previous call. */
function latest(make) {
  let abort = new AbortController();
  return (...given) => {
    abort.abort();
    abort = new AbortController();
    return make(abort.signal, ...given);
  };
}

// ------------------------------------------------------------ the node

/** Shows a node, as it is described in an address. */
async function pick(path, told) {
  state.told = told; // for a call that waits for the same node
  if (path === state.path) return told && state.view && arrange(told);
  state.path = path;
  state.view = null;
  notice("");
  const node = await ask("node", { path });
  if (state.path !== path) return;
  byId("card").hidden = byId("plane").hidden = !node;
  gallery(node?.gallery ?? []);
  if (!node) return;
  card(node);
  const planar = node.kind === "array" ? node.shape.length >= 2 && /^(bool|u?int|float)/.test(node.dtype) : node.pyramid;
  const full = planar && (node.kind === "group" || node.shape.every((n) => n > 0));
  state.stored = asksForStored(path, state.told ?? asked());
  const view = full ? await ask("view", { path, ...decoding() }) : null;
  if (state.path !== path) return;
  byId("plane").hidden = !view;
  state.view = view;
  return view ? arrange(state.told ?? asked()) : remember();
}

/** The parameter of requests for values: none for decoded ones. */
function decoding() {
  return state.stored ? { decode: 0 } : {};
}

function asksForStored(path, told) {
  return told.get("path") === path && told.has("stored");
}

/** Shows the view of the node in an address, or the default view. */
async function arrange(told) {
  const { path } = state;
  if (state.stored !== asksForStored(path, told)) return showStored(!state.stored, told);
  const { view } = state;
  state.index = view.axes.slice(0, -2).map(() => 0);
  [state.low, state.high] = view.range;
  state.ranged = false;
  state.cmap = view.is_labels ? "labels" : state.cmap === "labels" ? COLOURS[0] : state.cmap;
  state.flip = view.origin === "lower";
  await overlay(null);
  restore(path, told);
  if (told.get("path") === path && view.labels.includes(told.get("labels"))) await overlay(told.get("labels"));
  if (state.view !== view) return; // another node was picked meanwhile
  sliders(view);
  controls();
  snippet();
  const drawn = refresh();
  const at = told.get("at")?.split(",").map(Number);
  if (told.get("path") === path && at?.length === 3 && at.every(Number.isFinite)) plane.view = { row: at[0], column: at[1], scale: at[2] };
  await drawn;
}

/** Shows the stored numbers, or the values that they stand for. The range of the colours then changes, too. */
async function showStored(stored, told = null) {
  const { path } = state;
  state.stored = stored;
  const view = await ask("view", { path, ...decoding() });
  if (!view || state.path !== path || state.stored !== stored) return;
  state.view = view;
  if (told) return arrange(told);
  set({ low: view.range[0], high: view.range[1], ranged: false });
}

function card(node) {
  byId("card").hidden = false;
  byId("title").textContent = `/${node.path}`;
  const facts = node.kind === "array"
    ? Object.entries(node.info).filter(([name]) => name !== "Name" && name !== "Type")
    : [["Group", node.members ? `${node.members.length} members` : "members unknown"], ["Zarr format", node.format], ...Object.entries(node.info)];
  byId("facts").replaceChildren(
    ...facts.map(([name, text]) => {
      const pair = document.createElement("div");
      const [term, told] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      told.textContent = text;
      pair.append(term, told);
      return pair;
    }),
  );
  const count = Object.keys(node.attributes).length;
  const details = byId("attributes");
  details.hidden = !count;
  details.open = false;
  details.querySelector("summary").textContent = count === 1 ? "1 attribute" : `${count} attributes`;
  details.querySelector("pre").textContent = JSON.stringify(node.attributes, null, 2);
}

/** Shows pictures of the images of a group. Wells of a plate are in a grid of rows and columns. */
function gallery(nodes) {
  const grid = byId("gallery");
  grid.hidden = !nodes.length;
  const isPlate = nodes.length && nodes.every(({ kind }) => kind === "well");
  const names = (at) => [...new Set(nodes.map(({ path }) => path.split("/").at(at)))].sort(new Intl.Collator("en", { numeric: true }).compare);
  const [rows, columns] = [names(-2), names(-1)];
  const marks = isPlate ? [...rows.map((name, number) => mark(name, number + 2, 1)), ...columns.map((name, number) => mark(name, 1, number + 2))] : [];
  grid.style.gridTemplateColumns = isPlate ? `min-content repeat(${columns.length}, minmax(48px, 180px))` : "";
  grid.replaceChildren(
    ...marks,
    ...nodes.map(({ path }) => {
      const [row, column] = path.split("/").slice(-2);
      const link = picture(path, isPlate ? "" : column ?? row);
      if (isPlate) link.style.gridArea = `${rows.indexOf(row) + 2} / ${columns.indexOf(column) + 2}`;
      return link;
    }),
  );
}

function mark(text, row, column) {
  const element = document.createElement("b");
  element.textContent = text;
  element.style.gridArea = `${row} / ${column}`;
  return element;
}

/** A link to a node with the coarsest tile of its image. */
function picture(path, text) {
  const [link, image] = [document.createElement("a"), document.createElement("img")];
  link.href = `#${new URLSearchParams({ path })}`;
  link.title = path;
  Object.assign(image, { loading: "lazy", alt: path, src: new URL(`api/tiles/0/0/0.png?${new URLSearchParams({ path })}`, BASE).href });
  link.append(image, text);
  return link;
}

// ------------------------------------------------------------ controls

function sliders(view) {
  const rows = view.axes.slice(0, -2).flatMap((axis, number) => {
    const label = document.createElement("label");
    const slider = document.createElement("input");
    const told = document.createElement("output");
    label.textContent = titled(axis);
    label.htmlFor = slider.id = `axis-${number}`;
    Object.assign(slider, { type: "range", min: 0, max: axis.size - 1, step: 1, value: state.index[number] });
    const tell = () => (told.textContent = `${state.index[number]} / ${axis.size - 1}${noted(axis, state.index[number])}`);
    slider.addEventListener("input", () => {
      state.index[number] = Number(slider.value);
      tell();
      refresh();
    });
    tell();
    return [label, slider, told];
  });
  byId("sliders").replaceChildren(...rows);
}

/** An axis with its unit: "z [µm]". */
function titled({ name, unit }) {
  return unit ? `${name} [${SYMBOLS[unit] ?? unit}]` : name;
}

/** The coordinate or the label of an element in parentheses; nothing if it has none. */
function noted({ step, origin, unit, labels }, index) {
  if (labels?.length > index) return ` (${labels[index]})`;
  if (step === undefined) return "";
  return ` (${[Number((origin + step * index).toPrecision(9)), SYMBOLS[unit] ?? unit].join(" ").trim()})`;
}

/** Shows a label image over the image; null for none. */
async function overlay(path) {
  const view = path && (await ask("view", { path }));
  state.labels = view ? { path, array: view.array, axes: view.axes, minZoom: view.min_zoom, properties: view.label_properties } : null;
}

function controls() {
  const labels = state.view?.labels ?? [];
  byId("labels").replaceChildren(new Option("none", ""), ...labels.map((path) => new Option(path.split("/").pop(), path)));
  byId("labels").value = state.labels?.path ?? "";
  byId("labels").parentElement.hidden = !labels.length;
  byId("cmap").value = state.cmap;
  byId("low").value = trimmed(state.low);
  byId("high").value = trimmed(state.high);
  byId("log").checked = state.log;
  byId("flip").checked = state.flip;
  byId("stored").checked = state.stored;
  byId("stored").parentElement.hidden = !state.view?.encoded;
  const unit = state.view?.unit ?? "";
  byId("unit").textContent = SYMBOLS[unit] ?? unit;
}

function trimmed(value) {
  return value === null ? "" : Number(value.toPrecision(6));
}

function listen() {
  byId("cmap").replaceChildren(...COLOURS.map((name) => new Option(name.split(":").pop(), name)));
  byId("cmap").addEventListener("change", (event) => set({ cmap: event.target.value }));
  for (const id of ["low", "high"])
    byId(id).addEventListener("change", (event) => {
      if (event.target.value !== "") set({ [id]: Number(event.target.value), ranged: true });
    });
  byId("labels").addEventListener("change", async (event) => {
    await overlay(event.target.value || null);
    refresh();
  });
  byId("log").addEventListener("change", (event) => set({ log: event.target.checked }));
  byId("flip").addEventListener("change", (event) => set({ flip: event.target.checked }));
  byId("stored").addEventListener("change", (event) => showStored(event.target.checked));
  byId("auto").addEventListener("click", () => state.stats && state.stats.low !== null && set({ low: state.stats.low, high: state.stats.high }));
  byId("in").addEventListener("click", () => plane.zoomBy(2));
  byId("out").addEventListener("click", () => plane.zoomBy(0.5));
  byId("fit").addEventListener("click", () => plane.fit());
  byId("copy").addEventListener("click", copy);
  // The event's address, because a delayed remember() can overwrite the page's before the event arrives.
  window.addEventListener("hashchange", ({ newURL }) => asked(newURL).has("path") && follow(asked(newURL)));
}

function set(changes) {
  Object.assign(state, changes);
  controls();
  refresh();
}

// ------------------------------------------------------------ the plane

const plane = new Plane(byId("canvas"), {
  moved: () => {
    bar();
    remember();
  },
  pointed: (element) => (element ? read(element) : (byId("readout").textContent = "")),
});

function refresh() {
  const { view, index } = state;
  if (!view) return null;
  const [rows, columns] = view.axes.slice(-2).map((axis) => axis.size);
  const query = new URLSearchParams({ path: state.path, index: index.join(","), cmap: state.cmap });
  query.set("low", state.low);
  query.set("high", state.high);
  if (state.log) query.set("scale", "log");
  query.set("origin", state.flip ? "lower" : "upper");
  for (const [name, value] of Object.entries(decoding())) query.set(name, value);
  plane.show({
    name: state.path, rows, columns, tile: view.tile, minZoom: view.min_zoom, maxZoom: view.max_zoom,
    url: tiles(query), over: labelTiles(rows, columns),
  });
  bar();
  remember();
  snippet();
  return histogram();
}

function tiles(query) {
  return (z, x, y) => new URL(`api/tiles/${z}/${x}/${y}.png?${query}`, BASE).href;
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

/** Draws the scale bar: a round length of up to 140 pixels. */
function bar() {
  const axis = state.view?.axes.at(-1);
  const mark = byId("bar");
  const element = Math.abs(axis?.step ?? 0);
  mark.hidden = !element || axis.kind !== "space" || !plane.view.scale;
  if (mark.hidden) return;
  const most = (140 / plane.view.scale) * element;
  const power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((digit) => digit * power <= most) * power;
  mark.style.setProperty("--length", `${(length / element) * plane.view.scale}px`);
  mark.textContent = `${Number(length.toPrecision(6))} ${SYMBOLS[axis.unit] ?? axis.unit}`.trim();
}

const read = latest(async (signal, { row, column }) => {
  const { view, index } = state;
  if (!view) return;
  const [rows] = view.axes.slice(-2).map((axis) => axis.size);
  const at = [...index, state.flip ? rows - 1 - row : row, column];
  const [down, across] = view.axes.slice(-2);
  const place = `${down.name} ${at.at(-2)}${noted(down, at.at(-2))}, ${across.name} ${column}${noted(across, column)}`;
  byId("readout").textContent = `${place}: …`;
  await new Promise((done) => setTimeout(done, 30)); // no requests while the pointer moves
  if (signal.aborted) return;
  // With strings, because JavaScript's numbers cannot represent all 64-bit integers. Missing values are empty.
  const value = async (path, place, more = {}) => {
    const told = await ask("data", { path, select: place.join(","), int64: "string", ...more }, signal);
    return told && (typeof told.data === "object" && told.data ? JSON.stringify(told.data) : String(told.data ?? ""));
  };
  const over = plane.source.over ? state.labels : null;
  const [told, label] = await Promise.all([value(view.array, at, decoding()), over && value(over.array, [...labelIndex(), ...at.slice(-2)])]);
  if (told === null || signal.aborted) return;
  const text = told ? `${described(rounded(told), view.label_properties)} ${unitOf(told)}`.trim() : "missing";
  const named = label && label !== "0" ? `, ${over.path.split("/").pop()} ${described(label, over.properties)}` : "";
  byId("readout").textContent = `${place}: ${text}${named}`;
});

/** A decoded value without the digits that the scale adds: "285.49" for "285.48999999999995". */
function rounded(told) {
  return state.view.encoded && !state.stored && /^-?\d*\.\d{13,}/.test(told) ? String(Number(Number(told).toPrecision(15))) : told;
}

/** The unit of a value; none of dates. */
function unitOf(told) {
  return /^-?(\d|Inf)/.test(told) && !/^\d+-\d/.test(told) ? (SYMBOLS[state.view.unit] ?? state.view.unit) : "";
}

/** A label with its properties: "7 (cell)". */
function described(label, properties) {
  return properties?.[label] ? `${label} (${properties[label]})` : label;
}

const histogram = latest(async (signal) => {
  const stats = await ask("stats", { path: state.path, index: state.index.join(","), bins: 80, ...decoding() }, signal);
  if (!stats || signal.aborted) return;
  state.stats = stats;
  const svg = byId("histogram").querySelector("svg");
  const most = Math.max(1, ...stats.histogram);
  svg.setAttribute("viewBox", `0 0 ${stats.histogram.length || 1} 100`);
  svg.replaceChildren(
    ...stats.histogram.map((count, number) => {
      const bar = document.createElementNS(svg.namespaceURI, "rect");
      const height = count ? Math.max(1.5, (100 * count) / most) : 0;
      for (const [name, value] of Object.entries({ x: number + 0.06, y: 100 - height, width: 0.88, height })) bar.setAttribute(name, value);
      return bar;
    }),
  );
  const share = stats.count < stats.total ? ` (sample of ${stats.count.toLocaleString("en")})` : "";
  const missing = stats.invalid ? `, ${stats.invalid.toLocaleString("en")} missing` : "";
  const mean = stats.dates?.mean ?? `${trimmed(stats.mean)} ${SYMBOLS[stats.unit] ?? stats.unit}`.trim();
  const told = stats.mean === null ? "no values" : `mean ${mean}, σ ${trimmed(stats.std)}${missing}${share}`;
  byId("histogram").querySelector("figcaption").textContent = told;
  const [low, high] = byId("scale").children;
  low.textContent = stats.low === null ? "" : trimmed(stats.low);
  high.textContent = stats.high === null ? "" : trimmed(stats.high);
});

// ------------------------------------------------------------ code

function codes() {
  const url = new URL("zarr", BASE).href;
  const path = state.view.array;
  const place = `[${[...state.index, ":", ":"].join(", ")}]`;
  const [group, variable] = state.view.dataset;
  const quoted = JSON.stringify; // names may contain any characters
  const open = path ? `${quoted(url)}, path=${quoted(path)}` : quoted(url);
  return {
    zarrasync: `from zarrasync import sync\n\narray = sync.open_array(${open})\nvalues = array${place}`,
    async: `import zarrasync as za\n\narray = await za.open_array(${open})\nvalues = await array${place}`,
    xarray: `import xarray as xr\n\ndataset = xr.open_dataset(${quoted(url)}, engine="zarrasync"${group ? `, group=${quoted(group)}` : ""})\nvalues = dataset[${quoted(variable)}]${place}`,
    zarrita: `import * as zarr from "zarrita";\n\nconst store = new zarr.FetchStore(${quoted(url)});\nconst array = await zarr.open.v3(zarr.root(store).resolve(${quoted(`/${path}`)}), { kind: "array" });\nconst { data } = await zarr.get(array, [${[...state.index, "null", "null"].join(", ")}]);`,
  };
}

function snippet() {
  if (!state.view) return;
  const all = codes();
  state.code ??= "zarrasync";
  const tabs = byId("snippet").querySelector("[role=tablist]");
  if (!tabs.childElementCount) tabs.append(...Object.keys(all).map(tabFor));
  for (const tab of tabs.children) {
    tab.setAttribute("aria-selected", String(tab.textContent === state.code));
    tab.tabIndex = tab.textContent === state.code ? 0 : -1;
  }
  byId("snippet").querySelector("pre").textContent = all[state.code];
}

function tabFor(name) {
  const tab = document.createElement("button");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", "code");
  tab.textContent = name;
  tab.addEventListener("click", () => {
    state.code = name;
    snippet();
  });
  tab.addEventListener("keydown", (event) => {
    const other = { ArrowRight: tab.nextElementSibling, ArrowLeft: tab.previousElementSibling }[event.key];
    other?.focus();
    other?.click();
  });
  return tab;
}

async function copy() {
  const text = byId("snippet").querySelector("pre").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("snippet").querySelector("pre")); // a page without HTTPS may only select the code
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
}

// ------------------------------------------------------------ the address

let remembering = null;

/** Writes the selection to the address with a delay, because browsers reject frequent changes. */
function remember() {
  remembering ??= setTimeout(() => {
    remembering = null;
    rememberNow();
  }, 200);
}

function rememberNow() {
  const told = new URLSearchParams({ path: state.path ?? "" });
  if (state.view) {
    if (state.index.length) told.set("index", state.index.join(","));
    if (state.cmap !== "viridis") told.set("cmap", state.cmap);
    if (state.ranged) told.set("range", `${state.low},${state.high}`);
    if (state.log) told.set("log", "1");
    if (state.flip !== (state.view.origin === "lower")) told.set("flip", state.flip ? "1" : "0");
    if (state.stored) told.set("stored", "1");
    if (state.labels) told.set("labels", state.labels.path);
    const { row, column, scale } = plane.view;
    if (scale) told.set("at", [row, column, scale].map((n) => Number(n.toPrecision(6))).join(","));
  }
  history.replaceState(null, "", `#${told}`);
}

/** The parameters in an address. */
function asked(address = location.href) {
  return new URLSearchParams(new URL(address).hash.slice(1));
}

/** Shows the node and view of an address, unless another address is followed meanwhile. */
const follow = latest(async (signal, told) => {
  const path = told.get("path") ?? "";
  await tree.reveal(path);
  if (!signal.aborted) await pick(path, told);
});

/** Restores the view of a node from an address. */
function restore(path, told) {
  if (told.get("path") !== path) return;
  const numbers = (name) => (told.get(name) ?? "").split(",").map(Number);
  const index = numbers("index");
  if (index.length === state.index.length && index.every((n, axis) => n >= 0 && n < state.view.axes[axis].size)) state.index = index;
  const usual = state.view.is_labels ? "labels" : COLOURS[0];
  state.cmap = COLOURS.includes(told.get("cmap")) ? told.get("cmap") : usual;
  const range = numbers("range");
  if (range.length === 2 && range.every(Number.isFinite)) [state.low, state.high, state.ranged] = [...range, true];
  state.log = told.has("log");
  if (told.has("flip")) state.flip = told.get("flip") !== "0";
}

// ------------------------------------------------------------ start

const tree = new Tree(byId("tree"), byId("search"), { load: (path) => ask("node", { path }), pick });
window.zarrasync = { plane, state }; // for scripts and the console

async function begin() {
  listen();
  const root = await ask("node", { path: "" });
  if (!root) return;
  document.title = `${root.name || "zarrasync"} · zarrasync`;
  byId("store").textContent = root.attributes.title ?? "";
  tree.show(root);
  await follow(asked());
}

begin();
