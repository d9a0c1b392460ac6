// The page. The address contains the selected node and view, so that they can be shared and bookmarked.

import { Chart } from "./chart.js";
import * as code from "./code.js";
import { address, entitle, expose, mounted } from "./host.js";
import * as image from "./image.js";
import { ask, byId, latest, linkTo, make, notice, symbol } from "./page.js";
import * as summary from "./summary.js";
import { Tree } from "./tree.js";
import { values } from "./values.js";

const KNOWN = ["path", "index", "plane", "cmap", "range", "scale", "flip", "stored", "coast", "labels", "at", "box", "span"]; // in addresses
const page = { path: null, told: null, node: null, name: "" };
const underway = new Map(); // path -> the response to a request for a node
let introduced = null; // once the tree shows the members of the root

// ------------------------------------------------------------ the node

/** Returns the description of a node; null after an error, which `failed` gets. The page and the tree may need the same node at once. */
async function describe(path, failed = () => {}) {
  if (!underway.has(path)) {
    let problem = null;
    const asking = ask("node", { path }, { failed: (...told) => (problem = told) });
    underway.set(path, asking.then((node) => ({ node, problem })).finally(() => underway.delete(path)));
  }
  const { node, problem } = await underway.get(path);
  if (problem) failed(...problem);
  return node;
}

/** Shows a node, as it is described in an address. */
async function pick(path, told) {
  page.told = told; // for a call that waits for the same node
  if (path === page.path) return told && page.node && arrange(told);
  page.path = path;
  page.node = null;
  notice("");
  const node = await describe(path, (text, status) => page.path === path && refuse(path, text, status));
  if (page.path !== path) return null;
  page.node = node;
  card(node);
  summary.members(node);
  summary.gallery(node?.gallery ?? []);
  byId("chart").hidden = true;
  byId("snippet").hidden = !node;
  values(null);
  await image.show(null);
  if (node?.kind === "group") {
    code.forGroup(path);
    summary.dimensions(path, () => page.path === path);
  }
  return node ? arrange(page.told ?? asked()) : null;
}

/** Shows the view of the node that suits it, and what is invalid in the address. */
async function arrange(told) {
  const { node, path } = page;
  const problems = (node.kind === "group" && !node.pyramid ? null : await (isPlanar(node) ? planar(path, told) : linear(node, path, told))) ?? [];
  if (page.path !== path) return;
  if ((told.get("path") ?? "") === path) problems.push(...unknown(told));
  if (problems.length) notice(`The address asks for what does not exist: ${problems.join("; ")}. The default is shown instead.`);
  remember();
}

/** Parameters of an address that no view has. */
function unknown(told) {
  return [...told.keys()].filter((name) => !KNOWN.includes(name)).map((name) => `the parameter ${name}`);
}

function isPlanar(node) {
  return node.kind === "group" || (node.shape.length >= 2 && /^(bool|u?int|float|bfloat)/.test(node.dtype) && node.shape.every((n) => n > 0));
}

function planar(path, told) {
  return image.state.view && image.state.path === path ? image.arrange(told) : image.show(path, told);
}

/** Shows an array without planes: numbers along one axis as a chart, and all values as a table. */
async function linear(node, path, told) {
  const stored = image.asksForStored(path, told) ? { decode: 0 } : {};
  const answer = await ask("axes", { path });
  if (!answer || page.path !== path) return [];
  const { axes } = answer;
  const isSeries = axes.length === 1 && axes[0].size > 1 && /^(bool|u?int|float|bfloat|complex)/.test(node.dtype) && !node.has_dates;
  byId("chart").hidden = !isSeries;
  values(path, axes, stored);
  code.forArray(path, node.dataset, axes.map(() => ":"));
  if (!isSeries) return [];
  const span = told.get("path") === path && told.has("span") ? told.get("span").split(",").map(Number) : null;
  const isValid = span?.length === 2 && span.every(Number.isInteger) && span[0] >= 0 && span[0] < span[1] && span[1] <= axes[0].size;
  await chart.show({ path, axis: axes[0], span: isValid ? span : null, decoding: stored });
  return span && !isValid ? [`the part ${told.get("span")} of ${axes[0].size} elements`] : [];
}

/** Tells that the node of an address cannot be shown. */
function refuse(path, text, status) {
  notice(status === 404 ? `The address asks for /${path}, which does not exist in this store. ` : `${text} `);
  if (path) byId("notice").append(make("a", { href: linkTo("") }, "Show the whole store"));
}

// ------------------------------------------------------------ facts

