/* Errors, deadlines, pauses and repetition. */

/** A server's refusal: HTTP's status, the server's own text, and after how many ms to try again, if it says so. */
export class SignalError extends Error {
  constructor(status, message, retryAfterMs) {
    super(message);
    this.name = "SignalError";
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Whether the same may work later, or elsewhere: no network, no answer in time, a server that cannot just now. */
export const passing = ({ name, status }) =>
  status >= 500 || status === 429 || ["TypeError", "TimeoutError"].includes(name);

/** With secrets, a session that somebody else has answered is told as one that is not there. */
export const taken = ({ status }) => status === 404 || status === 409;

export const REQUEST_MS = 15_000; // for an answer, beyond what was asked to wait
export const PAUSE_MS = 1000; // between two polls of a server that cannot wait
export const MAX_PAUSE_MS = 10_000;

/** Its signal is aborted with another one, and when what it waits for takes too long. */
export class Deadline {
  #stop = new AbortController();
  #aborted;
  passed = false; // whether it took too long

  constructor(outer) {
    this.#aborted = new Promise((_, reject) => {
      this.signal.addEventListener("abort", () => reject(this.signal.reason));
    });
    this.#aborted.catch(() => {}); // it need not be waited for
    const abort = () => this.#stop.abort(outer.reason);
    if (outer?.aborted) abort();
    outer?.addEventListener("abort", abort, { signal: this.signal });
  }

  get signal() {
    return this.#stop.signal;
  }

  async within(ms, promise) {
    const late = () => {
      this.passed = true;
      this.#stop.abort(new DOMException("The server does not answer in time", "TimeoutError"));
    };
    const timer = ms && setTimeout(late, ms);
    try {
      return await Promise.race([promise, this.#aborted]);
    } catch (failure) {
      this.signal.throwIfAborted(); // of a body that is cut off Chromium does not tell the reason
      throw failure;
    } finally {
      clearTimeout(timer);
    }
  }

  end() {
    this.#stop.abort();
  }
}

/** What a task comes to, which is given a `Deadline`. */
export async function withTimeout(ms, signal, task) {
  const deadline = new Deadline(signal);
  try {
    return await deadline.within(ms, task(deadline));
  } finally {
    deadline.end();
  }
}

/** Wait about so long, or at least so long: not everybody is to come back at the same moment. */
export const sleep = (ms, signal, leastMs = ms / 2) =>
  new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const stop = new AbortController();
    const end = () => {
      clearTimeout(timer);
      stop.abort();
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, leastMs + ms * Math.random());
    signal.addEventListener("abort", end, { signal: stop.signal });
    globalThis.addEventListener?.("online", end, { signal: stop.signal }); // the network is back
  });

export const backOff = (attempt) => Math.min(MAX_PAUSE_MS, 200 * 2 ** attempt);

export async function retry(task, signal, tries = Infinity) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await task();
    } catch (error) {
      if (signal.aborted || !passing(error) || attempt >= tries) throw error;
      await sleep(backOff(attempt), signal, error.retryAfterMs);
    }
  }
}
