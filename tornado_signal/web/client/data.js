/* The data of an application: messages over one data channel, and files (files.js) over a channel each. */

import { parse, read, utf8 } from "./text.js";
import { CLOSE_MS, MAX_CLOSE_MS, notLoaded, PeerError } from "./timing.js";

/** @import { FileOptions } from "../client.d.ts" */
/** @import { Offer } from "./files.js" */
/** @import { Description } from "./types.d.ts" */

const MARK = "\u001e"; // precedes JSON, as in RFC 7464. Text that begins with it is also sent as JSON
const TEXT = new TextDecoder("utf-8", { ignoreBOM: true });
export const PROTOCOL = "tornado-signal-file"; // of the data channels
const SMALL = 16_384; // bytes of a message, which every implementation takes
export const CHUNK = 65_536; // bytes, which every browser accepts
const READ = 2 ** 20; // bytes that are read at once
export const BUFFER = 2 ** 20; // bytes that all files, or all messages, of a connection may have in the buffers
const WHOLE = 262_144; // bytes of the largest message that is not split
const MAX_MESSAGE = 67_108_864; // bytes of a message
const MAX_INCOMING = 100; // files of one peer at a time

export const loadFiles = () => import("./files.js").catch(notLoaded);

/** @type {WeakMap<RTCPeerConnection, number>} */
const announced = new WeakMap(); // bytes of the largest message that the other side joins from parts

/**
 * The fields of a description for the other side.
 *
 * @param {RTCSessionDescriptionInit} description
 */
export const announce = ({ type, sdp }) => ({ type, sdp, joins: MAX_MESSAGE });

/**
 * Read what the other side announces, and return its description. Fail if it has not sent one.
 *
 * @param {RTCPeerConnection} connection
 * @param {Description} [description]
 */
export function heed(connection, description) {
  if (!description) throw new SyntaxError("The other side sent no description");
  announced.set(connection, Math.max(Math.min(description.joins ?? 0, MAX_MESSAGE), 0));
  return description;
}

/**
 * Send a message to all. Fails before anything is sent if a connection cannot carry it. Resolves when all of it is in
 * the buffers of the channels, or lost with its connection.
 *
 * @param {unknown} data
 * @param {Messages[]} recipients
 * @returns {Promise<void>}
 */
export function send(data, recipients) {
  const message = /** @type {string} */ (serialize(data)); // `send` is declared for each type, but not for their union
  const size = sizeOf(message);
  for (const each of recipients) {
    const [, limit] = each.limits;
    if (size <= limit) continue;
    const text = `The message has ${size} bytes, more than ${limit}: use sendFile`;
    throw new PeerError("message-too-large", text);
  }
  /** @type {Blob | undefined} */
  let copy;
  const copied = () => (copy ??= new Blob([message]));
  return Promise.all(recipients.map((each) => each.send(message, size, copied))).then(() => {});
}

/** The messages of one connection, in both directions. */
export class Messages {
  #connection;
  #channel;
  #over;
  #sent = Promise.resolve();
  #waiting = 0; // messages
  #chunks = 0; // handed to the channel
  #wake = () => {};
  /** @type {{ bytes: Uint8Array<ArrayBuffer>, at: number, size: number, text: boolean } | undefined} */
  #incomplete; // received so far; the bytes have room for more

  /**
   * @param {RTCPeerConnection} connection
   * @param {RTCDataChannel} channel
   * @param {AbortSignal} over aborted when the connection has ended
   */
  constructor(connection, channel, over) {
    this.#connection = connection;
    this.#channel = channel;
    this.#over = over;
    const wake = () => this.#wake();
    channel.addEventListener("bufferedamountlow", wake);
    over.addEventListener("abort", wake);
  }

