// The values of an array as a table, page by page: for scalars, strings, dates, structs, and next to charts.

import { ask, byId, coordinate, latest, make, sliders, titled, withUnit } from "./page.js";
import { grid } from "./summary.js";

const ROWS = 50;
const COLUMNS = 12;
const MIDNIGHT = /T00(:00){0,2}(\.0+)?$/;
let shown = null; // {path, axes, index, row, column, decoding}

/** Shows the values of an array from the first one on. */
export function values(path, axes, decoding = {}) {
  shown = path === null ? null : { path, axes, index: axes.slice(0, -2).map(() => 0), row: 0, column: 0, decoding };
  byId("values").hidden = !shown;
  byId("values").replaceChildren();
  if (!shown) return;
  byId("values").append(make("div", { className: "sliders" }, ...sliders(axes.slice(0, -2), shown.index, fill)), make("div", { id: "page" }), make("div", { id: "pages" }));
  fill();
}

const fill = latest(async (signal) => {
  const { path, axes, index, row, column, decoding } = shown;
  const [down, across] = axes.length > 1 ? axes.slice(-2) : [axes[0] ?? { name: "", size: 1 }, null];
  const ends = [Math.min(row + ROWS, down.size), across ? Math.min(column + COLUMNS, across.size) : 0];
  const select = [...index, ...(axes.length ? [`${row}:${ends[0]}`] : []), ...(across ? [`${column}:${ends[1]}`] : [])].join(",");
  const told = await ask("data", { path, select: select || "...", int64: "string", ...decoding }, { signal, failed: (text) => byId("page").replaceChildren(text) });
  if (!told) return;
  const hasFields = told.fields && !across; // in columns of their own
  const lines = (axes.length ? told.data : [told.data]).map((line) => (across || hasFields ? line : [line]));
  const names = across ? lines[0]?.map((_, n) => coordinate(across, column + n)) ?? [] : told.fields ?? [told.unit ? `value [${told.unit}]` : "value"];
  const columns = names.map((name, n) => columnOf(name, lines.map((line) => line[n]), hasFields ? { dtype: told.field_dtypes[n] } : told));
  if (axes.length) columns.unshift({ name: titled(down), texts: lines.map((_, n) => coordinate(down, row + n)), isNumeric: !down.labels });
  const rows = lines.map((_, n) => columns.map(({ texts }) => texts[n]));
  const numeric = columns.flatMap(({ isNumeric }, n) => (isNumeric ? [n] : []));
  byId("page").replaceChildren(lines.length ? grid("", columns.map(({ name }) => name), rows, numeric) : "The array has no elements.");
  const isEmpty = axes.some(({ size }) => !size);
  byId("pages").replaceChildren(...(isEmpty ? [] : pager("row", down, row, ends[0], ROWS)), ...(across && !isEmpty ? pager("column", across, column, ends[1], COLUMNS) : []));
});

/** A column of values as texts: dates without the time of day if it is midnight for all of them. */
function columnOf(name, items, told) {
  const texts = withShortDates(items, told).map((item) => asText(item, told));
  const isNumeric = /^(u?int|float|bfloat|complex)/.test(told.dtype) || items.every((item) => item === null || typeof item === "number");
  return { name, texts, isNumeric };
}

function withShortDates(items, { dtype, calendar, field_dtypes: dtypes }) {
  if (dtypes) {
    const fields = dtypes.map((dtype, n) => withShortDates(items.map((item) => item[n]), { dtype }));
    return items.map((_, row) => fields.map((field) => field[row]));
  }
  const isShort = (calendar || dtype?.startsWith("datetime")) && items.every((item) => item === null || MIDNIGHT.test(item));
  return isShort ? items.map((item) => item?.replace(MIDNIGHT, "") ?? null) : items;
}

/** A value as text: complex numbers in one string, fields of structs with commas, a sign for missing values. */
function asText(value, { dtype = "", unit = "", field_dtypes: dtypes }) {
  if (value === null) return "missing";
  if (Array.isArray(value) && dtype.startsWith("complex")) return `${value[0]} ${value[1] < 0 ? "−" : "+"} ${Math.abs(value[1])}i`;
  if (typeof value === "object") return Array.isArray(value) ? value.map((item, n) => asText(item, { dtype: dtypes?.[n] })).join(", ") : JSON.stringify(value);
  return unit && !shown.axes.length ? withUnit(value, unit) : `${value}`;
}

function pager(kind, axis, first, end, size) {
  if (axis.size <= size) return [];
  const move = (to) => {
    shown[kind] = Math.max(0, Math.min(to, Math.floor((axis.size - 1) / size) * size));
    fill();
  };
  const button = (text, label, to, disabled) => {
    const element = make("button", { type: "button", disabled, "aria-label": label }, text);
    element.addEventListener("click", () => move(to));
    return element;
  };
  const text = `${kind}s ${(first + 1).toLocaleString("en")} to ${end.toLocaleString("en")} of ${axis.size.toLocaleString("en")}`;
  return [button("‹", `previous ${kind}s`, first - size, first === 0), make("span", {}, text), button("›", `next ${kind}s`, first + size, end >= axis.size)];
}
