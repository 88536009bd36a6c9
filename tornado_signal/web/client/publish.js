/* `publish`, `join` and `pair`: a room needs nothing else of them. */

import { dispatch, report } from "./errors.js";
import { loadPart } from "./parts.js";
import { OFFER_OPTIONS, Servers } from "./servers.js";
import { Deadline, onAbort } from "./timing.js";

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
  #stop = new Deadline();

  /** @param {string} topic @param {LinkOptions} options */
  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    const fail = (/** @type {any} */ error) => report(this, error);
    const closed = () => dispatch(this, "close");
    const servers = new Servers(options, signal, fail, OFFER_OPTIONS);
    this.#stop.follow(options.signal);
    if (signal.aborted) {
      queueMicrotask(closed); // so that the caller can listen for the event
      return;
    }
    onAbort(signal, closed);
    load({ onstep: (_, error) => fail(error), signal })
      .then(({ offerAll }) => offerAll(this, topic, options, servers))
      .catch((error) => {
        if (signal.aborted) return;
        fail(error);
        this.close();
      });
  }

  close() {
    this.#stop.end();
  }
}

/** @type {typeof Api.publish} */
export const publish = (topic, options = {}) => new Publication(topic, options);

/** @type {typeof Api.join} */
export const join = async (/** @type {[string, any?]} */ ...options) =>
  /** @type {any} */ (await (await load(options[1])).join(...options));

/** @type {typeof Api.pair} */
export const pair = async (...options) => (await load(options[1])).pair(...options);
