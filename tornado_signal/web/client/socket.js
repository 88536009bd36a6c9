/* The WebSocket to a server, and what happens to it when the page goes away. */

import { json, request } from "./http.js";
import { REQUEST_MS, SignalError, withTimeout } from "./timing.js";

const OPEN_MS = 4000; // for a WebSocket to open
const HTTP_MS = 300_000; // how long HTTP is used where no WebSocket works
const IDLE_MS = 10_000; // how long a WebSocket stays open that nothing needs
const QUIET_MS = 60_000; // after which a WebSocket that is needed has to show that it works; longer than a wait

/**
 * The WebSocket to a server, for everything that a page asks of it: opened when something is asked, closed when nothing
 * has been needed for a while. Where it does not open although the server is there, HTTP is used for some minutes.
 */
class Socket {
  #url;
  #opening; // the WebSocket, as a promise
  #socket; // when it is open
  #timer;
  #calls = new Map(); // by the id of the request: what is to be done with its answer
  #streams = new Map(); // by the number of the subscription
  #lastId = 0;
  #heardMs; // when
  #works = false; // whether the server has ever said anything
  #failed = false; // whether it did not open when it was tried last
  #httpUntilMs = 0;

  constructor(url) {
    this.#url = url;
  }

  /** The WebSocket; undefined where HTTP is to be used. Fails as a request does when the server is away. */
  open() {
    if (Date.now() >= this.#httpUntilMs) return (this.#opening ??= this.#open());
  }

  async #open() {
    try {
      for (let tries = this.#works ? 2 : 1; ; tries -= 1) {
        // Why it does not open no page is told.
        if (this.#failed) await withTimeout(REQUEST_MS, null, (deadline) => this.#serverIsThere(deadline));
        if (!tries) return this.#avoid();
        this.#socket = await openWebSocket(`${this.#url}/ws`);
        this.#failed = !this.#socket;
        if (this.#socket) return this.#use(this.#socket);
      }
    } finally {
      if (!this.#socket) this.#opening = undefined;
    }
  }

  async #serverIsThere({ signal }) {
    await json(await request(`${this.#url}/health`, { signal }));
  }

  #avoid() {
    this.#httpUntilMs = Date.now() + HTTP_MS;
  }

  #use(socket) {
    this.#heardMs = Date.now();
    socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    socket.onclose = ({ code }) => {
      if (code === 1008 || code === 1009) this.#avoid(); // too much or too large: HTTP can say what
      this.#broken();
    };
    this.#timer = setInterval(() => {
      const quietMs = Date.now() - this.#heardMs;
      if (!this.#calls.size && !this.#streams.size) {
        if (quietMs > IDLE_MS) this.end();
      } else if (quietMs > QUIET_MS) {
        withTimeout(REQUEST_MS, null, (deadline) => this.ask("health", {}, deadline)).catch(() => {});
      }
    }, IDLE_MS / 2);
    return socket;
  }

  #take({ id, result, error, params }) {
    this.#heardMs = Date.now();
    this.#works = true;
    if (params) {
      const { cursor, ...event } = params;
      this.#streams.get(params.subscription)?.enqueue({ ...event, id: cursor });
      return;
    }
    const { resolve, reject, stream, abandoned } = this.#calls.get(id) ?? {};
    this.#calls.delete(id);
    if (error) reject?.(new SignalError(error.code, error.message, error.data?.retryAfter * 1000 || undefined));
    else if (resolve) {
      if (stream) this.#streams.set(result.subscription, stream);
      resolve(result);
    } else if (result.subscription) this.tell("unsubscribe", result);
    else if (abandoned) this.tell("withdraw", { code: result.code, ...abandoned });
  }

  #broken() {
    if (!this.#works) this.#avoid(); // something lets it open, and nothing through
    this.end();
  }

  end() {
    if (!this.#socket) return;
    clearInterval(this.#timer);
    this.#socket.onmessage = this.#socket.onclose = null; // which may take long
    this.#socket.close();
    this.#socket = this.#opening = undefined;
    const error = new TypeError("The connection to the server has ended");
    for (const { reject } of this.#calls.values()) reject?.(error);
    for (const stream of this.#streams.values()) stream.error(error);
    this.#calls.clear();
    this.#streams.clear();
  }

  /** The result of a method, asked over the open WebSocket; its events, if it has some, go into a stream. */
  ask(method, params, deadline, stream) {
    return new Promise((resolve, reject) => {
      const id = (this.#lastId += 1);
      const askedMs = Date.now();
      this.#calls.set(id, { resolve, reject, stream });
      deadline.signal.addEventListener("abort", () => {
        if (!this.#calls.delete(id)) return;
        if (params.hold) this.#calls.set(id, { abandoned: { side: "offerer", secret: params.secret } });
        if (deadline.passed && this.#heardMs <= askedMs) this.#broken();
      });
      this.#send({ id, method, params });
    });
  }

  /** Say something that needs no answer, if there is an open WebSocket; whether it is said. */
  tell(method, params) {
    const open = this.#socket?.readyState === 1;
    if (open) this.#send({ method, params });
    return open;
  }

  #send(message) {
    this.#socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  /** The events of a subscription: `{type, data, id}`; first none of these, when it has begun. */
  async *subscribe(params, deadline) {
    let stream;
    const reader = new ReadableStream({ start: (controller) => (stream = controller) }).getReader();
    const { subscription } = await deadline.within(REQUEST_MS, this.ask("subscribe", params, deadline, stream));
    try {
      yield {};
      for (;;) {
        const { value } = await deadline.within(undefined, reader.read());
        if (value.type === "gone" && "code" in params) this.#streams.delete(subscription); // which has ended by that
        yield value;
      }
    } finally {
      // Another connection may have the same number for another one.
      if (this.#streams.get(subscription) === stream) {
        this.#streams.delete(subscription);
        this.tell("unsubscribe", { subscription });
      }
    }
  }
}

const sockets = new Map(); // by the URL of the server
export const withdrawals = new Set(); // functions that send what has no response yet

export let hidden = false; // whether the page goes away
// A page that goes away has none: then the browser may keep it, and `leave` uses what outlives it.
globalThis.addEventListener?.("pagehide", () => {
  hidden = true;
  for (const socket of sockets.values()) socket.end();
  for (const send of withdrawals) send();
});
globalThis.addEventListener?.("pageshow", () => (hidden = false));
// When the network is back it may be another one, on which nothing comes any more over the old connection.
globalThis.addEventListener?.("online", () => {
  for (const socket of sockets.values()) socket.end();
});

export function socketTo(url) {
  if (!sockets.has(url)) sockets.set(url, new Socket(url));
  return sockets.get(url);
}

/** A WebSocket that is open; undefined if it does not open. */
const openWebSocket = (url) =>
  new Promise((resolve) => {
    let socket;
    const end = () => {
      clearTimeout(timer);
      socket?.close();
      resolve();
    };
    const timer = setTimeout(end, OPEN_MS);
    try {
      socket = new WebSocket(new URL(url, globalThis.location?.href).href.replace(/^http/, "ws"));
      socket.onclose = end;
      socket.onopen = () => {
        clearTimeout(timer);
        resolve(socket);
      };
    } catch {
      end(); // a page that came over HTTPS may not
    }
  });
