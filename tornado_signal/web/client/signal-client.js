/* The API of one server, call by call. */

import { authorizationOf, bearer, JSON_BODY } from "./authorization.js";
import { nonsense, passing, refusal, SignalError } from "./errors.js";
import { advise, notLoaded } from "./parts.js";
import { hidden, loadHttp, socketTo, withdrawals } from "./socket.js";
import { EVENTS, filtered, isTooLarge, MAX_LISTING, SHAPES } from "./text.js";
import { backOff, Deadline, doubt, now, PAUSE_MS, REQUEST_MS, retry, sleep, withTimeout } from "./timing.js";

/** @import { ClientOptions, SessionEvent, Side, SignalClient as Api, SignalEvent, Stoppable, TopicEvent } from "../client.d.ts" */
/** @import { Fields, Results, StreamFields, Transport } from "./types.d.ts" */

const MAX_FRAME = 65_536; // characters; larger messages go over HTTP, which can report that they are too large
const WITHDRAW_TRIES = 16; // in about two minutes, the lifetime of an offer
export const CLIENT_OPTIONS = { origin: "", socket: "boolean", token: "string or function" };
const SIGNAL = { signal: "object" };
/** @type {string | undefined} */
export let DEFAULT_SERVER; // undefined in a bundle

/** @param {string} url of the module, in a bundle undefined or that of another file */
export function servedBy(url) {
  [, DEFAULT_SERVER] = /^(http[^?#]*\/)client(?:-\w+)?\.js(?:\?|#|$)/.exec(url) ?? [];
}

/** Check the URL of a server. A browser takes an address without a scheme for a path. @param {string | URL} [url] */
function checked(url) {
  const text = String(url);
  if (url !== undefined && /^(https?:\/\/|\.{0,2}(\/|$))/i.test(text)) return text.replace(/\/+$/, "");
  const reason =
    url === undefined
      ? "The server is not known here"
      : `"${text}" ${/^\w+:\/\//.test(text) ? "is not an HTTP address" : "has no scheme"}`;
  throw new SignalError("invalid-url", `${reason}: set \`url\` to http://… or https://…`);
}

/** Half a surrogate pair has no UTF-8, and browsers remove `.` and `..` from paths. @param {string} [topic] */
function checkTopic(topic = "") {
  if (/^\.\.?$|\p{Surrogate}/u.test(topic)) {
    throw new SignalError("topic-invalid", "A topic is not `.` or `..`, and has no half of a surrogate pair");
  }
}

/**
 * Check the names and the types of options. An empty type is checked where the option is used.
 * @param {object} options @param {Record<string, string>} types
 */
export function checkOptions(options, types) {
  for (const [name, value] of Object.entries(options)) {
    const type = Object.hasOwn(types, name) ? types[name] : undefined;
    if (type === undefined) throw new SignalError("option-invalid", `No option \`${name}\``);
    if (type && value !== undefined && (value === null || !type.includes(typeof value))) {
      throw new SignalError("option-invalid", `The type of \`${name}\` is ${type}`);
    }
  }
}

/** The API of one server. Nothing is retried here. */
export class SignalClient {
  /** @type {Record<string, string>} */ #headers;
  #authorization;
  #socket;
  #maxListing = MAX_LISTING; // or what fits into a response
  /** @type {Transport | undefined} */ #http; // once it is used

  /** @param {string | URL} [url] @param {ClientOptions} [options] */
  constructor(url = DEFAULT_SERVER, options = {}) {
    checkOptions(options, CLIENT_OPTIONS);
    const { origin, socket = true, token } = options;
    this.url = checked(url);
    if (origin !== undefined && !/^(null|[a-z][\w+.-]*:\/\/[^/?#]+)$/i.test(origin)) {
      throw new SignalError(
        "invalid-origin",
        `"${origin}" is not an origin: it has a scheme and no path, like https://a.example`,
      );
    }
    if ((origin ?? globalThis.origin) === "null") advise(({ warnOfOrigin }) => warnOfOrigin());
    this.#authorization = authorizationOf(token);
    this.#headers = origin ? { Origin: origin } : {}; // browsers set it automatically
    // Outside of browsers a WebSocket cannot send the Origin that the server requires.
    if (socket && !origin && globalThis.WebSocket) this.#socket = socketTo(this.url, this.#authorization);
  }

  /** Return the WebSocket for calls, opened if necessary; undefined where calls go over HTTP. */
  async open() {
    return this.#socket?.open();
  }

  /** @type {Api["version"]} */
  version(options) {
    return this.#call("version", {}, options);
  }

  /** @type {Api["health"]} */
  health(options) {
    return this.#call("health", {}, options);
  }

  /** @type {Api["nearby"]} */
  nearby(options) {
    return this.#call("nearby", {}, options);
  }

  /** @type {Api["topics"]} */
  topics({ page, limit, prefix, ...options } = {}) {
    return this.#call("topics", { page, limit, prefix }, options);
  }

  /** @type {Api["rooms"]} */
  async rooms(options = {}) {
    return (await import("./rooms.js").catch(notLoaded)).rooms(this, options);
  }

  /** @type {Api["sessions"]} */
  async sessions(topic, { wait, since, limit, ...options } = {}) {
    for (;;) {
      const most = Math.min(limit ?? MAX_LISTING, this.#maxListing);
      const fields = { topic: String(topic), wait, since, limit: most < MAX_LISTING ? most : limit };
      try {
        return await this.#call("sessions", fields, options);
      } catch (error) {
        if (most === 1 || !isTooLarge(/** @type {Error} */ (error).cause)) throw error;
        this.#maxListing = Math.ceil(most / 8);
      }
    }
  }

  /** @type {Api["iceServers"]} */
  iceServers(options) {
    return this.#call("iceServers", {}, options);
  }

  /** @type {Api["report"]} */
  async report(fields, options) {
    await this.#call("report", { ...fields }, options);
  }

  /** @type {Api["offer"]} */
  offer(topic, { info, offer, ttl, secret, hold, ...options }) {
    return this.#call("offer", { topic: String(topic), info, offer, ttl, secret, hold }, options);
  }

  /** @type {Api["answer"]} */
  answer(code, answer, { secret, ...options } = {}) {
    return this.#call("answer", { code, side: "answerer", answer, secret }, options);
  }

  /** @type {Api["candidate"]} */
  candidate(code, side, candidate, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidate, secret }, options);
  }

  /** @type {Api["candidates"]} */
  candidates(code, side, candidates, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidates, secret }, options);
  }

  /** @type {Api["poll"]} */
  poll(code, side, { wait, since, secret, ...options } = {}) {
    return this.#call("poll", { code, side, wait, since, secret }, options);
  }

  /** @type {Api["refresh"]} */
  refresh(code, side, { secret, ...options } = {}) {
    return this.#call("refresh", { code, side, secret }, options);
  }

  /** @type {Api["hold"]} */
  hold(code, side, { secret, ...options }) {
    return this.#call("hold", { code, side, secret }, options);
  }

  /** @type {Api["withdraw"]} */
  withdraw(code, side, { secret, ...options } = {}) {
    return this.#call("withdraw", { code, side, secret }, options);
  }

  /** @type {Api["leave"]} */
  leave(code, side, { secret, ...options } = {}) {
    checkOptions(options, SIGNAL);
    const body = JSON.stringify({ code, side, secret });
    const send = () => {
      const { token } = this.#authorization;
      const headers = token ? { ...JSON_BODY, ...bearer(token) } : {}; // without them the browser sends it at once
      const init = /** @type {const} */ ({ method: "POST", keepalive: true, redirect: "error" }); // unlike a beacon
      fetch(`${this.url}/withdraw`, { ...init, headers, body }).catch(() => {});
    };
    if (hidden) return send();
    withdrawals.add(send);
    const withdraw = () => this.withdraw(code, side, { secret });
    retry(withdraw, new AbortController().signal, WITHDRAW_TRIES)
      .catch(() => {}) // the session no longer exists
      .finally(() => withdrawals.delete(send));
  }

  /**
   * @overload @param {string | { topic: string }} about @param {Stoppable} [options]
   * @returns {AsyncGenerator<TopicEvent, void, void>}
   */
  /**
   * @overload @param {{ code: string, side: Side, secret?: string }} about @param {Stoppable} [options]
   * @returns {AsyncGenerator<SessionEvent, void, void>}
   */
  /** @param {string | StreamFields} about @param {Stoppable} options @returns {AsyncGenerator<SignalEvent>} */
  async *events(about, options = {}) {
    checkOptions(options, SIGNAL);
    const { signal = new AbortController().signal } = options;
    /** @type {StreamFields} */ const fields = typeof about === "string" ? { topic: about } : about;
    checkTopic(fields.topic);
    let id = "";
    let begun = false;
    /** @type {Set<string>} */ const codes = new Set(); // of the sessions under the topic
    /** @type {Set<string> | undefined} */
    let missing; // of these, those that a listing that replaces them has not contained so far
    const restart = () => {
      id = "";
      if (fields.topic !== undefined) missing = new Set(codes);
    };
    for (let failures = 0; ; failures += 1) {
      const deadline = new Deadline(signal);
      const beganMs = now();
      let leastMs = 0;
      try {
        const transport = await deadline.within(REQUEST_MS, this.#transport());
        const stream = transport.subscribe({ ...fields, since: id || undefined }, deadline, codes);
        for await (const { id: last, type = "", data } of stream) {
          begun = true;
          id = last ?? id;
          if (type === "reset" && fields.topic !== undefined) missing = new Set(codes);
          // An event with an id alone ends a listing.
          for (const code of (last && !type && missing) || []) {
            codes.delete(code);
            yield/** @type {SignalEvent} */ ({ type: "gone", data: { code, reason: "withdrawn" }, id });
          }
          if (last && !type) missing = undefined;
          if (!data || !Object.hasOwn(EVENTS, type)) continue;
          signal.throwIfAborted();
          if (!filtered(data, EVENTS[type])) continue; // it concerns this item only
          const event = /** @type {SignalEvent} */ ({ type, data, id });
          const { code } = Object(data);
          missing?.delete(code);
          if (type === "session") codes.add(code);
          if (type === "gone") codes.delete(code);
          yield event;
          if (type === "gone" && fields.topic === undefined) return;
        }
      } catch (error) {
        signal.throwIfAborted();
        if (refusal(error).status === 400 && id) {
          restart(); // the server no longer knows the id
          continue;
        }
        if (!begun || !passing(error)) throw error;
        if (deadline.passed) {
          doubt();
          continue;
        }
        leastMs = refusal(error).retryAfterMs ?? 0;
      } finally {
        deadline.end();
      }
      if (missing) restart(); // the listing is incomplete
      if (now() - beganMs > backOff(Infinity)) failures = 0; // after the longest pause
      await sleep(Math.max(PAUSE_MS, backOff(failures)), signal, Math.max(PAUSE_MS, leastMs));
    }
  }

  /**
   * @template {keyof Results} Method @param {Method} method @param {Fields & { topic?: string, wait?: number }} fields
   * @param {Stoppable} [options] @returns {Promise<Results[Method]>}
   */
  async #call(method, fields, options = {}) {
    checkOptions(options, SIGNAL);
    const { signal } = options;
    signal?.throwIfAborted();
    const { topic, ...others } = fields;
    checkTopic(topic);
    const fits = JSON.stringify(others).length < MAX_FRAME;
    const result = await withTimeout(REQUEST_MS + 1000 * (fields.wait ?? 0), signal, async (deadline) => {
      const transport = await this.#transport(fits);
      deadline.signal.throwIfAborted();
      return /** @type {Promise<Results[Method]>} */ (transport.call(method, fields, deadline));
    });
    if (!filtered(result, SHAPES[method])) throw nonsense(this.url);
    return result;
  }

  /** @returns {Promise<Transport>} */
  async #transport(fits = true) {
    if (fits && (await this.open()) && this.#socket) return this.#socket;
    const { Http } = await loadHttp(this.url);
    return (this.#http ??= new Http(this, this.#headers, this.#authorization));
  }
}
