/* Texts of strangers, read as typed records or not at all: of peers and of servers. Their values are never converted. */

/** @import { Fields, Records, Shape } from "./types.d.ts" */

const DESCRIPTION = { type: "string", sdp: "string", "joins?": "number", "info?": "string" };
const CANDIDATE = {
  candidate: "string",
  "sdpMid?": "string",
  "sdpMLineIndex?": "number",
  "usernameFragment?": "string",
};
const NEGOTIATION = { "description?": DESCRIPTION, "of?": "number", "candidates?": [CANDIDATE] };
/** @type {Record<keyof Records, Shape>} */ const RECORDS = {
  description: DESCRIPTION,
  candidate: CANDIDATE,
  negotiation: NEGOTIATION,
  beacon: { v: "number", id: "string", at: "number", now: "number", "since?": "number", "info?": "string" },
  mail: {
    ...NEGOTIATION,
    from: "string",
    info: "string",
    code: "string",
    "connection?": "string",
    "alive?": "string",
    "closed?": "boolean",
  },
  parts: { size: "number", text: "boolean" },
  file: { name: "string", type: "string", size: "number" },
  transfer: { "accept?": "boolean", "received?": "boolean", "cancel?": "string" },
};

/**
 * Whether a value of JSON has a shape. Objects can have more fields. Those with `?` can be null or missing.
 * @param {unknown} value @param {Shape} [shape] @returns {boolean}
 */
export function conforms(value, shape = {}) {
  if (typeof value === "number") return shape === "number" && Math.abs(value) <= Number.MAX_SAFE_INTEGER;
  if (typeof shape === "string") return typeof value === shape;
  if (Array.isArray(shape)) return Array.isArray(value) && value.every((each) => conforms(each, shape[0]));
  if (typeof value !== "object" || !value || Array.isArray(value)) return false;
  const fields = /** @type {Fields} */ (value);
  return Object.entries(shape).every(([key, each]) => {
    const name = key.replace("?", "");
    return (name !== key && fields[name] == null) || conforms(fields[name], each);
  });
}

/**
 * Remove the elements of lists, and the optional fields, that have another shape. Returns whether the rest of it conforms.
 * @param {any} value @param {Shape} [shape] @returns {boolean}
 */
export function filtered(value, shape = {}) {
  for (const [key, each] of Object.entries(value ? shape : {})) {
    const name = key.replace("?", "");
    const field = value[name];
    if (Array.isArray(each) && Array.isArray(field)) value[name] = field.filter((item) => filtered(item, each[0]));
    else if (name !== key && !conforms(field, each)) delete value[name];
  }
  return conforms(value, shape);
}

// The group is half of a surrogate pair without the other half.
const ESCAPE = /\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(ud[89a-f][0-9a-f]{2})|.)/gis;

/** Parse JSON of another peer. Half of a surrogate pair becomes U+FFFD. @param {string} text */
export const parse = (text) => JSON.parse(text.replace(ESCAPE, (all, half) => (half ? "\\ufffd" : all)));

/**
 * Read JSON of another peer as a record of a kind; undefined if it is anything else.
 * @template {keyof Records} Kind @param {unknown} text @param {Kind} kind @returns {Records[Kind] | undefined}
 */
export function read(text, kind) {
  try {
    const value = parse(/** @type {string} */ (text));
    if (conforms(value, RECORDS[kind])) return value;
  } catch {
    // It is not a string or not JSON.
  }
  return undefined;
}

/** @param {string} text */
export const utf8 = (text) => new TextEncoder().encode(text);

/** @param {ArrayBuffer | ArrayLike<number>} bytes */
export const base64 = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/[+/=]/g, (sign) => ({ "+": "-", "/": "_" })[sign] ?? "");

/** @param {string} text */
export const unbase64 = (text) =>
  Uint8Array.from(atob(text.replace(/[-_]/g, (sign) => (sign === "-" ? "+" : "/"))), (byte) => byte.charCodeAt(0));

export const TOO_LARGE = "too large"; // the message of an error

/** @param {unknown} error */
export const isTooLarge = (error) => Object(error).message === TOO_LARGE;

export const MAX_SIZE = 2 ** 24; // of a response, an event or a WebSocket message
const MAX_VALUES = 250_000;
export const MAX_LISTING = 1000; // sessions of a response

const SESSION = {
  code: "string",
  info: "string",
  offer: "string",
  offerCandidates: ["string"],
  createdAt: "number",
  expiresAt: "number",
};
const PAGINATION = { page: "number", limit: "number", total: "number", hasMore: "boolean" };
/** @type {Record<string, Shape>} */
export const SHAPES = {
  version: { version: "string" },
  health: { status: "string", timestamp: "number" },
  topics: { topics: [{ topic: "string", count: "number" }], pagination: PAGINATION },
  sessions: { sessions: [SESSION], "cursor?": "string" },
  nearby: { topic: "string" },
  iceServers: { iceServers: [{}], expiresAt: "number", "reports?": "boolean" },
  poll: {
    "offer?": "string",
    "answer?": "string",
    "offerCandidates?": ["string"],
    "answerCandidates?": ["string"],
    "cursor?": "string",
  },
  offer: { code: "string" },
  refresh: { expiresAt: "number" },
  hold: { expiresAt: "number" },
  subscribe: { subscription: "number" },
  error: { code: "number", message: "string", "data?": { "retryAfter?": "number" } },
  event: { subscription: "number", "type?": "string", "cursor?": "string" },
};
/** @type {Record<string, Shape>} */
export const EVENTS = {
  session: SESSION,
  gone: { code: "string" },
  offer: { offer: "string" },
  answer: { answer: "string" },
  candidate: { candidate: "string" },
};

/** Return a function that takes the next part of JSON. It returns whether there are too many values. */
export function counter() {
  let values = 0;
  let [quoted, escaped] = [false, false];
  /** @param {string | Uint8Array} part */
  return (part) => {
    for (let at = 0; at < part.length && values <= MAX_VALUES; at += 1) {
      const code = typeof part === "string" ? part.charCodeAt(at) : part[at];
      if (escaped || code === 92) escaped = !escaped;
      else if (code === 34) quoted = !quoted;
      else if (!quoted && (code === 44 || code === 91 || code === 123)) values += 1;
    }
    return values > MAX_VALUES;
  };
}

/** Parse JSON. A text that is too large, or needs too much memory, is a SyntaxError as well. @param {string} text */
export function parseBounded(text) {
  if (text.length > MAX_SIZE || counter()(text)) throw new SyntaxError(TOO_LARGE);
  return JSON.parse(text);
}
