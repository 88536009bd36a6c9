/* Connections to peers that publish or join. */

import { ownInfo } from "./identity.js";
import { createOffer, Link, WAIT_S, waitForAnswer } from "./link.js";
import { Servers } from "./servers.js";
import { PAUSE_MS, retry, sleep, taken } from "./timing.js";

/** @import { PeerOptions, PublicationEvents, Session } from "../client.d.ts" */
/** @import { Connection } from "./link.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { EventFields, LinkOptions } from "./types.d.ts" */

export const STAGGER_MS = 1500; // about: after this time another peer is tried in parallel with a silent one
const AGAIN_MS = 2000; // in which a peer that was taken publishes its next offer
export const MAX_PEERS = 100; // of a listing

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
    globalThis.addEventListener?.("pagehide", () => this.#withdraw(), { signal });
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    // Later, so that the caller can listen for the event.
    if (options.signal?.aborted) queueMicrotask(() => this.close());
    else this.#run(topic, options, new Servers(options, signal, (error) => this.#tell("error", { error })));
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
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}

/**
 * Publish under a topic. Each peer that joins is a `connection` event of the publication that is returned.
 *
 * @param {string} topic
 * @param {PeerOptions & { channel?: RTCDataChannelInit }} [options]
 */
export const publish = (topic, options = {}) => new Publication(topic, options);

/**
 * Connect to a peer that has published under a topic, as soon as there is one.
 *
 * @overload
 * @param {string} topic
 * @param {PeerOptions & { choose?: (sessions: Session[]) => Session[], wait: false }} options
 * @returns {Promise<Connection | null>}
 */
/**
 * @overload
 * @param {string} topic
 * @param {PeerOptions & { choose?: (sessions: Session[]) => Session[], wait?: boolean }} [options]
 * @returns {Promise<Connection>}
 */
/**
 * @param {string} topic
 * @param {PeerOptions & { choose?: (sessions: Session[]) => Session[], wait?: boolean }} options
 * @returns {Promise<Connection | null>}
 */
export async function join(topic, options = {}) {
  const { info = ownInfo(), choose = (sessions) => sessions, wait = true, onstep = () => {} } = options;
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, (error) => onstep("failed", error));
  /** @type {Set<string>} */
  const triedCodes = new Set();
  /** @type {Map<SignalClient, string | undefined>} */
  const cursors = new Map();
  for (let untilMs = 0; ; ) {
    const leftS = Math.ceil(Math.max(0, untilMs - Date.now()) / 1000);
    const { client, sessions, cursor } = await servers.first(async (client) => {
      const query = { wait: wait ? WAIT_S : leftS, since: cursors.get(client), limit: MAX_PEERS, signal };
      const [listing] = await Promise.all([client.sessions(topic, query), servers.iceServers(client)]);
      return { client, ...listing };
    });
    cursors.set(client, cursor);
    const others = sessions.filter((each) => each.info !== info && !triedCodes.has(each.code));
    onstep("peers", others.length);
    const choice = choose(shuffled(others));
    const { connection, late } = await connectToFirst(choice, client, options, servers);
    if (connection) return connection;
    for (const { code } of choice) triedCodes.add(code);
    if (late) untilMs = Date.now() + AGAIN_MS;
    if (!wait && !choice.length && Date.now() >= untilMs) return null;
    if (!cursor) await sleep(PAUSE_MS, signal);
  }
}

/**
 * Answer one session after the other until a connection opens; if one is silent, the next one in parallel. `late` is
 * whether another peer was faster with one of them.
 *
 * @param {Session[]} sessions
 * @param {SignalClient} client
 * @param {LinkOptions} options
 * @param {Servers} servers
 */
export async function connectToFirst(sessions, client, options, servers) {
  const { signal } = servers;
  const { onstep = () => {} } = options;
  const iceServers = await servers.iceServers(client);
  /** @type {Link[]} */
  const links = [];
  let late = false;
  /** @type {Connection | undefined} */
  let connection;
  let resolveOpen = () => {};
  /** @type {Promise<void>} */
  const open = new Promise((resolve) => (resolveOpen = resolve));
  /** @param {Session} session */
  const attempt = async (session) => {
    onstep("trying", session.info);
    const link = new Link(client, "answerer", iceServers, options, signal);
    links.push(link);
    try {
      const candidate = await accept(link, session, servers.tries);
      if (connection) return candidate.end();
      connection = candidate;
      if (options.pair) connection.peerConnection.createDataChannel("pair"); // shows the offerer that it was chosen
      resolveOpen();
    } catch (error) {
      link.fail(error);
      if (connection || signal.aborted) return;
      late ||= taken(error);
      onstep(taken(error) ? "taken" : "failed", error);
    }
  };
  const attempts = [];
  for (const session of sessions) {
    const current = attempt(session);
    attempts.push(current);
    await Promise.race([open, current, sleep(STAGGER_MS, signal)]);
    if (connection) break;
  }
  await Promise.race([open, Promise.all(attempts)]);
  signal.throwIfAborted();
  for (const link of links) link.fail(new Error()); // nothing waits for the other links
  return { connection: /** @type {Connection | undefined} */ (connection), late };
}

/**
 * Answer a session; fails if another peer was faster, or if the peer cannot be reached.
 *
 * @param {Link} link
 * @param {Session} session
 * @param {number} tries
 */
async function accept(link, { code, info, offer, offerCandidates }, tries) {
  Object.assign(link, { code, info });
  const description = await link.describe(offer);
  const answer = JSON.stringify(description);
  await retry(() => link.client.answer(code, answer, link.own), link.signal, tries);
  link.step("accepted");
  try {
    // Not earlier: if two peers send to one offer, neither can connect for a long time.
    await link.use(description);
    link.add(offerCandidates);
    link.begin(code);
    link.connect();
    return await link.opened;
  } catch (error) {
    link.client.leave(code, "answerer", link.own);
    throw error;
  }
}

/**
 * Return a list in random order, so that peers that join at the same time try different ones.
 *
 * @template T
 * @param {T[]} list
 */
export const shuffled = (list) =>
  list
    .map((each) => /** @type {const} */ ([Math.random(), each]))
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);
