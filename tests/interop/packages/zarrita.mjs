// Read arrays with zarrita.js: node zarrita.mjs NODE_MODULES FOLDER NAME… Prints shapes and values as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, folder, ...names] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${modules}/${path}`).href);
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");
const root = zarr.root(new FileSystemStore(folder));
const arrays = {};
for (const name of names) {
  const { data, shape } = await zarr.get(await zarr.open(root.resolve(name), { kind: "array" }));
  arrays[name] = { shape, values: [...data] };
}
const { version } = JSON.parse(readFileSync(`${modules}/zarrita/package.json`));
console.log(JSON.stringify({ version, arrays }));
