/* Several servers, of which the first available one is used, and offers that stay listed. */

import { passing, SignalError } from "./errors.js";
import { CLIENT_OPTIONS, checkOptions, SignalClient } from "./signal-client.js";
import { now, retry, sleep } from "./timing.js";

/** @import { IceServers, Owned, PeerOptions, Results } from "./types.d.ts" */

export const MAX_PEERS = 100; // of a listing
const TTL_MS = 120_000; // how long an offer outlives a page that vanished without withdrawing it
const REFRESH_MS = 40_000;
const RENEW_MS = 600_000; // the highest age of an offer or TURN password when it is used
const FAILED_MS = 30_000; // how long other servers are preferred after a failure
const MAX_INFO = 1024;
const ICE_URLS = /^((stun|turn)s?:[^,]+(,|$))+$/i; // one, or a list as text
const STUN_URLS = /^(stuns?:[^,]+(,|$))+$/i;
const TRIES = 4; // before another server is used
export const OFFER_OPTIONS = { channel: "object", onstep: "function" };
const OPTIONS = {
  ...CLIENT_OPTIONS,
  url: "",
  info: "",
  signal: "object",
  rtc: "object",
  RTCPeerConnection: "function",
  prepare: "function",
};

/** The servers of a publication or of a peer that joins. The first available one is used. */
export class Servers {
  /**
   * @param {PeerOptions} options @param {AbortSignal} signal @param {(error: Error) => void} report
   * @param {Record<string, string>} types of further options
   */
  constructor(options, signal, report, types) {
    checkOptions(options, { ...OPTIONS, ...types });
    const { url, origin, socket, token, info = "-", rtc, RTCPeerConnection } = options;
    this.clients = [url].flat().map((each) => new SignalClient(each, { origin, socket, token }));
    if (!(RTCPeerConnection ?? globalThis.RTCPeerConnection)) {
      throw new SignalError("no-webrtc", "No WebRTC here: set `RTCPeerConnection`");
    }
    if (typeof info !== "string" || !info || [...info].length > MAX_INFO) {
      throw new SignalError("info-invalid", `\`info\` has one to ${MAX_INFO} characters`);
    }
    // Some implementations ignore a wrong one, and never connect.
    for (const each of [rtc?.iceServers ?? []].flat()) {
      const { urls, username, credential } = Object(each);
      if (!(username && credential ? ICE_URLS : STUN_URLS).test(urls))
        throw new SignalError("option-invalid", "`rtc.iceServers` has `urls` like stun:…, and passwords for turn:…");
    }
    this.tries = this.clients.length > 1 ? TRIES : Infinity;
    this.signal = signal;
    this.report = report;
    /** @type {Map<SignalClient, number>} */
    this.failed = new Map();
    /** @type {Map<SignalClient, IceServers>} */
    this.ice = new Map();
  }

  /** Run a task with the first server that can. @template T @param {(client: SignalClient) => Promise<T>} task */
  first(task) {
    /** @param {SignalClient} client */
    const failing = (client) => Number(now() - (this.failed.get(client) ?? -FAILED_MS) < FAILED_MS);
    return retry(async () => {
      let failure;
      for (const client of [...this.clients].sort((a, b) => failing(a) - failing(b))) {
        try {
          return await task(client);
        } catch (error) {
          if (this.signal.aborted || !passing(error)) throw error;
          this.fail(client, error);
          failure = error;
        }
      }
      throw failure;
    }, this.signal);
  }

  /** @param {SignalClient} client @param {unknown} error */
  fail(client, error) {
    this.failed.set(client, now());
    this.report(/** @type {Error} */ (error));
  }

  /** Wait until an earlier server of the list works again. @param {SignalClient} client @param {AbortSignal} signal */
  async preferred(client, signal) {
    for (;;) {
      await sleep(FAILED_MS, signal);
      for (const each of this.clients.slice(0, this.clients.indexOf(client))) {
        const works = each.health({ signal }).then(
          () => this.failed.delete(each) || true,
          () => false,
        );
        if (await works) return;
      }
    }
  }

  /** Return current ICE servers, which may be none. @param {SignalClient} client @returns {Promise<IceServers>} */
  async iceServers(client) {
    const cached = this.ice.get(client);
    if (cached && now() < cached.until) return cached;
    /** @type {Results["iceServers"]} */
    const { iceServers, expiresAt, reports } = await client.iceServers({ signal: this.signal }).catch((error) => {
      if (error.status !== 404) throw error;
      return { iceServers: [], expiresAt: Infinity };
    });
    const leftMs = Math.max(0, expiresAt - Date.now()); // the server's clock can differ much
    const until = now() + Math.min(RENEW_MS, leftMs / 2);
    /** @type {IceServers["report"]} */ const report = (...attempt) => {
      if (reports) import("./reports.js").then((part) => part.report(client, ...attempt)).catch(() => {});
    };
    const ice = { iceServers, until, report };
    this.ice.set(client, ice);
    return ice;
  }
}

/**
 * Publish an offer. Returns its code and a function that keeps it listed, to be called before each poll.
 * @param {SignalClient} client @param {string} topic
 * @param {{ info: string, offer: string, secret: string } & Owned} fields
 */
export async function publishHeld(client, topic, fields) {
  let holder = await client.open();
  const { code } = await client.offer(topic, { ...fields, hold: true, ttl: TTL_MS }).catch((error) => {
    if (error.status !== 400) throw error;
    return client.offer(topic, { ...fields, hold: true }); // the server does not allow this lifetime
  });
  let keptMs = now();
  const keep = async () => {
    // The WebSocket keeps it. A new WebSocket must take it over. Over HTTP it is refreshed, also after a WebSocket.
    const socket = await client.open();
    if (socket === holder && (socket || now() < keptMs + REFRESH_MS)) return;
    await client.hold(code, "offerer", { secret: fields.secret, signal: fields.signal }).catch((error) => {
      if (passing(error)) throw error; // otherwise the next poll reports that the session no longer exists
    });
    holder = socket;
    keptMs = now();
  };
  return { code, keep };
}
