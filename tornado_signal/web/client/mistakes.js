/* Errors that name a mistake of a page or of its server. Loaded when something is wrong. */

import { foreign, PeerError } from "./timing.js";

/**
 * Make the error for a redirect. Browsers hide its target, so a request without a token and a secret follows it.
 *
 * @param {string} url
 * @param {RequestInit} init
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
  return new PeerError(
    "origin-changed",
    `The server sees the origin ${seen} instead of ${globalThis.origin}. ${reason}`,
  );
}
