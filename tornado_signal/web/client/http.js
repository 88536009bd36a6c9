/* Requests and event streams over HTTP. */

import { foreign, refusal, SignalError, unreachable } from "./timing.js";

/** @import { Fields, HttpEvent } from "./types.d.ts" */

export const JSON_BODY = { "Content-Type": "application/json" };

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
  const response = await fetch(url, init).catch((error) => {
    throw refusal(error).name === "TypeError" ? unreachable(url, error) : error;
  });
  if (response.ok) return response;
  const { error } = await json(response).catch((failure) => {
    if (response.status === 404) throw failure; // the URL is that of another server
    return { error: undefined }; // an intermediary responds in any format
  });
  const retryAfterMs = parseInt(/** @type {string} */ (response.headers.get("Retry-After")), 10) * 1000 || undefined;
  throw new SignalError(response.status, error ?? response.statusText, retryAfterMs);
}

/** @param {Response} response */
export async function json(response) {
  try {
    return Object(await response.json());
  } catch (error) {
    if (refusal(error).name === "SyntaxError") throw foreign(response.url);
    throw refusal(error).name === "TypeError" ? unreachable(response.url, error) : error; // it was cut off
  }
}

/** Make a parser of an event stream. It takes bytes in pieces and yields the events that each piece completes. */
export function messages() {
  const decoder = new TextDecoder();
  let rest = "";
  /** @type {HttpEvent} */
  let fields = {};
  /** @param {Uint8Array<ArrayBuffer>} bytes */
  return function* (bytes) {
    // A CR at the end can be the first half of a CR LF.
    const lines = (rest + decoder.decode(bytes, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/);
    rest = /** @type {string} */ (lines.pop());
    for (const line of lines) {
      if (line) {
        const [, name, value] = /** @type {RegExpExecArray} */ (/^([^:]*):? ?(.*)/s.exec(line)); // matches any line
        fields[name] = name === "data" && name in fields ? `${fields[name]}\n${value}` : value;
      } else {
        yield fields;
        fields = {};
      }
    }
  };
}
