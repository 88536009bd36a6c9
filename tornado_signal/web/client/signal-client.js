/* The API of one server, call by call. */

import { JSON_BODY, json, messages, pathOf, request } from "./http.js";
import { hidden, socketTo, withdrawals } from "./socket.js";
import { backOff, Deadline, MAX_PAUSE_MS, PAUSE_MS, passing, REQUEST_MS, retry, sleep, withTimeout } from "./timing.js";

const MAX_MESSAGE = 65_536; // what is larger goes over HTTP, which can say that it is too large
const WITHDRAW_TRIES = 16; // in about two minutes, as long as an offer lives
const SILENCE_MS = 45_000; // of a stream, which has a comment every 15 s
const EVENTS = ["session", "gone", "offer", "answer", "candidate"];
const READS = ["version", "health", "topics", "sessions", "iceServers"]; // are GET over HTTP
const PATHS = { version: "", iceServers: "ice-servers", hold: "refresh" }; // where they are not called as the method is
const { url: FILE = globalThis.location?.href } = import.meta; // none in some bundles
/** The URL of the server that this file came from; in a bundle that of its folder. */
export const DEFAULT_SERVER = FILE && new URL(/\/client\/[^/]*\.js$/.test(FILE) ? ".." : ".", FILE).href;

/** The API of one server. Nothing is retried here. */
export class SignalClient {
  #headers;
  #socket;

  constructor(url = DEFAULT_SERVER, { origin, socket = true } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.#headers = origin ? { Origin: origin } : {}; // which a browser sets by itself
    // Outside of browsers a WebSocket cannot be given an Origin, which the server insists on.
    if (socket && !origin && globalThis.WebSocket) this.#socket = socketTo(this.url);
  }

  /** The WebSocket that calls go over, opened if there is none; undefined where they go over HTTP. */
  async open() {
    return this.#socket?.open();
  }

  version(options) {
    return this.#call("version", {}, options);
  }

  health(options) {
    return this.#call("health", {}, options);
  }

  topics({ page, limit, ...options } = {}) {
    return this.#call("topics", { page, limit }, options);
  }

  sessions(topic, { wait, since, limit, ...options } = {}) {
    return this.#call("sessions", { topic: String(topic), wait, since, limit }, options, wait);
  }

  iceServers(options) {
    return this.#call("iceServers", {}, options);
  }

  offer(topic, { info, offer, ttl, secret, hold, ...options }) {
    return this.#call("offer", { topic: String(topic), info, offer, ttl, secret, hold }, options);
  }

  answer(code, answer, { secret, ...options } = {}) {
    return this.#call("answer", { code, side: "answerer", answer, secret }, options);
  }

  candidate(code, side, candidate, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidate, secret }, options);
  }

  candidates(code, side, candidates, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidates, secret }, options);
  }

  poll(code, side, { wait, since, secret, ...options } = {}) {
    return this.#call("poll", { code, side, wait, since, secret }, options, wait);
  }

  refresh(code, side, { secret, ...options } = {}) {
    return this.#call("refresh", { code, side, secret }, options);
  }

  /** Hold an offer that an earlier WebSocket has held; without one, refresh it. */
  hold(code, side, { secret, ...options } = {}) {
    return this.#call("hold", { code, side, secret }, options);
  }

  withdraw(code, side, { secret, ...options } = {}) {
    return this.#call("withdraw", { code, side, secret }, options);
  }

  /** Withdraw in the background, and again while the server is unavailable. Works while the page goes away. */
  leave(code, side, { secret } = {}) {
    const body = JSON.stringify({ code, side, secret });
    const send = () => globalThis.navigator?.sendBeacon?.(`${this.url}/withdraw`, body);
    if (hidden && send()) return;
    withdrawals.add(send);
    const withdraw = () => this.withdraw(code, side, { secret });
    retry(withdraw, new AbortController().signal, WITHDRAW_TRIES)
      .catch(() => {}) // it is gone
      .finally(() => withdrawals.delete(send));
  }

  /** The events of a topic, or of a session for one side, as they come: `{type, data, id}`. */
  async *events(about, { signal = new AbortController().signal } = {}) {
    const fields = typeof about === "string" ? { topic: about } : about;
    let id = "";
    let retryMs = PAUSE_MS;
    let begun = false;
    for (let failures = 0; ; failures += 1) {
      const deadline = new Deadline(signal);
      const began = Date.now();
      let leastMs = 0;
      try {
        const told = (await deadline.within(REQUEST_MS, this.open()))
          ? this.#socket.subscribe({ ...fields, since: id || undefined }, deadline)
          : this.#stream(fields, id, deadline);
        for await (const { id: last = id, retry, type, data } of told) {
          begun = true;
          id = last;
          if (/^\d+$/.test(retry)) retryMs = Number(retry);
          if (!data || !EVENTS.includes(type)) continue;
          signal.throwIfAborted();
          yield { type, data: typeof data === "string" ? JSON.parse(data) : data, id };
          if (type === "gone" && fields.topic === undefined) return;
        }
      } catch (error) {
        signal.throwIfAborted();
        if (error.status === 400 && id) {
          id = ""; // the server knows it no more
          continue;
        }
        if (!begun || !passing(error)) throw error;
        leastMs = error.retryAfterMs ?? 0;
      } finally {
        deadline.end();
      }
      if (Date.now() - began > MAX_PAUSE_MS) failures = 0;
      await sleep(Math.max(retryMs, backOff(failures)), signal, Math.max(retryMs, leastMs));
    }
  }

  /** The fields of the events of a stream; first none, when it has begun. */
  async *#stream({ topic, ...fields }, id, deadline) {
    const path = pathOf(topic, "events", fields);
    const headers = { Accept: "text/event-stream", ...(id && { "Last-Event-ID": id }) };
    const asking = this.#request(path, { headers, cache: "no-store" }, deadline.signal);
    const response = await deadline.within(SILENCE_MS, asking);
    // Something between here and the server may answer in its place.
    const stream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    if (!stream) throw new TypeError("The answer is no event stream");
    yield {};
    const reader = response.body.getReader();
    const parse = messages();
    for (;;) {
      const { value, done } = await deadline.within(SILENCE_MS, reader.read());
      if (done) return;
      for (const { event, ...others } of parse(value)) yield { type: event, ...others };
    }
  }

  async #call(method, fields, { signal } = {}, wait = 0) {
    signal?.throwIfAborted();
    return withTimeout(REQUEST_MS + wait * 1000, signal, async (deadline) => {
      const { topic, ...others } = fields;
      const body = JSON.stringify(others);
      if (body.length < MAX_MESSAGE && (await this.open())) {
        deadline.signal.throwIfAborted();
        return this.#socket.ask(method, fields, deadline);
      }
      const last = PATHS[method] ?? method;
      const asking = READS.includes(method)
        ? this.#request(pathOf(topic, last, others), {}, deadline.signal)
        : this.#request(pathOf(topic, last), { method: "POST", headers: JSON_BODY, body }, deadline.signal);
      return json(await asking);
    });
  }

  #request(path, init, signal) {
    return request(this.url + path, { ...init, headers: { ...init.headers, ...this.#headers }, signal });
  }
}
