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

/** Returns coastlines in columns and rows of a plane; null if they cannot be loaded, as the plane can be shown without them. */
export async function coastlines([down, across], isFlipped) {
  try {
    lines = await (lines ?? (lines = load()));
  } catch {
    lines = null;
    notice("The coastlines cannot be loaded.");
    return null;
  }
  const path = new Path2D();
  const column = (longitude) => (longitude - across.origin) / across.step + 0.5;
  const row = (latitude) => (latitude - down.origin) / down.step + 0.5;
  for (const turn of [-360, 0, 360]) // the first longitude may be -180 or 0
    for (const line of lines)
      for (let n = 0; n < line.length; n += 2) {
        const place = [column(line[n] + turn), isFlipped ? down.size - row(line[n + 1]) : row(line[n + 1])];
        if (n) path.lineTo(...place);
        else path.moveTo(...place);
      }
  return path;
}
