/* Events by long polls, and other requests that wait over HTTP. Loaded where no WebSocket works. */

import { Deadline, doubt, makePace, PAUSE_MS, refusal, sleep, WAIT_S, watch } from "./timing.js";

/** @import { News } from "../client.d.ts" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { RawEvent, StreamFields } from "./types.d.ts" */

const LONG_REQUESTS = 4; // of all pages of an origin; a browser has six connections to a server over HTTP/1.1
export const MAX_LISTING = 1000;

/**
 * Yield the events of a topic by long polls; first an empty one.
 *
 * @param {SignalClient} client
 * @param {string} topic
 * @param {Set<string>} codes
 * @param {Deadline} deadline
 * @returns {AsyncGenerator<RawEvent, void, void>}
 */
export async function* listings(client, topic, codes, { signal }) {
  /** @type {string | undefined} */
  let since;
  const pace = makePace();
  for (;;) {
    const { sessions, cursor } = await client.sessions(topic, {
      wait: since ? WAIT_S : 0,
      since,
      limit: MAX_LISTING,
      signal,
    });
    yield {};
    const gone = new Set(codes);
    for (const { code } of sessions) gone.delete(code);
    for (const code of gone) yield { type: "gone", data: { code, reason: "withdrawn" } };
    for (const data of sessions.reverse()) if (!codes.has(data.code)) yield { type: "session", data };
    since = cursor;
    await (since ? pace(signal) : sleep(PAUSE_MS, signal));
  }
}

/**
 * Yield the events of a session by long polls; first an empty one.
 *
 * @param {SignalClient} client
 * @param {StreamFields} fields
 * @param {string} since
 * @param {Deadline} deadline
 * @returns {AsyncGenerator<RawEvent, void, void>}
 */
export async function* updates(client, { code = "", side = "offerer", secret }, since, { signal }) {
  const pace = makePace();
  let seen = 0; // candidates, for a server without cursors
  for (let wait = 0; ; wait = WAIT_S) {
    /** @type {News} */
    let news;
    try {
      news = await client.poll(code, side, { wait, since: since || undefined, secret, signal });
    } catch (error) {
      if (!wait || refusal(error).status !== 404) throw error;
      return yield { type: "gone", data: { code, reason: "withdrawn" } };
    }
    if (!wait) yield {};
    const { answer, offer, offerCandidates, answerCandidates, cursor: id } = news;
    if (offer) yield { type: "offer", data: { offer }, id };
    if (answer) yield { type: "answer", data: { answer }, id };
    const candidates = answerCandidates ?? offerCandidates ?? [];
    for (const candidate of candidates.slice(seen)) yield { type: "candidate", data: { candidate }, id };
    if (id) since = id;
    else seen = candidates.length;
    await (id ? pace(signal) : sleep(PAUSE_MS, signal));
  }
}

/**
 * Reserve a connection for a long request. Returns a function that releases it, or undefined if too few are left.
 *
 * @param {string} url
 * @returns {Promise<(() => void) | undefined>}
 */
export async function reserve(url, number = 0) {
  if (!globalThis.location) return () => {}; // only browsers limit their connections
  if (!navigator.locks || number === LONG_REQUESTS) return undefined; // a page over plain HTTP has no locks
  return new Promise((resolve) => {
    navigator.locks
      .request(`tornado-signal ${url} ${number}`, { ifAvailable: true }, (lock) =>
        lock ? new Promise((release) => resolve(() => release(undefined))) : resolve(reserve(url, number + 1)),
      )
      .catch(() => resolve(undefined)); // a sandboxed frame may not use locks
  });
}

/**
 * Send a request that waits, and again if its connection can have died.
 *
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} send
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<T>}
 */
export async function waitFor(send, ms, signal) {
  const deadline = new Deadline(signal);
  let doubted = false;
  const unwatch = watch((doubtful) => {
    doubted ||= doubtful;
    if (doubtful) deadline.end();
  });
  try {
    return await deadline.within(ms, send(deadline.signal));
  } catch (error) {
    if (deadline.passed) doubt();
    if (!doubted || signal.aborted) throw error;
  } finally {
    unwatch();
    deadline.end();
  }
  return waitFor(send, ms, signal);
}
