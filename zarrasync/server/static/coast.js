// Coastlines over planes of latitudes and longitudes.

import { request } from "./host.js";
import { notice } from "./page.js";

let lines = null; // lists of longitudes and latitudes, one after the other

/** Requests the coastlines when they are first needed. */
async function load() {
  const answer = await request("static/coastlines.json");
  if (!answer.ok) throw new Error(`${answer.status}`);
  const told = await answer.json();
  return told.lines.map((line) => {
    const at = [0, 0];
    return line.map((step, number) => (at[number % 2] += step) * told.unit);
  });
}

/** Whether the axes of a plane have coordinates with equal steps on the earth. */
export const isOnEarth = ({ is_map: isMap, axes }) => isMap && axes.slice(-2).every(({ step }) => step);

/** Returns coastlines as a path; null if they cannot be loaded, as a plane can be shown without them. `place` returns the column and the row of a longitude and a latitude. */
export async function coastlines(place, turns = [0]) {
  try {
    lines = await (lines ?? (lines = load()));
  } catch {
    lines = null;
    notice("The coastlines cannot be loaded.");
    return null;
  }
  const path = new Path2D();
  for (const turn of turns)
    for (const line of lines)
      for (let n = 0; n < line.length; n += 2) {
        const point = place(line[n] + turn, line[n + 1]);
        if (n) path.lineTo(...point);
        else path.moveTo(...point);
      }
  return path;
}

/** Returns coastlines over a plane with equal steps. */
export function coastlinesOver([down, across], isFlipped) {
  const column = (longitude) => (longitude - across.origin) / across.step + 0.5;
  const row = (latitude) => (latitude - down.origin) / down.step + 0.5;
  const place = (longitude, latitude) => [column(longitude), isFlipped ? down.size - row(latitude) : row(latitude)];
  return coastlines(place, [-360, 0, 360]); // the first longitude may be -180 or 0
}
