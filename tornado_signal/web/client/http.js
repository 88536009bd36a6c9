/* Requests and event streams over HTTP. */

import { SignalError } from "./timing.js";

export const JSON_BODY = { "Content-Type": "application/json" };

export function pathOf(topic, last, fields = {}) {
  const query = String(new URLSearchParams(Object.entries(fields).filter(([, value]) => value != null)));
  return `${topic === undefined ? "" : `/${encodeURIComponent(topic)}`}/${last}${query && `?${query}`}`;
}

export async function request(url, init) {
  const response = await fetch(url, init);
  if (response.ok) return response;
  const { error } = await json(response);
  const retryAfterMs = parseInt(response.headers.get("Retry-After"), 10) * 1000 || undefined;
  throw new SignalError(response.status, error ?? response.statusText, retryAfterMs);
}

export async function json(response) {
  try {
    return (await response.json()) ?? {};
  } catch (error) {
    if (error.name !== "SyntaxError") throw error; // it was interrupted
    return {};
  }
}

/** A function that takes the bytes of an event stream as they come, split anywhere, and gives what ends in them. */
export function messages() {
  const decoder = new TextDecoder();
  let rest = "";
  let fields = {};
  return function* (bytes) {
    // A CR at the end may be half of a CR LF.
    const lines = (rest + decoder.decode(bytes, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/);
    rest = lines.pop();
    for (const line of lines) {
      if (line) {
        const [, name, value] = /^([^:]*):? ?(.*)/s.exec(line);
        fields[name] = name === "data" && name in fields ? `${fields[name]}\n${value}` : value;
      } else {
        yield fields;
        fields = {};
      }
    }
  };
}
