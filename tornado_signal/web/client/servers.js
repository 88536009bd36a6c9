/* Several servers, of which the first one that works is used, and offers that stay listed. */

import { DEFAULT_SERVER, SignalClient } from "./signal-client.js";
import { backOff, passing, sleep } from "./timing.js";

const TTL_MS = 120_000; // how long an offer outlives a page that vanished without a word
const REFRESH_MS = 40_000;
const RENEW_MS = 600_000; // how old an offer, or a TURN password, is at most when somebody uses it
const FAILED_MS = 30_000; // for so long another server is asked first
const TRIES = 4; // before another server is asked

/** The servers of a publication or of somebody who joins: the first one that works, in their order. */
export class Servers {
  constructor({ url = DEFAULT_SERVER, origin, socket }, signal, report) {
    this.clients = [url].flat().map((each) => new SignalClient(each, { origin, socket }));
    this.tries = this.clients.length > 1 ? TRIES : Infinity;
    this.signal = signal;
    this.report = report;
    this.failed = new Map();
    this.ice = new Map();
  }

  async first(task) {
    for (let attempt = 0; ; attempt += 1) {
      let leastMs;
      const failing = (client) => Date.now() - (this.failed.get(client) ?? 0) < FAILED_MS;
      for (const client of [...this.clients].sort((a, b) => failing(a) - failing(b))) {
        try {
          return await task(client);
        } catch (error) {
          if (this.signal.aborted || !passing(error)) throw error;
          this.fail(client, error);
          leastMs = error.retryAfterMs;
        }
      }
      await sleep(backOff(attempt), this.signal, leastMs);
    }
  }

  fail(client, error) {
    this.failed.set(client, Date.now());
    this.report(error);
  }

  /** Wait until a server works again that comes before this one: others who come now are there. */
  async better(client, signal) {
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

  /** The ICE servers of a server, asked anew before their password ends; none from one that does not know them. */
  async iceServers(client) {
    const kept = this.ice.get(client);
    if (Date.now() < kept?.until) return kept;
    const { iceServers, expiresAt } = await client.iceServers({ signal: this.signal }).catch((error) => {
      if (error.status !== 404) throw error;
      return { iceServers: [], expiresAt: Infinity };
    });
    const now = Date.now(); // which may be far from the server's
    const until = now + Math.min(RENEW_MS, Math.max(0, expiresAt - now) / 2);
    this.ice.set(client, { iceServers, until });
    return { iceServers, until };
  }
}

/** Publish an offer: its code, and a function that keeps it listed, to be called before each wait for its news. */
export async function publishHeld(client, topic, fields) {
  let holder = await client.open();
  const { code } = await client.offer(topic, { ...fields, hold: true, ttl: TTL_MS }).catch((error) => {
    if (error.status !== 400) throw error;
    return client.offer(topic, { ...fields, hold: true }); // so long is not allowed
  });
  let kept = Date.now();
  const keep = async () => {
    // Its WebSocket keeps it. Another one has to take it over; over HTTP it is refreshed, at once after a WebSocket.
    const found = await client.open();
    if (found === holder && (found || Date.now() < kept + REFRESH_MS)) return;
    await client.hold(code, "offerer", fields).catch((error) => {
      if (passing(error)) throw error; // else the news are that it is gone
    });
    holder = found;
    kept = Date.now();
  };
  return { code, keep };
}
