/* `publish`, `join` and `pair`: a room needs nothing else of them. */

import { loadPart } from "./parts.js";
import { OFFER_OPTIONS, Servers } from "./servers.js";
import { dispatch, onAbort, report } from "./timing.js";

/** @import * as Api from "../client.d.ts" */
/** @import { LinkOptions } from "./types.d.ts" */

/** @param {Pick<Api.PeerOptions, "onstep" | "signal">} [options] */
const load = ({ onstep, signal } = {}) =>
  loadPart(
    () => import("./connect.js"),
    signal,
    (error) => onstep?.("failed", error),
  );

/** Offers under a topic, one unanswered at a time; events `connection`, `error` and `close`. */
class Publication extends EventTarget {
  #stop = new AbortController();

  /**
   * @param {string} topic
   * @param {LinkOptions} options
   */
  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    const fail = (/** @type {any} */ error) => report(this, error);
    const close = () => this.close();
    const servers = new Servers(options, signal, fail, OFFER_OPTIONS);
    if (options.signal) onAbort(signal, onAbort(options.signal, close));
    // Later, so that the caller can listen for the event.
    if (options.signal?.aborted) queueMicrotask(close);
    else
      load({ onstep: (_, error) => fail(error), signal })
        .then(({ offerAll }) => offerAll(this, topic, options, servers))
        .catch((error) => {
          if (signal.aborted) return;
          fail(error);
          close();
        });
  }

  /** Withdraw the offer. Connections that are open stay. */
  close() {
    if (this.#stop.signal.aborted) return;
    this.#stop.abort();
    dispatch(this, "close");
  }
}

/** @type {typeof Api.publish} */
export const publish = (topic, options = {}) => new Publication(topic, options);

/** @type {typeof Api.join} */
export const join = async (/** @type {[string, any?]} */ ...options) =>
  /** @type {any} */ (await (await load(options[1])).join(...options));

/** @type {typeof Api.pair} */
export const pair = async (...options) => (await load(options[1])).pair(...options);
