/* Requests over HTTP, the checks of all that a server sends, and tokens (docs/authorization.md). */

import { conforms } from "./text.js";
import { foreign, nonsense, notLoaded, now, refusal, SignalError, unreachable } from "./timing.js";

/** @import { TokenSource } from "../client.d.ts" */
/** @import { Socket } from "./socket.js" */
/** @import { Fields, Shape } from "./types.d.ts" */

export const JSON_BODY = { "Content-Type": "application/json" };

/**
 * Return the header of a token; none for an empty one.
 *
 * @param {string} token
 * @returns {Record<string, string>}
 */
export const bearer = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

/**
 * @param {string | undefined} topic
 * @param {string} last
 * @param {Fields} fields
 */
export function pathOf(topic, last, fields = {}) {
  const given = /** @type {[string, string][]} */ (Object.entries(fields).filter(([, value]) => value != null));
  const query = String(new URLSearchParams(given));
  return `${topic === undefined ? "" : `/${encodeURIComponent(topic)}`}/${last}${query && `?${query}`}`;
}

/**
 * @param {string} url
 * @param {RequestInit} init
 */
export async function request(url, init) {
  // A redirect would send the token and the secrets to another host. A malformed token fails here, not as a lost network.
  // Behind a proxy that changes Host, the server takes the origin of a page from the Referer.
  /** @type {RequestInit} */
  const options = { ...init, redirect: "manual", referrerPolicy: "same-origin" };
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
  if (error === "Not found" && !/\/(nearby|ice-servers)$/.test(url)) throw (await mistakes()).wrongPath(url);
  const retryAfterMs = parseInt(/** @type {string} */ (response.headers.get("Retry-After")), 10) * 1000 || undefined;
  throw new SignalError(response.status, conforms(error, "string") ? error : response.statusText, retryAfterMs);
}

export const mistakes = () => import("./mistakes.js").catch(notLoaded);

/** @param {unknown} error */
export const isTooLarge = (error) => refusal(error)?.message === TOO_LARGE;

/**
 * Read and parse the JSON of a response within the limits of `parsed`. A few compressed bytes can be a body of any size.
 *
 * @param {Response} response
 */
export async function json({ body, url }) {
  try {
    const reader = body?.getReader();
    const decoder = new TextDecoder();
    const tooMany = counter();
    const pieces = []; // decoded at the end: strings are larger
    for (let size = 0; size <= MAX_SIZE; ) {
      const { value } = (await reader?.read()) ?? {};
      if (!value) return Object(JSON.parse(pieces.map((each) => decoder.decode(each, { stream: true })).join("")));
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

const TOO_LARGE = "too large";
export const MAX_SIZE = 2 ** 24; // of a response, an event or a WebSocket message
const MAX_VALUES = 250_000;

const SESSION = {
  code: "string",
  info: "string",
  offer: "string",
  offerCandidates: ["string"],
  createdAt: "number",
  expiresAt: "number",
};
const PAGINATION = { page: "number", limit: "number", total: "number", hasMore: "boolean" };
/** @type {Record<string, Shape>} */
export const SHAPES = {
  version: { version: "string" },
  health: { status: "string", timestamp: "number" },
  topics: { topics: [{ topic: "string", count: "number" }], pagination: PAGINATION },
  sessions: { sessions: [SESSION], "cursor?": "string" },
  nearby: { topic: "string" },
  iceServers: { iceServers: [{}], expiresAt: "number" },
  poll: {
    "offer?": "string",
    "answer?": "string",
    "offerCandidates?": ["string"],
    "answerCandidates?": ["string"],
    "cursor?": "string",
  },
  offer: { code: "string" },
  refresh: { expiresAt: "number" },
  hold: { expiresAt: "number" },
  subscribe: { subscription: "number" },
  error: { code: "number", message: "string", "data?": { "retryAfter?": "number" } },
  event: { subscription: "number", "type?": "string", "cursor?": "string" },
};
/** @type {Record<string, Shape>} */
export const EVENTS = {
  session: SESSION,
  gone: { code: "string" },
  offer: { offer: "string" },
  answer: { answer: "string" },
  candidate: { candidate: "string" },
};

/** Return a function that takes the next part of JSON. It returns whether there are too many values. */
function counter() {
  let values = 0;
  let [quoted, escaped] = [false, false];
  /** @param {string | Uint8Array} part */
  return (part) => {
    for (let at = 0; at < part.length && values <= MAX_VALUES; at += 1) {
      const code = typeof part === "string" ? part.charCodeAt(at) : part[at];
      if (escaped || code === 92) escaped = !escaped;
      else if (code === 34) quoted = !quoted;
      else if (!quoted && (code === 44 || code === 91 || code === 123)) values += 1;
    }
    return values > MAX_VALUES;
  };
}

/**
 * Parse JSON. Throws a SyntaxError also if it is too large, or would need much more memory than its text.
 *
 * @param {string} text
 */
export function parsed(text) {
  if (text.length > MAX_SIZE || counter()(text)) throw new SyntaxError(TOO_LARGE);
  return JSON.parse(text);
}

/** The current token of all clients with the same source of tokens. */
export class Authorization {
  #source;
  #renewAtMs = 0;
  /** @type {Promise<void> | undefined} */
  #renewing;
  token = "";
  /** @type {Map<string, Socket>} */
  sockets = new Map(); // by the URL of the server

  /** @param {TokenSource} source */
  constructor(source) {
    this.#source = source;
  }

  /**
   * Run `task(token)`, and once more with a new token if the server refuses the first one with 401.
   *
   * @template T
   * @param {(token: string) => Promise<T>} task
   */
  async use(task) {
    if (now() >= this.#renewAtMs) await this.#renew();
    const { token } = this;
    try {
      return await task(token);
    } catch (error) {
      if (refusal(error).status !== 401) throw error;
      if (token === this.token) await this.#renew(); // otherwise another call has renewed it
      if (token === this.token) throw error;
      return task(this.token);
    }
  }

  #renew() {
    this.#renewing ??= this.#ask().finally(() => (this.#renewing = undefined));
    return this.#renewing;
  }

  async #ask() {
    const source = this.#source;
    if (typeof source === "string") {
      this.token = source;
      this.#renewAtMs = Infinity;
      return;
    }
    const { ask, renewalMs } = await import("./tokens.js").catch(notLoaded);
    this.token = await ask(source, this.token);
    this.#renewAtMs = renewalMs(this.token);
  }
}

const without = new Authorization("");
/** @type {Map<string, Authorization>} */
const texts = new Map();
/** @type {WeakMap<() => string | Promise<string>, Authorization>} */
const functions = new WeakMap();

/**
 * Return the authorization of a source of tokens.
 *
 * @param {TokenSource} [source]
 */
export function authorizationOf(source) {
  if (!source) return without;
  const known = /** @type {Map<TokenSource, Authorization>} */ (typeof source === "function" ? functions : texts);
  const found = known.get(source) ?? new Authorization(source);
  known.set(source, found);
  return found;
}
