/* Deadlines, pauses and repetition. */

import { passing, refusal, SignalError, temporary } from "./errors.js";

/** Return a promise and the functions that settle it. Nothing has to wait for it when it rejects. @template [T=void] */
export function deferred() {
  let resolve = /** @type {(value: T) => void} */ (() => {});
  let reject = /** @type {(reason: unknown) => void} */ (() => {});
  /** @type {Promise<T>} */ const promise = new Promise((...settle) => ([resolve, reject] = settle));
  promise.catch(() => {});
  return { promise, resolve, reject };
}

/** The time in milliseconds by a clock that is never set. */
export const now = () => performance.now();

/** @type {Set<(doubtful: boolean, certain?: boolean) => void>} */ const watching = new Set();
/** @type {ReturnType<typeof setInterval> | undefined} */ let ticking;
let tickedMs = 0; // by the wall clock: the other one can stand still while a machine sleeps
let latestDoubtMs = -Infinity;
export const doubtMs = () => latestDoubtMs; // when connections could last have died

/**
 * Call a function every two seconds, and with `true` when connections can have died. The second argument is whether the
 * page slept or the network was away. Returns a function that ends this.
 * @param {(doubtful: boolean, certain?: boolean) => void} look
 */
export function watch(look) {
  if (!watching.size) {
    tickedMs = Date.now();
    ticking = setInterval(tick, TICK_MS);
  }
  watching.add(look);
  return () => {
    if (watching.delete(look) && !watching.size) clearInterval(ticking);
  };
}

function tick() {
  const lateMs = Date.now() - tickedMs - TICK_MS;
  tickedMs = Date.now();
  if (lateMs > LATE_MS)
    doubt(true); // the machine or the page slept
  else for (const look of [...watching]) look(false);
}

/** Ask for a sign of life on all connections, because something has happened that can end them. */
export function doubt(certain = false) {
  if (!certain && now() - latestDoubtMs < SIGN_MS) return;
  latestDoubtMs = now();
  for (const look of [...watching]) look(true, certain);
}

globalThis.addEventListener?.("online", () => doubt(true));
globalThis.addEventListener?.("pageshow", ({ persisted }) => persisted && doubt());
for (const name of ["visibilitychange", "resume"]) globalThis.document?.addEventListener(name, () => doubt());

const TICK_MS = 2000;
const LATE_MS = 3000;
export const SIGN_MS = 5000; // for a sign of life
export const REQUEST_MS = 15_000; // for a response, in addition to the `wait` of a request
export const WAIT_S = 45; // the server ends longer waits, because many proxies time out after 50 s
export const PAIR_MS = 5000; // for two peers to connect, or for the other one to send a candidate
export const STAGGER_MS = 1500; // about: after this time another peer is tried in parallel with a silent one
export const PAUSE_MS = 1000; // between two polls of a server that does not support waiting
const MAX_PAUSE_MS = 10_000;

/** @type {WeakMap<AbortSignal, Set<() => void>>} */ const onAborts = new WeakMap();

/**
 * Call a function when a signal fires. Returns a function that ends this. Node.js warns of more than ten listeners.
 * @param {AbortSignal} signal @param {() => void} end
 */
export function onAbort(signal, end) {
  const ends = onAborts.get(signal) ?? new Set();
  if (!onAborts.has(signal)) signal.addEventListener("abort", () => [...ends].map((each) => each()));
  onAborts.set(signal, ends.add(end));
  return () => void ends.delete(end);
}

/** An abort signal that follows `outer` and also fires on a timeout. */
export class Deadline {
  #stop = new AbortController();
  #unfollow = () => {};
  passed = false; // whether the timeout has fired

  /** @param {AbortSignal | null} [outer] */
  constructor(outer) {
    this.follow(outer);
  }

  /** @param {AbortSignal | null} [outer] */
  follow(outer) {
    const abort = () => this.end(outer?.reason);
    if (outer?.aborted) abort();
    else if (outer) this.#unfollow = onAbort(outer, abort);
  }

  get signal() {
    return this.#stop.signal;
  }

  /** @template T @param {number | undefined} ms @param {Promise<T>} promise */
  async within(ms, promise) {
    const { signal } = this;
    const late = () => {
      this.passed = true;
      this.end(temporary(new SignalError("timeout", "The server did not respond in time")));
    };
    let timer = ms && setTimeout(late, ms);
    const hasten = (/** @type {boolean} */ doubtful) => {
      if (!doubtful) return;
      clearTimeout(timer);
      timer = setTimeout(late, SIGN_MS);
    };
    const unwatch = ms === REQUEST_MS ? watch(hasten) : () => {};
    let forget = () => {};
    // One for each call: a promise that lives longer would keep all results.
    const aborted = new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      forget = onAbort(signal, () => reject(signal.reason));
    });
    try {
      return await /** @type {Promise<T>} */ (Promise.race([promise, aborted]));
    } catch (failure) {
      signal.throwIfAborted(); // Chromium does not report the reason when a body is cut off
      throw failure;
    } finally {
      clearTimeout(timer);
      unwatch();
      forget();
    }
  }

  /** @param {unknown} [reason] */
  end(reason) {
    this.#unfollow();
    this.#stop.abort(reason);
  }
}

/**
 * @template T @param {number} ms @param {AbortSignal | null | undefined} signal
 * @param {(deadline: Deadline) => Promise<T>} task
 */
export async function withTimeout(ms, signal, task) {
  const deadline = new Deadline(signal);
  try {
    return await deadline.within(ms, task(deadline));
  } finally {
    deadline.end();
  }
}

/**
 * Sleep for `leastMs` plus up to `ms` of jitter, so that clients do not return at the same moment.
 * @param {number} ms @param {AbortSignal} signal @param {number} [leastMs] @returns {Promise<void>}
 */
export const sleep = (ms, signal, leastMs = ms / 2) =>
  new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const end = () => {
      clearTimeout(timer);
      awake();
      globalThis.removeEventListener?.("online", end);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, leastMs + ms * Math.random());
    const awake = onAbort(signal, end);
    globalThis.addEventListener?.("online", end); // the network is available again
  });

/**
 * Call a function after a time, unless the signal fires.
 * @param {number} ms @param {AbortSignal} signal @param {() => void} task
 */
export const later = (ms, signal, task) => void sleep(0, signal, ms).then(task, () => {});

const MIN_POLL_MS = 100; // between two polls, after a burst
const POLL_BURST = 20;

/** Make a function that delays polls after a burst, because a server can respond to each at once. */
export function makePace() {
  let nextMs = 0;
  /** @param {AbortSignal} signal */
  return async (signal) => {
    const nowMs = now();
    nextMs = Math.max(nextMs, nowMs - POLL_BURST * MIN_POLL_MS) + MIN_POLL_MS;
    if (nextMs > nowMs) await sleep(0, signal, nextMs - nowMs);
  };
}

/** @param {number} attempt */
export const backOff = (attempt) => Math.min(MAX_PAUSE_MS, 200 * 2 ** attempt);

/** @template T @param {() => Promise<T>} task @param {AbortSignal} signal */
export async function retry(task, signal, tries = Infinity) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await task();
    } catch (error) {
      if (signal.aborted || !passing(error) || attempt >= tries) throw error;
      await sleep(backOff(attempt), signal, refusal(error).retryAfterMs);
    }
  }
}
