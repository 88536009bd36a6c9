/* Tokens that a function of the page returns. Loaded when a page has such a function. */

import { passing, SignalError, temporary } from "./errors.js";
import { now, REQUEST_MS, withTimeout } from "./timing.js";

const RENEW_MS = 60_000; // before its expiry; timers of a hidden page fire once a minute

/** @param {() => string | Promise<string>} source @param {string} previous the token before, or "" for none */
export async function ask(source, previous) {
  try {
    return await withTimeout(REQUEST_MS, null, async () => source());
  } catch (cause) {
    // A function that has worked may lack its network. Another one has a mistake.
    if (!previous && !passing(cause)) throw cause;
    throw temporary(new SignalError("token-failed", "The function `token` failed, or took too long", { cause }));
  }
}

/** Return when to replace a token: Infinity if it has no expiry, or if this clock is past it. @param {string} token */
export function renewalMs(token) {
  try {
    const [, payload = ""] = token.split(".");
    const leftMs = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/"))).exp * 1000 - Date.now();
    return leftMs > 0 ? now() + Math.max(leftMs - RENEW_MS, leftMs / 2) : Infinity;
  } catch {
    return Infinity;
  }
}
