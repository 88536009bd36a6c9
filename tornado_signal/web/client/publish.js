/* `publish`, `join` and `pair`: a room needs nothing else of them. */

import { Servers } from "./servers.js";
import { dispatch, notLoaded, onAbort } from "./timing.js";

/** @import { PublicationEvents, PeerOptions } from "../client.d.ts" */
/** @import { Link } from "./link.js" */
/** @import { EventFields, LinkOptions } from "./types.d.ts" */

const load = () => import("./connect.js").catch(notLoaded);

export const OFFER_OPTIONS = { channel: "object", onstep: "function" };

/** Offers under a topic, one unanswered at a time; events `connection`, `error` and `close`. */
class Publication extends EventTarget {
  #stop = new AbortController();
  /** @type {Link | undefined} */
  #listed; // the link that waits for its answer

  /**
   * @param {string} topic
   * @param {LinkOptions} options
   */
  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    const servers = new Servers(options, signal, (error) => this.#tell("error", { error }), OFFER_OPTIONS);
    globalThis.addEventListener?.("pagehide", () => this.#withdraw(), { signal });
    if (options.signal)
      onAbort(
        signal,
        onAbort(options.signal, () => this.close()),
      );
    // Later, so that the caller can listen for the event.
    if (options.signal?.aborted) queueMicrotask(() => this.close());
    else this.#run(topic, options, servers);
  }

  /** Withdraw the offer. Connections that are open stay. */
  close() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    this.#tell("close");
  }

  /**
   * @param {string} topic
   * @param {LinkOptions} options
   * @param {Servers} servers
   */
  async #run(topic, options, servers) {
    const { signal } = this.#stop;
    try {
      const { createOffer, waitForAnswer } = await load();
      for (;;) {
        const link = (this.#listed = await servers.first((client) => createOffer(client, topic, options, servers)));
        const isAnswered = await waitForAnswer(link, servers);
        this.#listed = undefined;
        if (isAnswered) {
          link.connect();
          link.opened.then(
            (connection) => this.#tell("connection", { connection }),
            (error) => this.#tell("error", { error }),
          );
        } else {
          link.fail(new Error()); // nothing waits for this link
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error: /** @type {Error} */ (error) });
      this.close();
    }
  }

  #withdraw() {
    const link = this.#listed;
    if (link) link.client.leave(link.code, "offerer", link.own);
  }

  /**
   * @template {keyof PublicationEvents} Name
   * @param {Name} name
   * @param {EventFields<PublicationEvents[Name]>} [fields]
   */
  #tell(name, fields) {
    dispatch(this, name, fields);
  }
}

/**
 * Publish under a topic. Each peer that joins is a `connection` event of the publication that is returned.
 *
 * @param {string} topic
 * @param {PeerOptions & { channel?: RTCDataChannelInit }} [options]
 */
export const publish = (topic, options = {}) => new Publication(topic, options);

/** @type {typeof import("./connect.js").join} */
export const join = async (/** @type {[any, any]} */ ...options) =>
  /** @type {any} */ (await (await load()).join(...options));

/** @type {typeof import("./connect.js").pair} */
export const pair = async (...options) => (await load()).pair(...options);
