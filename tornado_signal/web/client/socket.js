/* The WebSocket to a server, and what happens to it when the page is closed. */

import { nonsense, refused, unreachable } from "./errors.js";
import { conforms, filtered, MAX_SIZE, parseBounded, SHAPES } from "./text.js";
import { now, REQUEST_MS, SIGN_MS, watch, withTimeout } from "./timing.js";

/** @import { Authorization } from "./authorization.js" */
/** @import { Call, Fields, Frame, RawEvent, Results } from "./types.d.ts" */
/** @import { Deadline } from "./timing.js" */

const OPEN_MS = 6000; // for a WebSocket to open
const BESIDE_MS = 1000; // after which HTTP is tried in parallel
const HTTP_MS = 300_000; // how long HTTP is used where no WebSocket works
const IDLE_MS = 10_000; // how long an unused WebSocket stays open
const QUIET_MS = 11_000; // after which a WebSocket in use is checked

/** @param {string} url of the server, which a page gets this part from */
export const loadHttp = (url) =>
  import("./http.js").catch((cause) => {
    throw unreachable(url, cause);
  });

/**
 * The WebSocket for all requests of a page with the same authorization. It is opened for a request, and closed when it is
 * unused for a while. If it does not open although the server is available, HTTP is used for some minutes.
 */
export class Socket {
  #url;
  #authorization;
  #token = ""; // that the server has accepted
  /** @type {Promise<WebSocket | undefined> | undefined} */ #opening;
  /** @type {WebSocket | undefined} */ #socket; // set while it is open
  #unwatch = () => {};
  #asking = false; // whether it is being checked
  /** @type {Map<number, Call>} */ #calls = new Map(); // by request id
  /** @type {Map<number, ReadableStreamDefaultController<RawEvent>>} */ #streams = new Map(); // by subscription number
  #lastId = 0;
  #heardMs = 0; // when the last message arrived
  #works = false; // whether a message has ever arrived
  #failed = false; // whether the last attempt to open it failed
  #httpUntilMs = 0;

  /** @param {string} url @param {Authorization} authorization */
  constructor(url, authorization) {
    this.#url = url;
    this.#authorization = authorization;
  }

