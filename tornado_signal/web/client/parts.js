/* Parts of the module that are loaded on demand. */

import { retry, SignalError, temporary } from "./timing.js";

/**
 * Fail because a part of the module did not load, such as while the server is unavailable.
 *
 * @param {unknown} cause
 * @returns {never}
 */
export const notLoaded = (cause) => {
  throw temporary(
    new SignalError(
      "server-unreachable",
      "A part of the module did not load. After an upgrade of the server, reload the page",
      { cause },
    ),
  );
};

/**
 * Load a part of the module. While its server is away, try again, as for a request.
 *
 * @template T
 * @param {() => Promise<T>} load
 * @param {AbortSignal} [signal]
 * @param {(error: Error) => void} [onfailed]
 */
export const loadPart = (load, signal = new AbortController().signal, onfailed) =>
  retry(
    () =>
      load()
        .catch(notLoaded)
        .catch((error) => {
          onfailed?.(error);
          throw error;
        }),
    signal,
  );

export const mistakes = () => import("./mistakes.js").catch(notLoaded);

/** @param {(advice: typeof import("./mistakes.js")) => unknown} give */
export const advise = (give) => import("./mistakes.js").then(give).catch(() => {});
