/* Errors and hints that name a mistake of a page or of its server. Loaded when something is wrong. */

import { foreign, SignalError } from "./errors.js";
import { sleep } from "./timing.js";

const HINT_MS = 10_000; // alone in a room

/**
 * Make the error for a redirect. Browsers hide its target, so a request without a token and a secret follows it.
 * @param {string} url @param {RequestInit} init
 */
export async function redirected(url, { signal }) {
  const [path] = url.split("?");
  const target = await fetch(path, { signal }).then(
    (response) => response.url,
    () => "another server",
  );
  return foreign(path, `redirects to ${target}, which is not followed`);
}

/** @param {string} seen the origin of a request in the opinion of the server */
export function originChanged(seen) {
  const reason = "A proxy changes Host or the scheme, and removes Referer (docs/proxies.md)";
  return new SignalError(
    "origin-changed",
    `The server sees the origin ${seen} instead of ${globalThis.origin}. ${reason}`,
  );
}

export const originMissing = () =>
  globalThis.location
    ? originChanged("(none)")
    : new SignalError(
        "invalid-origin",
        "Outside of browsers, set `origin` to that of the pages to meet: https://a.example",
      );

/**
 * Name the origin on a loopback address, unless there are members after some seconds.
 * @param {string} topic @param {Map<string, unknown>} members @param {AbortSignal} signal
 */
export async function hintAtOrigin(topic, members, signal) {
  await sleep(0, signal, HINT_MS);
  if (members.size) return;
  const { origin } = globalThis.location;
  console.info(`Nobody else of ${origin} is in ${topic}. localhost and 127.0.0.1 are different origins.`);
}

let warned = false; // of the origin null

export function warnOfOrigin() {
  if (warned) return;
  warned = true;
  console.warn("The origin null is not private: all file:// pages and sandboxed frames have it");
}

/** @param {string} url of a request to which a server of this API has no path */
export const wrongPath = (url) =>
  new SignalError(
    "invalid-url",
    `The server has no path ${new URL(url, globalThis.location?.href).pathname}: correct the path of \`url\``,
  );
