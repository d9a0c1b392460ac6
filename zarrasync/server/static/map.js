// A map of one array, for pages that embed it, and to look at tiles without other programs.

import { Plane } from "./canvas.js";
import { coastlines } from "./coast.js";
import { request } from "./host.js";
import { byId, latest, make, notice, trimmed, withUnit } from "./page.js";

const DEEPER = 3; // zooms beyond the one at which pixels are elements
const name = location.pathname.split("/").at(-2);
const query = location.search;
const world = { WebMercatorQuad: 1, WorldCRS84Quad: 2 }[name]; // columns of tiles at zoom 0

/** The longitude and the latitude at a pixel of the last zoom. */
function place({ row, column }, zoom) {
  const side = 256 * 2 ** zoom;
  const [x, y] = [(column + 0.5) / side, (row + 0.5) / side];
  return name === "WorldCRS84Quad" ? [x * 180 - 180, 90 - y * 180] : [x * 360 - 180, (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI];
}

/** The pixel of the last zoom at a longitude and a latitude. */
function pixel([longitude, latitude], zoom) {
  const side = 256 * 2 ** zoom;
  if (name === "WorldCRS84Quad") return { column: ((longitude + 180) / 180) * side, row: ((90 - latitude) / 180) * side };
  const y = Math.asinh(Math.tan((Math.max(-85.05, Math.min(85.05, latitude)) * Math.PI) / 180));
  return { column: ((longitude + 180) / 360) * side, row: (1 - y / Math.PI) * (side / 2) };
}

const read = latest(async (signal, zoom, element) => {
  const [longitude, latitude] = place(element, zoom).map((value) => Number(value.toFixed(4)));
  const where = `${withUnit(latitude, "degrees_north")}, ${withUnit(longitude, "degrees_east")}`;
  byId("readout").textContent = `${where}: …`;
  await new Promise((done) => setTimeout(done, 40));
  if (signal.aborted) return;
  const known = new URLSearchParams([...new URLSearchParams(query)].filter(([key]) => ["variable", "group", "sel", "nodata"].includes(key)));
  try {
    const answer = await request(`point/${longitude},${latitude}?${known}`, { signal });
    const told = await answer.json();
    const [value] = told.values ?? [null];
    const text = !answer.ok ? "no value" : value === null ? "missing" : withUnit(typeof value === "number" ? trimmed(value) : value, told.unit);
    byId("readout").textContent = `${where}: ${text}`;
  } catch (error) {
    if (error.name !== "AbortError") byId("readout").textContent = where;
  }
});

/** Shows which colours stand for which values. */
async function legend() {
  const parameters = new URLSearchParams([...new URLSearchParams(query)].filter(([key]) => ["variable", "group", "rescale", "colormap_name", "colormap", "below", "above"].includes(key)));
  const answer = await request(`legend.json?${parameters}`);
  if (!answer.ok) return;
  const told = await answer.json();
  if (told.colormap === "rgb") return;
  const marked = (colour, text) => {
    const mark = make("i");
    mark.style.background = colour;
    return make("span", {}, mark, text);
  };
  const named = told.labels?.map(({ value, name: text, colour }) => marked(colour, text || `${value}`));
  const steps = told.intervals?.map(({ low, high, colour }) => marked(colour, low === high ? `${low}` : `${low} to ${high}`));
  const scale = () => [`${trimmed(told.low, 5)}`, make("img", { src: `../legend.png?${parameters}`, alt: `the colour map ${told.colormap}` }), withUnit(trimmed(told.high, 5), told.unit)];
  byId("legend").replaceChildren(...(named ?? steps ?? scale()));
  byId("legend").hidden = false;
}

/** Tells that there is no map of the variable in the address. */
function refuse(text, status) {
  const variable = new URLSearchParams(query).get("variable");
  byId("name").textContent = document.title = variable || "Map";
  for (const id of ["picture", "coasts", "legend"]) byId(id).hidden = true;
  notice(status === 404 ? "The address asks for a variable that does not exist in this store." : text);
}

async function begin() {
  const answer = await request(`${name}/tilejson.json${query}`);
  const told = await answer.json();
  if (!answer.ok) return refuse(told.message, answer.status);
  legend();
  byId("name").textContent = document.title = told.name;
  const zoom = told.maxzoom + DEEPER;
  const side = 256 * 2 ** zoom;
  const plane = new Plane(byId("canvas"), { moved: () => {}, pointed: (element) => (element ? read(zoom, element) : (byId("readout").textContent = "")) });
  const url = (z, x, y) => told.tiles[0].replace("{z}", z).replace("{x}", x).replace("{y}", y);
  const [west, south, east, north] = told.bounds;
  const all = () => {
    const [first, last] = [pixel([west, north], zoom), pixel([east, south], zoom)];
    const scale = 0.96 * Math.min(plane.width / (last.column - first.column), plane.height / (last.row - first.row));
    plane.view = { row: (first.row + last.row) / 2, column: (first.column + last.column) / 2, scale };
  };
  const show = () => {
    const place = (longitude, latitude) => {
      const { column, row } = pixel([longitude, latitude], zoom);
      return [column, row];
    };
    const lines = byId("coast").checked ? coastlines(place) : null;
    plane.show({ name, rows: side, columns: world * side, tile: 256, minZoom: 0, maxZoom: zoom, url, lines });
  };
  show();
  byId("coast").addEventListener("change", show);
  requestAnimationFrame(() => requestAnimationFrame(all));
  byId("in").addEventListener("click", () => plane.zoomBy(2));
  byId("out").addEventListener("click", () => plane.zoomBy(0.5));
  byId("fit").addEventListener("click", all);
  window.zarrasync = { plane };
}

begin();
