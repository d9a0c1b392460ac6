// Code that opens the shown node in Python and JavaScript.

import { isServed, urlOf } from "./host.js";
import { byId, make } from "./page.js";

let shown = "zarrasync";
let snippets = {};
const quoted = JSON.stringify; // names may contain any characters
const url = () => urlOf("zarr");

/** Shows code for a group. */
export function forGroup(path) {
  byId("downloads").replaceChildren();
  const open = path ? `${quoted(url())}, path=${quoted(path)}` : quoted(url());
  show({
    zarrasync: `from zarrasync import sync\n\ngroup = sync.open_group(${open})\nprint(group.tree())`,
    async: `import zarrasync as za\n\ngroup = await za.open_group(${open})\nprint(await group.tree())`,
    xarray: `import xarray as xr\n\ndataset = xr.open_dataset(${quoted(url())}, engine="zarrasync"${path ? `, group=${quoted(path)}` : ""})`,
    zarrita: `import * as zarr from "zarrita";\n\nconst store = new zarr.FetchStore(${quoted(url())});\nconst group = await zarr.open.v3(zarr.root(store).resolve(${quoted(`/${path}`)}), { kind: "group" });`,
  });
}

/** Shows code for a selection of an array, and links to its values: numbers of elements, ranges like "0:3", ":" for whole axes. */
export function forArray(path, [group, variable], selection, decoding = {}, style = null) {
  downloads(path, variable, selection, decoding, style);
  const place = selection.length ? `[${selection.join(", ")}]` : "[()]";
  const open = path ? `${quoted(url())}, path=${quoted(path)}` : quoted(url());
  show({
    zarrasync: `from zarrasync import sync\n\narray = sync.open_array(${open})\nvalues = array${place}`,
    async: `import zarrasync as za\n\narray = await za.open_array(${open})\nvalues = await array${place}`,
    xarray: `import xarray as xr\n\ndataset = xr.open_dataset(${quoted(url())}, engine="zarrasync"${group ? `, group=${quoted(group)}` : ""})\nvalues = dataset[${quoted(variable)}]${place}`,
    zarrita: `import * as zarr from "zarrita";\n\nconst store = new zarr.FetchStore(${quoted(url())});\nconst array = await zarr.open.v3(zarr.root(store).resolve(${quoted(`/${path}`)}), { kind: "array" });\nconst { data } = await zarr.get(array, [${selection.map(zarritaItem).join(", ")}]);`,
  });
}

/** An item of a selection in zarrita. */
function zarritaItem(item) {
  if (item === ":") return "null";
  return `${item}`.includes(":") ? `zarr.slice(${item.split(":").join(", ")})` : item;
}

/** Links to the values of a selection as files, and to its picture. */
function downloads(path, variable, selection, decoding, style) {
  const kinds = [["csv", {}], ["npy", {}], ...(style ? [["png", style]] : [])];
  const links = kinds.map(([format, more]) => {
    const query = new URLSearchParams({ path, select: selection.join(",") || "...", format, ...decoding, ...more });
    return make("a", { href: urlOf(`api/data?${query}`), download: `${variable || "values"}.${format}` }, format);
  });
  byId("downloads").replaceChildren("Download ", ...links.flatMap((link) => [link, " "]));
}

function show(all) {
  snippets = all;
  byId("snippet").hidden = false;
  for (const name of ["code", "copy"]) byId(name).hidden = !isServed; // only programs that can reach the server can run the code
  if (!isServed) return;
  const tabs = byId("snippet").querySelector("[role=tablist]");
  if (!tabs.childElementCount) tabs.append(...Object.keys(all).map(tabFor));
  for (const tab of tabs.children) {
    tab.setAttribute("aria-selected", String(tab.textContent === shown));
    tab.tabIndex = tab.textContent === shown ? 0 : -1;
  }
  byId("code").textContent = all[shown];
}

function tabFor(name) {
  const tab = document.createElement("button");
  tab.type = "button";
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", "code");
  tab.textContent = name;
  tab.addEventListener("click", () => {
    shown = name;
    show(snippets);
  });
  tab.addEventListener("keydown", (event) => {
    const other = { ArrowRight: tab.nextElementSibling, ArrowLeft: tab.previousElementSibling }[event.key];
    other?.focus();
    other?.click();
  });
  return tab;
}

export async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("code")); // a page without HTTPS may only select the code
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
}
