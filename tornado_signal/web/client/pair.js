/* A connection to whichever page comes next. */

import { connectToFirst, MAX_PEERS, shuffled } from "./connect.js";
import { createOffer, WAIT_S, waitForAnswer } from "./link.js";
import { Servers } from "./servers.js";
import { Deadline, PAUSE_MS, retry, sleep, taken } from "./timing.js";

/** @import { PeerOptions, Session } from "../client.d.ts" */
/** @import { Connection, Link } from "./link.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { LinkOptions, Listing } from "./types.d.ts" */

const PAIR = "pair/"; // the prefix of the topic of a pair on the server

/**
 * Connect two pages that call this with the same topic.
 *
 * @param {string} topic
 * @param {PeerOptions & { channel?: RTCDataChannelInit }} [options]
 */
export async function pair(topic, options = {}) {
  const stop = new AbortController();
  const { signal } = stop;
  const end = () => stop.abort(options.signal?.reason);
  globalThis.addEventListener?.("pagehide", end, { signal });
  options.signal?.addEventListener("abort", end, { signal });
  if (options.signal?.aborted) end();
  try {
    const servers = new Servers(options, signal, (error) => options.onstep?.("failed", error));
    const all = { ...options, pair: true };
    return await servers.first((client) => new Pairing(client, PAIR + topic, all, servers).matchPair());
  } finally {
    stop.abort();
  }
}

/**
 * One side of a pair, with one server. In the order of the offers, the second one answers the first, the fourth the third,
 * and so on. The others wait, unless nothing happens. A side takes back its own offer, so that no other can answer it,
 * before it answers another one.
 */
class Pairing {
  #client;
  #topic;
  #options;
  #servers;
  /** @type {Set<string>} */
  #triedCodes = new Set();
  /** @type {Link | undefined} */
  #link; // of the offer that is listed
  /** @type {Promise<boolean> | undefined} */
  #answer; // whether it is answered
  /** @type {string | undefined} */
  #cursor;
  /** @type {Session[]} */
  #others = []; // the other sessions, the oldest first

  /**
   * @param {SignalClient} client
   * @param {string} topic
   * @param {LinkOptions} options
   * @param {Servers} servers
   */
  constructor(client, topic, options, servers) {
    this.#client = client;
    this.#topic = topic;
    this.#options = options;
    this.#servers = servers;
  }

  /** Withdraw the offer, if there is one. */
  #withdraw() {
    const link = this.#link;
    if (!link) return;
    this.#client.leave(link.code, "offerer", link.own);
    link.fail(new Error("Withdrawn"));
    this.#triedCodes.add(link.code);
    this.#link = this.#answer = undefined;
  }

  async matchPair() {
    const { signal } = this.#servers;
    const withdraw = () => this.#withdraw();
    signal.addEventListener("abort", withdraw);
    const stay = new Deadline(signal);
    /** @type {Promise<never>} */
    const preferred = this.#servers.preferred(this.#client, stay.signal).then(() => {
      throw new TypeError("A preferred server works");
    });
    preferred.catch(() => {}); // it can reject while nothing waits for it
    try {
      for (;;) {
        const connection = await this.#round(preferred);
        if (connection) return connection;
      }
    } catch (error) {
      withdraw();
      throw error;
    } finally {
      stay.end();
      signal.removeEventListener("abort", withdraw);
    }
  }

  /**
   * Wait for the next listing or an answer, and react. Returns the connection, if there is one.
   *
   * @param {Promise<never>} preferred
   */
  async #round(preferred) {
    const { signal } = this.#servers;
    const deadline = new Deadline(signal);
    const wait = this.#others.length ? 1 + Math.round(2 * Math.random()) : WAIT_S;
    const link = this.#link;
    const query = { ...(link && { wait, since: this.#cursor }), limit: MAX_PEERS, signal: deadline.signal };
    const request = this.#client.sessions(this.#topic, query);
    /** @type {Promise<Listing | boolean>} */
    const race = Promise.race([request, this.#answer ?? request, preferred]);
    const listing = await race.finally(() => deadline.end());
    if (typeof listing === "boolean") return this.#useAnswer(link);
    const stuck = link && listing.cursor === this.#cursor;
    const sessions = listing.sessions.filter(({ code }) => !this.#triedCodes.has(code)).reverse(); // the oldest first
    const place = link ? sessions.findIndex(({ code }) => code === link.code) : sessions.length;
    this.#cursor = listing.cursor;
    this.#others = sessions.filter(({ code }) => code !== link?.code);
    if (this.#others.length && (place % 2 === 1 || stuck)) {
      if (link && !(await claimOwnOffer(link, signal))) return this.#useAnswer(link);
      this.#withdraw();
      const next = sessions[place - 1];
      const sorted = shuffled(this.#others).sort((a, b) => Number(b === next) - Number(a === next));
      const { connection } = await connectToFirst(sorted, this.#client, this.#options, this.#servers);
      if (!connection) for (const { code } of sorted) this.#triedCodes.add(code);
      return connection;
    }
    if (!link) {
      this.#link = await createOffer(this.#client, this.#topic, this.#options, this.#servers);
      this.#answer = waitForAnswer(this.#link, this.#servers);
      this.#answer.catch(() => {}); // it rejects when the offer is withdrawn
    } else if (!this.#cursor) {
      await sleep(PAUSE_MS, signal);
    }
  }

  /**
   * Connect to the peer that has answered the offer. Returns nothing if it cannot be reached.
   *
   * @param {Link} [link]
   */
  async #useAnswer(link) {
    if (!link) return;
    if (await this.#answer) link.connect();
    else this.#withdraw();
    try {
      return await link.opened;
    } catch (error) {
      this.#servers.signal.throwIfAborted();
      this.#servers.report(/** @type {Error} */ (error));
      this.#withdraw();
    }
  }
}

/**
 * Answer this side's own offer, so that no other peer can. Returns false if another peer already has.
 *
 * @param {Link} link
 * @param {AbortSignal} signal
 */
async function claimOwnOffer({ client, code }, signal) {
  try {
    await retry(() => client.answer(code, "taken back", { signal }), signal);
    return true;
  } catch (error) {
    if (!taken(error)) throw error;
    return false;
  }
}
