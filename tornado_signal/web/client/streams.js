/* Events over HTTP, by a stream or by long polls, and other requests that wait. Loaded where no WebSocket works. */

import { MAX_SIZE, parsed } from "./http.js";
import {
  Deadline,
  doubt,
  foreign,
  makePace,
  nonsense,
  now,
  PAUSE_MS,
  sleep,
  unreachable,
  WAIT_S,
  watch,
} from "./timing.js";

/** @import { SignalClient } from "./signal-client.js" */
/** @import { HttpEvent, RawEvent, Send, StreamFields } from "./types.d.ts" */

const FIRST_MS = 4000; // until a stream begins; some proxies forward a response only when it is complete
const SILENCE_MS = 20_000; // without a complete line in a stream, which has a comment every 15 s
const LONG_REQUESTS = 4; // of all pages of an origin; a browser has six connections to a server over HTTP/1.1
const LINE_SIZE = 128; // that each line of an event counts for, in addition to its characters
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
 * Yield the events of a stream; first an empty one, when it has begun.
 *
 * @param {Promise<Response>} sent
 * @param {boolean} waits whether the response may take longer
 * @param {Deadline} deadline
 * @returns {AsyncGenerator<RawEvent, void, void>}
 */
export async function* stream(sent, waits, deadline) {
  const response = await deadline.within(waits ? SILENCE_MS : FIRST_MS, sent);
  // An intermediary can respond instead of the server.
  const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
  if (!isStream || !response.body) throw foreign(response.url);
  const reader = response.body.getReader();
  const parse = messages(response.url);
  let lineMs = now();
  for (let ms = FIRST_MS; ; ) {
    const read = reader.read().catch((error) => {
      throw unreachable(response.url, error); // it was cut off
    });
    const { value, done } = await deadline.within(ms, read);
    if (done) return;
    yield {};
    if (value.includes(10) || value.includes(13)) lineMs = now();
    ms = Math.max(1, lineMs + SILENCE_MS - now());
    for (const { event, data, ...others } of parse(value))
      yield { type: event, data: parsedOrNothing(data), ...others };
  }
}

/** @param {string} [text] */
function parsedOrNothing(text = "") {
  try {
    return parsed(text);
  } catch {
    return undefined;
  }
}

/**
 * Make a parser of an event stream. It takes bytes in pieces and yields the events that each piece completes.
 *
 * @param {string} [url]
 */
export function messages(url = "The stream") {
  const decoder = new TextDecoder();
  let rest = "";
  let size = 0; // of the incomplete event
  let broken = false; // whether the rest ends with CR
  /** @type {HttpEvent} */
  let fields = {};
  /** @param {Uint8Array<ArrayBuffer>} bytes */
  return function* (bytes) {
    const piece = decoder.decode(bytes, { stream: true });
    rest += piece;
    size += piece.length;
    if (size > MAX_SIZE) throw nonsense(url);
    if (!broken && !/[\r\n]/.test(piece)) return; // splitting it again for each piece would take quadratic time
    if (piece) broken = piece.endsWith("\r");
    // A CR at the end can be the first half of a CR LF.
    const lines = rest.split(/\r\n|\n|\r(?=[^\n])/);
    rest = /** @type {string} */ (lines.pop());
    for (const line of lines) {
      size += LINE_SIZE;
      if (line) {
        const [, name, value] = /** @type {RegExpExecArray} */ (/^([^:]*):? ?(.*)/s.exec(line)); // matches any line
        fields[name] = name === "data" && name in fields ? `${fields[name]}\n${value}` : value;
      } else {
        yield fields;
        fields = {};
        size = rest.length;
      }
    }
  };
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
