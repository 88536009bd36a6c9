/* Requests over HTTP. */

import { SignalError } from "./errors.js";

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
