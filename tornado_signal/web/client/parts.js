/* Parts of the module that are loaded on demand. */

import { SignalError, temporary } from "./errors.js";
import { retry } from "./timing.js";

/** Fail because a part of the module did not load. @param {unknown} cause @returns {never} */
export const notLoaded = (cause) => {
  const message = "A part of the module did not load. After an upgrade of the server, reload the page";
  throw temporary(new SignalError("server-unreachable", message, { cause }));
};

/**
 * Load a part of the module. While its server is away, try again, as for a request.
 * @template T @param {() => Promise<T>} load @param {AbortSignal} [signal] @param {(error: Error) => void} [onfailed]
 */
export const loadPart = (load, signal = new AbortController().signal, onfailed) =>
  retry(async () => {
    try {
      return await load().catch(notLoaded);
    } catch (error) {
      onfailed?.(/** @type {Error} */ (error));
      throw error;
    }
  }, signal);

export const mistakes = () => import("./mistakes.js").catch(notLoaded);

/** @param {(advice: typeof import("./mistakes.js")) => unknown} give */
export const advise = (give) => import("./mistakes.js").then(give).catch(() => {});