  get #announced() {
    return this.#connection.sctp?.maxMessageSize || Infinity;
  }

  /** Bytes of the largest message that is sent whole, and of the largest one. Parts need an ordered, reliable channel. */
  get limits() {
    const { ordered, maxPacketLifeTime, maxRetransmits } = this.#channel;
    const parts = ordered && (maxPacketLifeTime ?? maxRetransmits ?? -1) < 0 && announced.get(this.#connection);
    const channels = Math.max(this.#announced, SMALL);
    const whole = parts ? Math.min(channels, WHOLE) : channels;
    return [whole, Math.max(whole, parts || 0)];
  }

  /**
   * @param {string} message
   * @param {number} size
   * @param {() => Blob} copy
   */
  send(message, size, copy) {
    if (size <= SMALL && size > this.#announced) return; // a peer that takes less must not silence the others
    if (!this.#waiting && size <= this.limits[0]) return this.#channel.send(message);
    const blob = copy();
    this.#waiting += 1;
    const ignore = () => {}; // the connection has ended
    const transmitted = this.#sent.then(() => this.#transmit(blob, typeof message === "string")).catch(ignore);
    return (this.#sent = transmitted.then(() => void (this.#waiting -= 1)));
  }

  /**
   * @param {Blob} message
   * @param {boolean} text
   */
  #transmit(message, text) {
    const channel = this.#channel;
    channel.bufferedAmountLowThreshold = CHUNK;
    channel.send(`${MARK}${MARK}${JSON.stringify({ size: message.size, text })}`);
    return transmit(channel, message, async () => {
      this.#over.throwIfAborted(); // nothing would end the wait
      this.#chunks += 1;
      if (channel.bufferedAmount > BUFFER) await new Promise((resolve) => (this.#wake = () => resolve(0)));
    });
  }

  /** Close the channel after what still must be sent. Resolves when it is closed, or too slow. */
  async close() {
    const channel = this.#channel;
    this.#sent.then(() => channel.close());
    const over = new Promise((resolve) => this.#over.addEventListener("abort", resolve));
    let before;
    for (let ms = 0; ms < MAX_CLOSE_MS && !this.#over.aborted; ms += CLOSE_MS) {
      const sent = this.#chunks * CHUNK - channel.bufferedAmount;
      if (sent === before) break;
      before = sent;
      await Promise.race([over, new Promise((resolve) => setTimeout(resolve, CLOSE_MS))]);
    }
  }

  /**
   * Take a string or bytes of the other side. Returns the `data` of a message, or undefined while parts are missing.
   *
   * @param {string | ArrayBuffer} data
   */
  take(data) {
    let message = this.#incomplete;
    this.#incomplete = undefined; // also by another message in the middle
    if (typeof data === "string") {
      const header = data.startsWith(MARK + MARK) ? read(data.slice(2), "parts") : undefined;
      if (!header || !Number.isInteger(header.size) || header.size < 0 || header.size > MAX_MESSAGE) {
        return { data: decode(data) };
      }
      message = { ...header, bytes: new Uint8Array(), at: 0 };
    } else {
      if (!message) return { data: ArrayBuffer.isView(data) ? new Uint8Array(data).buffer : data }; // a Buffer of werift
      const end = message.at + data.byteLength;
      if (end > message.size) return;
      if (end > message.bytes.length) {
        const { bytes } = message;
        message.bytes = new Uint8Array(Math.min(message.size, 2 * end)); // a header alone takes no memory
        message.bytes.set(bytes);
      }
      message.bytes.set(new Uint8Array(data), message.at);
      message.at = end;
    }
    const { bytes, at, size, text } = message;
    if (at === size) return { data: text ? decode(TEXT.decode(bytes)) : bytes.buffer };
    this.#incomplete = message;
  }
}

/**
 * Send the bytes of a Blob over a channel.
 *
 * @param {RTCDataChannel} channel
 * @param {Blob} blob
 * @param {() => Promise<void>} ready waits for space in the channel's buffer
 * @param {(loaded: number) => void} report
 */
export async function transmit(channel, blob, ready, report = () => {}) {
  for (let start = 0; start < blob.size; start += READ) {
    const block = await blob.slice(start, start + READ).arrayBuffer();
    for (let at = 0; at < block.byteLength; at += CHUNK) {
      await ready();
      const chunk = new Uint8Array(block, at, Math.min(CHUNK, block.byteLength - at));
      channel.send(chunk);
      report(start + at + chunk.length);
    }
  }
}

/** @param {unknown} data */
function serialize(data) {
  if (data instanceof Blob || data instanceof ArrayBuffer || ArrayBuffer.isView(data)) return data;
  if (typeof data === "string" && !data.startsWith(MARK)) return data;
  const json = JSON.stringify(data);
  if (json !== undefined) return MARK + json;
  throw new PeerError("invalid-message", `Cannot send a value of type ${typeof data}`);
}

/** @param {string | Blob | ArrayBuffer | ArrayBufferView} message */
function sizeOf(message) {
  if (typeof message === "string") return utf8(message).length;
  return "size" in message ? message.size : message.byteLength;
}

/**
 * Decode a message of the other side.
 *
 * @param {unknown} data
 * @returns {unknown}
 */
function decode(data) {
  if (typeof data !== "string" || !data.startsWith(MARK)) return data;
  try {
    return parse(data.slice(1));
  } catch {
    return data; // of a program that does not use the mark
  }
}

/** The files of one connection, in both directions. The transfers themselves are in files.js. */
export class Files {
  /**
   * @param {RTCPeerConnection} connection
   * @param {AbortSignal} over aborted when the connection has ended
   * @param {(offer: Offer) => unknown} receive called with each file that the other side offers
   */
  constructor(connection, over, receive) {
    this.connection = connection;
    this.over = over;
    this.sending = 0; // files that are being sent
    let incoming = 0;
    /** @param {RTCDataChannelEvent} event */
    const open = async (event) => {
      const { channel } = event;
      if (channel.protocol !== PROTOCOL) return;
      event.stopImmediatePropagation?.(); // other channels are for the page; werift cannot stop events
      incoming += 1;
      channel.addEventListener("close", () => (incoming -= 1));
      if (incoming > MAX_INCOMING) return channel.close();
      /** @type {MessageEvent[]} */
      const early = []; // a file's description, and one more message, while files.js is being loaded
      channel.binaryType = "arraybuffer";
      channel.onmessage = (message) => (early.length < 2 ? early.push(message) : channel.close());
      try {
        (await loadFiles()).receiveFile(this, channel, early, receive);
      } catch (error) {
        channel.close();
        throw error;
      }
    };
    connection.addEventListener("datachannel", open, { signal: over });
  }

  /**
   * Send a file. Resolves when the other side has all of it.
   *
   * @template {object} Context
   * @param {Blob & { name?: string }} file
   * @param {FileOptions<Context & { loaded: number, total: number }>} options
   * @param {Context} context fields of the progress
   */
  async send(file, options, context) {
    return (await loadFiles()).sendFile(this, file, options, context);
  }
}
