/* Requests over HTTP, events by long polls, and what a browser needs for them. Loaded in the background. */

import { bearer, JSON_BODY } from "./authorization.js";
import { foreign, nonsense, refusal, refused, unreachable } from "./errors.js";
import { mistakes } from "./parts.js";
import { conforms, counter, MAX_LISTING, MAX_SIZE, TOO_LARGE } from "./text.js";
import { Deadline, doubt, doubtMs, makePace, PAUSE_MS, SIGN_MS, sleep, WAIT_S, watch, withTimeout } from "./timing.js";

/** @import { Authorization } from "./authorization.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Fields, News, RawEvent, Results, StreamFields, Transport } from "./types.d.ts" */

const LONG_REQUESTS = 4; // of all pages of an origin; a browser has six connections to a server over HTTP/1.1
const HTTP_WAIT_S = 12; // of a request: without a response a connection is found dead
const ANSWER_MS = 6000; // for its response, in addition
const PROBE_MS = 400; // between two of the requests that ask for a sign of life
const READS = ["version", "health", "topics", "sessions", "nearby", "iceServers"]; // methods that are GET
/** @type {Partial<Record<keyof Results, string>>} */
const PATHS = { version: "", iceServers: "ice-servers", hold: "refresh" }; // where they differ from the method's name

export class Http {
  #client;
  #headers;
  #authorization;
  #provenMs = -Infinity; // the time of the last doubt after which the server gave a sign of life
  /** @type {Promise<void> | undefined} */ #proving;

  /** @param {SignalClient} client @param {Record<string, string>} headers @param {Authorization} authorization */
  constructor(client, headers, authorization) {
    this.#client = client;
    this.#headers = headers;
    this.#authorization = authorization;
  }

