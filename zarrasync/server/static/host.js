// Where the viewer runs: here on a page of the server. In a notebook, cell.js takes the place of this module.

const BASE = new URL("..", import.meta.url);

export const root = document;
export const isServed = true; // other programs can read the store and its pictures from the server

/** The URL of a path of the server. */
export const urlOf = (path) => new URL(path, BASE).href;

/** Requests a path of the server, or a URL. */
export const request = (path, options) => fetch(urlOf(path), options);

/** Shows a picture of the server in an image. */
export const load = (image, path) => (image.src = urlOf(path));

/** The name of the store in the address, if several are served. */
export const mounted = () => decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");

export const entitle = (text) => (document.title = text);

/** For scripts and the console. */
export const expose = (parts) => (window.zarrasync = parts);

/** The view of the viewer as parameters, which can be shared. */
export const address = {
  get: () => location.hash.slice(1),
  replace: (text) => history.replaceState(null, "", `#${text}`),
  push: (text) => history.pushState(null, "", `#${text}`),
  /** Calls a function with each new address. It is the event's, because the page may replace its own before the event arrives. */
  listen: (follow) =>
    window.addEventListener("hashchange", ({ newURL }) => {
      const text = new URL(newURL).hash.slice(1);
      if (!text || new URLSearchParams(text).has("path")) follow(text);
    }),
};
