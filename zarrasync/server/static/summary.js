// A group: its dimensions, its members as a table, and pictures of images.

import { load } from "./host.js";
import { ask, byId, extent, linkTo, make, symbol } from "./page.js";

/** Shows the members of a group. */
export function members(node) {
  const list = node?.kind === "group" ? node.members : null;
  byId("summary").hidden = !list?.length;
  if (!list?.length) return byId("summary").replaceChildren();
  const dimensions = new Set(list.flatMap((member) => member.dimension_names ?? []));
  const isCoordinate = ({ name, shape }) => dimensions.has(name) && shape?.length === 1;
  const parts = [
    ["Groups", list.filter(({ kind }) => kind === "group")],
    ["Variables", list.filter((member) => member.kind === "array" && !isCoordinate(member))],
    ["Coordinates", list.filter((member) => member.kind === "array" && isCoordinate(member))],
    ["Members that cannot be read", list.filter(({ kind }) => kind === "broken")],
  ].filter(([, items]) => items.length);
  byId("summary").replaceChildren(make("div", { id: "dimensions" }), ...parts.map(([title, items]) => table(title, items)));
}

/** Adds the dimensions of a group, whose coordinates take requests to its store. */
export async function dimensions(path, isCurrent) {
  const told = await ask("axes", { path }, { failed: () => {} }); // the members can be shown without them
  if (!told?.axes.length || !isCurrent()) return;
  const rows = told.axes.map((axis) => [axis.name, axis.size.toLocaleString("en"), extent(axis)]);
  byId("dimensions").replaceChildren(grid("Dimensions", ["Name", "Size", "Coordinates"], rows, [1]));
}

function table(title, items) {
  const isArray = items[0].kind === "array";
  const names = ["Name", "Contents", "Unit", "Dimensions", "Type", "Chunks"].slice(0, isArray ? 6 : 2);
  const rows = items.map((item) => [link(item), item.title, ...(isArray ? [symbol(item.unit), sizes(item), item.dtype, chunks(item)] : [])]);
  const used = (cells) => cells.filter((_, column) => rows.some((row) => row[column])); // a column without texts takes room on phones
  return grid(title, used(names), rows.map(used));
}

/** The axes of an array with their sizes: "time 365 × lat 721". */
export function sizes({ shape, dimension_names: names }) {
  return shape.length ? shape.map((size, axis) => [names?.[axis], size].filter((part) => part ?? false).join(" ")).join(" × ") : "scalar";
}

export function chunks({ chunks: inner, shards }) {
  const text = (shape) => shape.map((size) => (Array.isArray(size) ? "varying" : size)).join(" × ");
  return inner.length ? text(inner) + (shards ? ` in shards of ${text(shards)}` : "") : "";
}

function link({ path, name }) {
  return make("a", { href: linkTo(path) }, name);
}

const LONG = ["Contents", "Coordinates"]; // columns whose texts may take several lines

/** A table with a caption. `numeric` has the positions of the columns of numbers. */
export function grid(title, columns, rows, numeric = []) {
  const kind = (n) => (numeric.includes(n) ? "number" : title && LONG.includes(columns[n]) ? "long" : "");
  const cell = (tag, n, content, more = {}) => make(tag, { className: kind(n), ...more }, content ?? "");
  const head = make("tr", {}, ...columns.map((column, n) => cell("th", n, column, { scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((content, n) => (n ? cell("td", n, content) : cell("th", n, content, { scope: "row" })))));
  const caption = title ? [make("caption", {}, title)] : [];
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": title || "values" }, make("table", {}, ...caption, make("thead", {}, head), make("tbody", {}, ...body)));
}

// ------------------------------------------------------------ pictures

/** Shows pictures of the images of a group. Wells of a plate are in a grid of rows and columns. */
export function gallery(nodes) {
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
  const element = make("b", {}, text);
  element.style.gridArea = `${row} / ${column}`;
  return element;
}

/** A link to a node with the coarsest tile of its image. */
function picture(path, text) {
  const image = make("img", { loading: "lazy", alt: path });
  load(image, `api/tiles/0/0/0.png?${new URLSearchParams({ path })}`);
  return make("a", { href: linkTo(path), title: path }, image, text);
}
