// The viewer in a cell of a notebook, in place of host.js: the kernel answers requests, and keeps the view and its picture.

import { picture } from "./picture.js";

const STILL = 700; // milliseconds without changes after which the picture is saved
const name = Math.random().toString(36).slice(2); // of this view, as one model may have several
const waiting = new Map(); // number of a request -> {resolve, reject}
let model, follow, saving;
let count = 0;

export let root = null;
export const isServed = false;
export const urlOf = (path) => path;
export const mounted = () => "";
export const entitle = () => {};
export const expose = (parts) => (root.host.zarrasync = parts);

/** Begins to answer the viewer in an element. */
export function connect(shadow, widget) {
  root = shadow;
  model = widget;
  model.on("msg:custom", receive);
  model.on("change:address", followModel);
  root.addEventListener("click", click);
}

/** Ends requests, as the view is removed. */
export function disconnect() {
  clearTimeout(saving);
  model.off("msg:custom", receive);
  model.off("change:address", followModel);
  for (const id of waiting.keys()) model.send({ kind: "cancel", id });
  waiting.clear();
}

/** Asks the kernel for a path, as a server would be asked. */
export function request(path, { signal } = {}) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const id = `${name}-${(count += 1)}`;
    waiting.set(id, { resolve, reject });
    signal?.addEventListener("abort", () => {
      if (!waiting.delete(id)) return;
      model.send({ kind: "cancel", id });
      reject(signal.reason);
    });
    model.send({ kind: "request", id, path });
  });
}

function receive({ kind, id, status, headers }, buffers) {
  if (kind !== "answer" || !waiting.has(id)) return; // it may be for another view
  root.host.dispatchEvent(new Event("answered")); // a kernel is there
  waiting.get(id).resolve(new Response(buffers[0], { status, headers }));
  waiting.delete(id);
}

async function asURL(path) {
  const answer = await request(path);
  return answer.ok ? URL.createObjectURL(await answer.blob()) : "";
}

export const load = async (image, path) => (image.src = await asURL(path));

/** Follows links to nodes, and saves downloads. */
async function click(event) {
  const link = event.target.closest("a");
  const target = link?.getAttribute("href") ?? "";
  if (target.startsWith("#")) {
    event.preventDefault();
    address.push(target.slice(1));
    follow?.(target.slice(1));
  } else if (link?.download && target.startsWith("api/")) {
    event.preventDefault();
    const href = await asURL(target);
    if (href) Object.assign(document.createElement("a"), { href, download: link.download }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }
}

// ------------------------------------------------------------ the view and its picture

let current = null; // the address that this view has told

export const address = {
  get: () => current ?? model.get("address"),
  replace(text) {
    current = text;
    if (model.get("address") !== text) {
      model.set("address", text);
      model.save_changes();
    }
    clearTimeout(saving);
    saving = setTimeout(save, STILL);
  },
  push: (text) => address.replace(text),
  listen: (call) => (follow = call),
};

function followModel() {
  const text = model.get("address");
  if (text === address.get()) return;
  current = text;
  follow?.(text);
}

/** Sends a picture of the view to the kernel, which puts it below the viewer for readers without a kernel. */
async function save() {
  const canvas = root.getElementById("canvas");
  const isBusy = canvas.getClientRects().length > 0 && canvas.getAttribute("aria-busy") === "true";
  if (isBusy) return void (saving = setTimeout(save, STILL));
  const blob = root.host.isConnected && (await picture(root));
  model.send({ kind: "picture" }, undefined, blob ? [await blob.arrayBuffer()] : []);
}
