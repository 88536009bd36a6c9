/* Errors of the module, and how a page gets them. */

/** @import { ErrorCode } from "../client.d.ts" */

/** An error of the module. docs/browser-client.md lists the codes. */
export class SignalError extends Error {
  name = "SignalError";
  retryable = false; // whether the same call may succeed later
  /** @type {number | undefined} */ status;
  /** @type {number | undefined} */ retryAfterMs;
  /** @type {SignalError[] | undefined} */ errors;
  /** @type {object | undefined} */ peer;

  /** @param {ErrorCode} code @param {string} message @param {ErrorOptions} [options] */
  constructor(code, message, options) {
    super(message, options);
    this.code = code;
  }
}

/**
 * Dispatch an event with fields. Returns whether a listener has read the field with the name of the event.
 * @param {EventTarget} target @param {string} name @param {object} [fields]
 */
export function dispatch(target, name, fields) {
  let isRead = false;
  const event = Object.assign(new Event(name), fields);
  const value = /** @type {any} */ (event)[name];
  if (value) Object.defineProperty(event, name, { get: () => (isRead = true) && value });
  target.dispatchEvent(event);
  return isRead;
}

/**
 * Dispatch an `error` event. An error that no listener reads is written to the console.
 * @param {EventTarget} target @param {Error & { code?: string, retryable?: boolean }} error
 */
export function report(target, error) {
  if (dispatch(target, "error", { error })) return;
  console[error.retryable ? "warn" : "error"](`tornado-signal: ${error.code} (docs/browser-client.md#errors)`, error);
}

/** @type {Record<number, ErrorCode>} */ const CODES = {
  401: "unauthorized",
  403: "origin-not-allowed",
  404: "not-found",
  409: "already-answered",
  429: "server-busy",
};
/** @param {SignalError} error */
export const temporary = (error) => Object.assign(error, { retryable: true });

const MAX_RETRY_MS = 3_600_000; // timers of more than 24 days fire at once
const NOT_ALLOWED = "Not allowed by the token";

/** @param {number} status @param {string} message @param {number} [retryAfterMs] */
export function refused(status, message, retryAfterMs = 0) {
  const code = CODES[status] ?? (status < 500 ? "invalid-request" : "server-busy");
  const busy = code === "server-busy";
  const text = busy ? `The server responds but refuses requests: ${status} ${message}`.trim() : message; // in HTTP/2
  const error = new SignalError(message === NOT_ALLOWED ? "not-allowed" : code, text);
  error.retryable = busy;
  error.status = status;
  if (retryAfterMs > 0) error.retryAfterMs = Math.min(retryAfterMs, MAX_RETRY_MS);
  return error;
}

/** @param {string} url @param {unknown} [cause] */
export function unreachable(url, cause) {
  const origin = globalThis.location?.origin;
  const advice = origin ? `, allows the origin ${origin}, and has an https: URL if that has one` : "";
  const message = `No response from ${url}. Check that the server runs with this scheme${advice}`;
  return temporary(new SignalError("server-unreachable", message, { cause }));
}

/** Make the error for a response of something else than the server. @param {string} url */
export const foreign = (url, why = "is not a tornado-signal server") =>
  temporary(new SignalError("not-a-server", `${url} ${why}`));

/**
 * Make the error for a response that no server of this API sends. Unlike a foreign one it is not retried.
 * @param {string} url @param {unknown} [cause]
 */
export const nonsense = (url, cause) => new SignalError("not-a-server", foreign(url).message, { cause });

/** The fields of an error that may be a SignalError. Otherwise `status` is undefined. @param {unknown} error */
export const refusal = (error) => /** @type {SignalError} */ (error);

/** Whether a request may succeed later or elsewhere: no network, a timeout, or too much load. @param {unknown} error */
export const passing = (error) => error instanceof SignalError && error.retryable;

/** Whether another peer has answered a session. With secrets the status is 404. @param {unknown} error */
export const taken = (error) => [404, 409].includes(refusal(error).status ?? 0);