function card(node) {
  byId("card").hidden = byId("heading").hidden = !node;
  byId("title").textContent = node ? `/${node.path}` : "";
  byId("subtitle").textContent = node ? subtitle(node) : "";
  retitle();
  if (!node) return;
  const facts = node.kind === "array" ? arrayFacts(node) : [...Object.entries(node.info), ["Zarr format", node.format]];
  byId("facts").replaceChildren(...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, `${text}`))));
  const count = Object.keys(node.attributes).length;
  const details = byId("attributes");
  details.hidden = !count;
  details.open = false;
  details.querySelector("summary").textContent = count === 1 ? "1 attribute" : `${count} attributes`;
  details.querySelector("pre").textContent = JSON.stringify(node.attributes, null, 2);
}

function retitle() {
  entitle([page.path, page.name, "zarrasync"].filter(Boolean).join(" · "));
}

function subtitle(node) {
  if (node.kind === "group") return [node.title, node.members ? `${node.members.length} members` : "The store cannot list the members."].filter(Boolean).join(" · ");
  return [[node.title, node.unit && !node.has_dates ? `[${symbol(node.unit)}]` : ""].filter(Boolean).join(" "), summary.sizes(node)].filter(Boolean).join(" · ");
}

/** The facts about an array: what its values are first, how they are stored last. */
function arrayFacts(node) {
  const { Codecs, "Chunk keys": keys, "Fill value": fill, Chunks, Shards, Size, ...rest } = node.info;
  const facts = { "Data type": node.dtype, ...rest, "Fill value": fill?.replace(/^\((.*?),?\)$/, "$1"), Size, [node.shards ? "Inner chunks and shards" : "Chunks"]: `${Chunks ?? Shards} of ${summary.chunks(node) || "1 element"}` };
  return Object.entries({ ...facts, Codecs, "Chunk keys": keys, "Zarr format": node.format }).filter(([, text]) => text !== undefined);
}

// ------------------------------------------------------------ the search

/** Shows links to the nodes whose paths contain a string, instead of the tree. */
const search = latest(async (signal, text) => {
  byId("tree").hidden = text !== "";
  byId("found").hidden = text === "";
  if (!text) return;
  await new Promise((done) => setTimeout(done, 150)); // no requests while the user types
  const told = signal.aborted ? null : await ask("search", { text }, { signal });
  if (!told || signal.aborted) return;
  const items = told.nodes.map((node) => make("li", {}, make("a", { href: linkTo(node.path), title: node.title ?? "" }, `/${node.path}`)));
  if (!told.nodes.length) items.push(make("li", {}, "No node has such a name."));
  if (!told.is_complete) items.push(make("li", {}, "The list is not complete: the store has too many nodes, or cannot list them."));
  byId("found").replaceChildren(...items);
});

// ------------------------------------------------------------ the address

let remembering = null;

/** Writes the view to the address with a delay, because browsers reject frequent changes. */
function remember() {
  remembering ??= setTimeout(rememberNow, 200);
}

function rememberNow() {
  clearTimeout(remembering);
  remembering = null;
  if (!page.node) return; // the address of a node that does not exist stays
  const told = { path: page.path, ...(image.state.view ? image.parameters() : {}) };
  if (!byId("chart").hidden && chart.axis && !chart.isWhole) told.span = chart.span.join(",");
  address.replace(`${new URLSearchParams(told)}`);
}

/** Goes to a node as a link does, so that Back returns to the one before. */
function go(path) {
  if (path === page.path) return;
  rememberNow();
  address.push(linkTo(path).slice(1));
  follow(asked());
}

/** The parameters in the address. */
function asked() {
  return new URLSearchParams(address.get());
}

/** Shows the node and view of an address, unless another address is followed meanwhile. */
const follow = latest(async (_, told) => {
  clearTimeout(remembering); // the address is that of the next view
  remembering = null;
  const path = told.get("path") ?? "";
  const revealed = introduced.then(() => tree.reveal(path)); // meanwhile, as it requests each group above the node
  await pick(path, told);
  await revealed;
});

// ------------------------------------------------------------ start

const chart = new Chart(byId("chart"), { changed: remember });
const tree = new Tree(byId("tree"), { load: (path) => describe(path, notice), pick: go });
expose({ plane: image.plane, state: image.state });

function listen() {
  image.listen(remember);
  byId("search").addEventListener("input", () => search(byId("search").value.trim()));
  byId("copy").addEventListener("click", code.copy);
  byId("browse").addEventListener("click", () => {
    const isOpen = byId("viewer").classList.toggle("browsing");
    byId("browse").setAttribute("aria-expanded", String(isOpen));
  });
  address.listen((text) => follow(new URLSearchParams(text)));
}

/** Names the store, and shows its tree. */
function introduce(root) {
  page.name = root?.store || mounted();
  byId("store").textContent = page.name || root?.attributes.title || "zarrasync";
  byId("about").textContent = page.name ? root?.attributes.title ?? "" : "";
  page.name ||= root?.attributes.title ?? "";
  retitle();
  if (root) tree.show(root);
}

listen();
introduced = describe("").then(introduce);
follow(asked()); // without waiting for the root