  /** @type {Transport["call"]} */
  async call(method, { topic, ...others }, deadline) {
    const { wait = 0 } = others;
    const reads = READS.includes(method);
    /** @param {AbortSignal} signal */
    const send = async (signal) => {
      const url = this.#client.url + pathOf(topic, PATHS[method] ?? method, reads ? others : {});
      // Chromium makes equal requests wait for each other if their responses could be cached.
      /** @type {RequestInit} */
      const init = reads ? { cache: "no-store" } : { method: "POST", body: JSON.stringify(others) };
      if (doubtMs() !== this.#provenMs) {
        await (this.#proving ??= this.#prove().finally(() => (this.#proving = undefined)));
      }
      const response = await this.#authorization.use((token) => {
        const headers = { ...(reads ? {} : JSON_BODY), ...this.#headers, ...bearer(token) };
        return request(url, { ...init, headers, signal });
      });
      return json(response);
    };
    if (!wait) return send(deadline.signal);
    const release = await reserve(this.#client.url);
    try {
      others.wait = release ? Math.min(wait, HTTP_WAIT_S) : 0;
      if (!release && others.since) await sleep(PAUSE_MS, deadline.signal);
      return await waitFor(send, others.wait * 1000 + ANSWER_MS, deadline.signal);
    } finally {
      release?.();
    }
  }

  /** @type {Transport["subscribe"]} */
  subscribe(fields, deadline, codes) {
    if (fields.topic !== undefined) return listings(this.#client, fields.topic, codes, deadline);
    return updates(this.#client, fields, deadline);
  }

  /** Wait for a sign of life. The browser can use dead connections first, so further requests follow. */
  async #prove() {
    const doubtedMs = doubtMs();
    /** @type {Promise<unknown>[]} */ const tries = [];
    await withTimeout(SIGN_MS, null, async ({ signal }) => {
      for (let found; !found; ) {
        tries.push(request(`${this.#client.url}/health`, { signal, cache: "no-store" }));
        found = await Promise.race([...tries, sleep(0, signal, PROBE_MS)]);
      }
    });
    this.#provenMs = doubtedMs;
  }
}

/** @param {string | undefined} topic @param {string} last @param {Fields} fields */
function pathOf(topic, last, fields) {
  const given = /** @type {[string, string][]} */ (Object.entries(fields).filter(([, value]) => value != null));
  const query = String(new URLSearchParams(given));
  return `${topic === undefined ? "" : `/${encodeURIComponent(topic)}`}/${last}${query && `?${query}`}`;
}

/** @param {string} url @param {RequestInit} init */
export async function request(url, init) {
  // A redirect would send the token and the secrets to another host. A malformed token fails here, not as a lost network.
  // Behind a proxy that changes Host, the server takes the origin of a page from the Referer.
  /** @type {RequestInit} */ const options = { ...init, redirect: "manual", referrerPolicy: "same-origin" };
  new Request(url, options);
  // A Request of its own could be collected in Node.js, and `signal` would no longer end the response.
  const response = await fetch(url, options).catch((error) => {
    if (error.cause?.name === "HTTPParserError") throw foreign(url); // in Node.js
    throw refusal(error).name === "TypeError" ? unreachable(url, error) : error;
  });
  const seen = response.headers.get("Access-Control-Allow-Origin"); // other hosts hide it
  if (globalThis.location && seen?.startsWith("http") && seen !== globalThis.origin) {
    throw (await mistakes()).originChanged(seen);
  }
  if (response.ok) return response;
  if (response.type === "opaqueredirect" || response.headers.has("Location")) {
    throw await (await mistakes()).redirected(url, init);
  }
  const { error = "" } = await json(response).catch((failure) => {
    if (response.status === 404) throw failure; // the URL is that of another server
    return /** @type {{ error?: string }} */ ({}); // an intermediary responds in any format
  });
  if (/: Origin$/.test(error)) throw (await mistakes()).originMissing();
  if (error === "Not found" && !/\/(nearby|ice-servers|report)$/.test(url)) throw (await mistakes()).wrongPath(url);
  const retryAfterMs = parseInt(/** @type {string} */ (response.headers.get("Retry-After")), 10) * 1000 || undefined;
  throw refused(response.status, (conforms(error, "string") && error) || response.statusText, retryAfterMs);
}

/** Parse the JSON of a response, within bounds: a few bytes can unpack to any size. @param {Response} response */
export async function json({ body, url, status }) {
  try {
    const reader = body?.getReader();
    const decoder = new TextDecoder();
    const tooMany = counter();
    const pieces = /** @type {Uint8Array[]} */ ([]); // decoded at the end: strings are larger
    for (let size = 0; size <= MAX_SIZE; ) {
      const { value } = (await reader?.read()) ?? {};
      const text = () => pieces.map((each) => decoder.decode(each, { stream: true })).join("");
      if (!value) return status === 204 ? {} : Object(JSON.parse(text()));
      if (tooMany(value)) break;
      pieces.push(value);
      size += value.length;
    }
    reader?.cancel().catch(() => {});
    throw new SyntaxError(TOO_LARGE);
  } catch (error) {
    const { name, message } = refusal(error);
    if (name === "SyntaxError") throw message === TOO_LARGE ? nonsense(url, error) : foreign(url);
    throw refusal(error).name === "TypeError" ? unreachable(url, error) : error; // it was cut off
  }
}

/** @param {SignalClient} client @param {string} topic @param {Set<string>} codes @param {Deadline} deadline */
async function* listings(client, topic, codes, { signal }) {
  /** @type {string | undefined} */ let since;
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
 * @param {SignalClient} client @param {StreamFields} fields @param {Deadline} deadline
 * @returns {AsyncGenerator<RawEvent, void, void>}
 */
async function* updates(client, { code = "", side = "offerer", secret, since }, { signal }) {
  const pace = makePace();
  let seen = 0; // candidates, for a server without cursors
  for (let wait = 0; ; wait = WAIT_S) {
    /** @type {News} */ let news;
    try {
      news = await client.poll(code, side, { wait, since, secret, signal });
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
 * @param {string} url @returns {Promise<(() => void) | undefined>}
 */
async function reserve(url, number = 0) {
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
 * @template T @param {(signal: AbortSignal) => Promise<T>} send @param {number} ms @param {AbortSignal} signal
 * @returns {Promise<T>}
 */
async function waitFor(send, ms, signal) {
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
