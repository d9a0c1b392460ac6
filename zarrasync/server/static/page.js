// What all views share: requests, elements, and texts of numbers, units and coordinates.

import { request, root } from "./host.js";

const SYMBOLS = { micrometer: "µm", nanometer: "nm", millimeter: "mm", meter: "m", angstrom: "Å", second: "s", millisecond: "ms", minute: "min", hour: "h", degree: "°", degrees: "°" };
const COMPASS = { n: ["N", "S"], e: ["E", "W"] };
const DATE_PARTS = [4, 7, 10, 13, 16, 19]; // characters of a year, a month, a day, an hour, a minute, a second

export const byId = (id) => root.getElementById(id);

/** Returns an element with properties and children. Properties with a dash are attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Returns an SVG element with attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Returns the server's response; null after an error, which `failed` gets: by default, it is shown unless the request may be cancelled. */
export async function ask(name, parameters, { signal, failed = signal ? () => {} : notice } = {}) {
  try {
    const answer = await request(`api/${name}?${new URLSearchParams(parameters)}`, { signal });
    const told = await answer.json();
    if (answer.ok) return told;
    failed(told.message ?? `${answer.status}`, answer.status);
  } catch (error) {
    if (error.name !== "AbortError") failed(`The server does not respond: ${error.message}`, 0);
  }
  return null;
}

/** Shows a message; an empty one hides it. */
export function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** Returns a function whose calls cancel the previous call, with a function that only cancels it. */
export function latest(call) {
  let abort = new AbortController();
  const run = (...values) => {
    abort.abort();
    abort = new AbortController();
    return call(abort.signal, ...values);
  };
  run.cancel = () => abort.abort();
  return run;
}

/** The address of a node in this page. */
export const linkTo = (path) => `#${new URLSearchParams({ path })}`;

// ------------------------------------------------------------ numbers and units

/** A number with so many digits; infinite ones are strings in JSON. */
export const trimmed = (value, digits = 6) => (value === null ? "" : Number(Number(value).toPrecision(digits)));

/** The digits that distinguish numbers between two numbers: more than 6 if they are close to each other. */
export function digitsFor(low, high, least = 6) {
  const [most, span] = [Math.max(Math.abs(low), Math.abs(high)), Math.abs(high - low)];
  return span > 0 && Number.isFinite(most / span) ? Math.min(17, Math.max(least, Math.ceil(Math.log10(most / span)) + 3)) : least;
}

export const symbol = (unit) => SYMBOLS[unit] ?? unit;

/** A number with its unit: "285.4 K", "33°N", "0.5°". */
export function withUnit(value, unit) {
  const direction = COMPASS[/^degrees?_?([ne])/i.exec(unit)?.[1].toLowerCase()];
  if (direction) return `${Math.abs(value)}°${value ? direction[Number(value < 0)] : ""}`;
  return `${value}${symbol(unit).startsWith("°") ? "" : " "}${symbol(unit)}`.trim();
}

/** An axis with its unit: "z [µm]". */
export const titled = ({ name, unit }) => (unit && !/^degrees?_/.test(unit) ? `${name} [${symbol(unit)}]` : name);

// ------------------------------------------------------------ coordinates

export const isLabelled = (axis) => axis.labels !== undefined || axis.step !== undefined;

/** The coordinate of an element: "2024-02-29", "33°N", "12.5 µm"; its number if the axis has no coordinates. */
export function coordinate({ step, origin, unit, labels }, index) {
  if (labels) return labels[index] ?? "";
  return step === undefined ? `${index}` : withUnit(trimmed(origin + step * index, 9), unit);
}

/** The first and the last coordinate of an axis, of which a group has only those: "2024-01-01 … 2024-12-31". */
export function extent(axis) {
  if (!isLabelled(axis)) return "";
  const last = axis.labels ? axis.labels.length - 1 : axis.size - 1;
  return last ? `${coordinate(axis, 0)} … ${coordinate(axis, last)}` : coordinate(axis, 0);
}

/** Places for ticks along an axis between two elements: {index, text}, at most `most` of them. */
export function ticks(axis, first, last, most) {
  if (axis.labels) return labelTicks(axis.labels, Math.max(0, Math.ceil(first)), Math.min(axis.size - 1, Math.floor(last)), most);
  const [step, origin] = [axis.step ?? 1, axis.origin ?? 0];
  const places = numberTicks(...[origin + first * step, origin + last * step].sort((a, b) => a - b), most, axis.step === undefined, axis.unit);
  return places.map((value) => ({ index: (value - origin) / step, text: /^degree/.test(axis.unit) ? withUnit(value, axis.unit) : `${value}` }));
}

/** Round numbers between two numbers, at most `most` of them. */
export function numberTicks(low, high, most, isWhole = false, unit = "") {
  const least = (high - low) / Math.max(most, 1);
  if (!(least > 0) || !Number.isFinite(least)) return [low];
  const power = 10 ** Math.floor(Math.log10(least));
  const degrees = /^degree/.test(unit) ? [15, 30, 45, 90, 180].filter((n) => n >= least && least > 5) : [];
  const step = degrees[0] ?? Math.max([1, 2, 5, 10].find((n) => n * power >= least * 0.999) * power, isWhole ? 1 : 0);
  const places = [];
  const digits = digitsFor(low, high, 12);
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) places.push(Number((n * step).toPrecision(digits)));
  return places;
}

/** Ticks at the beginning of years, months, days or hours if the labels are dates, or else at equal distances. */
function labelTicks(labels, first, last, most) {
  const begins = (length) => {
    const found = [];
    for (let index = first; index <= last; index++)
      if (index === 0 || labels[index].slice(0, length) !== labels[index - 1].slice(0, length)) found.push({ index, text: labels[index].slice(0, length) });
    return found;
  };
  if (/^-?\d{4}-\d\d-\d\d/.test(labels[first] ?? "")) {
    const parts = DATE_PARTS.filter((length) => length <= labels[first].length);
    const found = parts.map(begins).filter((places) => places.length && places.length <= most * Math.max(1, 10 / places[0].text.length));
    if (found.length && (found.at(-1).length > 1 || last - first < 2)) return found.at(-1);
  }
  const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(most, 1)));
  const places = [];
  for (let index = Math.ceil(first / stride) * stride; index <= last; index += stride) places.push({ index, text: labels[index] });
  return places;
}

// ------------------------------------------------------------ sliders

/** Sliders for axes. `changed` is called with the number of an axis and the element. */
export function sliders(axes, index, changed) {
  return axes.flatMap((axis, number) => {
    const slider = make("input", { type: "range", min: 0, max: axis.size - 1, step: 1, id: `axis-${number}` });
    const output = make("output");
    const tell = () => {
      const text = coordinate(axis, index[number]);
      output.textContent = text;
      output.title = `element ${index[number]} of ${axis.size}`;
      slider.setAttribute("aria-valuetext", text);
    };
    slider.value = index[number];
    slider.addEventListener("input", () => {
      index[number] = Number(slider.value);
      tell();
      changed();
    });
    tell();
    return [make("label", { htmlFor: slider.id }, titled(axis)), slider, output];
  });
}