  /**
   * Return the WebSocket, or undefined where HTTP is to be used. Fails like a request if the server is unavailable.
   * @returns {Promise<WebSocket | undefined> | undefined}
   */
  open() {
    if (now() >= this.#httpUntilMs) return (this.#opening ??= this.#begin());
  }

  #begin() {
    const opening = this.#open();
    const reset = () => {
      if (this.#opening === opening && !this.#socket) this.#opening = undefined;
    };
    opening.then(reset, reset);
    return opening;
  }

  async #open() {
    /** @type {Promise<void> | undefined} */ let checked;
    const check = () => (checked ??= withTimeout(REQUEST_MS, null, (deadline) => this.#checkServer(deadline)));
    for (let tries = this.#works ? 2 : 1; ; tries -= 1) {
      // Browsers hide the reason why a WebSocket did not open.
      if (this.#failed) await check();
      if (!tries) return this.#avoid();
      const opening = this.#connect();
      opening.catch(() => {}); // it can reject while nothing waits for it
      /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
      const pause = new Promise((resolve) => (timer = setTimeout(resolve, BESIDE_MS)));
      // If the server responds over HTTP first, that is used. A WebSocket that opens later replaces it.
      const beside = pause.then(check).then(
        () => true,
        () => opening,
      );
      const first = await Promise.race([opening, beside]).finally(() => clearTimeout(timer));
      if (first === true) return this.#avoid();
      if (first) return first;
    }
  }

  async #connect() {
    const socket = await openWebSocket(`${this.#url}/ws`);
    this.#failed = !socket;
    if (!socket) return undefined;
    this.#socket = socket;
    this.#httpUntilMs = 0;
    this.#opening ??= Promise.resolve(socket);
    this.#use(socket);
    await this.#authorize().catch((error) => {
      if (this.#socket === socket) this.end();
      throw error;
    });
    return socket;
  }

  /** Present the current token, unless the server has accepted it before. */
  #authorize() {
    return this.#authorization.use(async (token) => {
      if (token === this.#token) return;
      await withTimeout(REQUEST_MS, null, (deadline) => this.call("authorize", { token }, deadline));
      this.#token = token;
    });
  }

  /** @param {Deadline} deadline */
  async #checkServer({ signal }) {
    const { json, request } = await loadHttp(this.#url);
    await json(await request(`${this.#url}/health`, { signal }));
  }

  /** @returns {undefined} */
  #avoid() {
    this.#httpUntilMs = now() + HTTP_MS;
  }

  /** @param {WebSocket} socket */
  #use(socket) {
    opened.add(this);
    this.#heardMs = now();
    this.#unwatch = watch((doubtful) => this.#look(doubtful));
    socket.onmessage = ({ data }) => {
      try {
        this.#take(Object(parseBounded(data)), data.length);
      } catch (error) {
        this.end(nonsense(this.#url, error)); // its text is not JSON, or too large
      }
    };
    socket.onclose = ({ code, reason }) => {
      // Too many or too large messages: HTTP can report the reason. A token can be replaced.
      if (code === 1009 || (code === 1008 && !reason.startsWith("token "))) this.#avoid();
      this.#broken();
    };
  }

  /** Close it if it is unused, or check it after some silence or a doubt. @param {boolean} doubtful */
  #look(doubtful) {
    const quietMs = now() - this.#heardMs;
    if (!this.#calls.size && !this.#streams.size) {
      if (doubtful || quietMs > IDLE_MS) return this.end();
    } else if (!this.#asking && (doubtful || quietMs > QUIET_MS)) {
      this.#asking = true;
      withTimeout(SIGN_MS, null, (deadline) => this.call("health", {}, deadline))
        .catch(() => {})
        .finally(() => (this.#asking = false));
    }
    this.#authorize().catch(() => {}); // without a new token the server closes the connection
  }

  /** @param {Frame} frame @param {number} size */
  #take({ id, result: value, error, params }, size) {
    const result = value ?? {}; // of a method without a result
    this.#heardMs = now();
    this.#works = true;
    if (params) {
      if (!filtered(params, SHAPES.event)) return;
      const { cursor, subscription, type, data } = params;
      const stream = this.#streams.get(subscription);
      if (stream && /** @type {number} */ (stream.desiredSize) < 0) {
        this.#streams.delete(subscription); // the reader subscribes again after the last event that it has read
        this.tell("unsubscribe", { subscription });
        stream.error(unreachable(this.#url));
      } else stream?.enqueue({ type, data, id: cursor, size });
      return;
    }
    const { resolve, reject, stream, abandoned } = this.#calls.get(id) ?? {};
    this.#calls.delete(id);
    // Without its own number, the events of a subscription would never arrive.
    const begins = stream && !error;
    const wrong = error ? !filtered(error, SHAPES.error) : !conforms(result, begins ? SHAPES.subscribe : {});
    if (wrong || (begins && this.#streams.has(result.subscription))) reject?.(nonsense(this.#url));
    else if (error) reject?.(refused(error.code, error.message, /** @type {number} */ (error.data?.retryAfter) * 1000));
    else if (resolve) {
      if (stream) this.#streams.set(result.subscription, stream);
      resolve(/** @type {never} */ (result));
    } else if (result.subscription) this.tell("unsubscribe", { subscription: result.subscription });
    else if (abandoned) this.tell("withdraw", { code: result.code, ...abandoned });
  }

  #broken() {
    if (!this.#works) this.#avoid(); // an intermediary lets it open but blocks its messages
    this.end();
  }

  /** @param {Error} error */
  end(error = unreachable(this.#url)) {
    if (!this.#socket) return;
    this.#unwatch();
    this.#socket.onmessage = this.#socket.onclose = null; // `onclose` can fire late
    this.#socket.close();
    this.#socket = this.#opening = undefined;
    this.#token = "";
    opened.delete(this);
    for (const { reject } of this.#calls.values()) reject?.(error);
    for (const stream of this.#streams.values()) stream.error(error);
    this.#calls.clear();
    this.#streams.clear();
  }

  /**
   * Call a method over the open WebSocket and return its result. Its events, if it has any, go into `stream`.
   * @template {keyof Results} Method @param {Method} method @param {Fields} params @param {Deadline} deadline
   * @param {ReadableStreamDefaultController<RawEvent>} [stream] @returns {Promise<Results[Method]>}
   */
  call(method, params, deadline, stream) {
    return new Promise((resolve, reject) => {
      const id = (this.#lastId += 1);
      const askedMs = now();
      this.#calls.set(id, { resolve, reject, stream });
      deadline.signal.addEventListener("abort", () => {
        if (!this.#calls.delete(id)) return;
        if (params.hold) this.#calls.set(id, { abandoned: { side: "offerer", secret: params.secret } });
        if (params.wait) this.tell("cancel", { id });
        if (deadline.passed && this.#heardMs <= askedMs) this.#broken();
      });
      this.#send({ id, method, params });
    });
  }

  /** Send a notification. Returns whether the WebSocket is open. @param {string} method @param {Fields} params */
  tell(method, params) {
    const open = this.#socket?.readyState === 1;
    if (open) this.#send({ method, params });
    return open;
  }

  /** @param {Fields} message */
  #send(message) {
    this.#socket?.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  /** Yield the events of a subscription after an empty one. @param {Fields} params @param {Deadline} deadline */
  async *subscribe(params, deadline) {
    /** @type {ReadableStreamDefaultController<RawEvent> | undefined} */ let stream;
    /** @type {QueuingStrategy<RawEvent>} */
    const strategy = { highWaterMark: MAX_SIZE, size: (event) => event?.size ?? 1 };
    const reader = new ReadableStream({ start: (controller) => (stream = controller) }, strategy).getReader();
    const { subscription } = await deadline.within(REQUEST_MS, this.call("subscribe", params, deadline, stream));
    try {
      yield {};
      for (;;) {
        const { value = {} } = await deadline.within(undefined, reader.read());
        if (value.type === "gone" && "code" in params) this.#streams.delete(subscription);
        yield value;
      }
    } finally {
      reader.cancel().catch(() => {}); // Chromium keeps a reader that waits, and all that waits for it
      // Another connection can use the same number for another subscription.
      if (this.#streams.get(subscription) === stream) {
        this.#streams.delete(subscription);
        this.tell("unsubscribe", { subscription });
      }
    }
  }
}

/** @type {Set<Socket>} */ const opened = new Set();
/** @type {Set<() => void>} */
export const withdrawals = new Set(); // functions that send the withdrawals without a response so far

export let hidden = false; // whether the page is being closed
// A browser keeps a page in its cache only without a WebSocket. `leave` then uses a beacon.
globalThis.addEventListener?.("pagehide", () => {
  hidden = true;
  for (const socket of opened) socket.end();
  for (const send of withdrawals) send();
});
globalThis.addEventListener?.("pageshow", () => (hidden = false));
// The network can be another one, on which nothing arrives over the old connection.
globalThis.addEventListener?.("online", () => {
  for (const socket of opened) socket.end();
});

/** @param {string} url @param {Authorization} authorization */
export function socketTo(url, authorization) {
  const socket = authorization.sockets.get(url) ?? new Socket(url, authorization);
  authorization.sockets.set(url, socket);
  return socket;
}

/** @param {string} url @returns {Promise<WebSocket | undefined>} */
const openWebSocket = (url) =>
  new Promise((resolve) => {
    /** @type {WebSocket | undefined} */ let socket;
    const end = () => {
      clearTimeout(timer);
      if (socket) socket.onclose = socket.onerror = null; // in Node.js `close` fires `error` again
      socket?.close();
      resolve(undefined);
    };
    const timer = setTimeout(end, OPEN_MS);
    try {
      socket = new WebSocket(new URL(url, globalThis.location?.href).href.replace(/^http/, "ws"));
      socket.onclose = socket.onerror = end; // Chromium fires only `error` if a Content-Security-Policy forbids it
      socket.onopen = () => {
        clearTimeout(timer);
        if (socket) socket.onerror = null; // `close` follows
        resolve(socket);
      };
    } catch {
      end(); // a page loaded over HTTPS may not open an insecure WebSocket
    }
  });
