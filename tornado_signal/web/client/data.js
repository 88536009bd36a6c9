/* The messages of an application over one data channel. */

import { SignalError, temporary } from "./errors.js";
import { BUFFER, CHUNK, sendersOf, transmit } from "./files.js";
import { parse, read, utf8 } from "./text.js";
import { onAbort } from "./timing.js";

/** @import { Description, ErrorCode, Peer as PublicPeer } from "./types.d.ts" */

const MARK = "\u001e"; // precedes JSON, as in RFC 7464. Text that begins with it is also sent as JSON
const TEXT = new TextDecoder("utf-8", { ignoreBOM: true });
const SMALL = 16_384; // bytes of a message, which every implementation takes
const WHOLE = 262_144; // bytes of the largest message that is not split
const MAX_MESSAGE = 67_108_864; // bytes of a message
const MAX_WAITING = MAX_MESSAGE + BUFFER; // bytes of the messages that wait for a peer, before another one
const OVERHEAD = 256; // bytes of memory that each of them takes in addition
const CLOSE_MS = 2000; // for the other side to receive something of what was sent
const MAX_CLOSE_MS = 60_000; // for it to receive all

/** @type {WeakMap<RTCPeerConnection, number>} */
const announced = new WeakMap(); // bytes of the largest message that the other side joins from parts

/** Bytes of the largest message that the other side announces. @param {RTCPeerConnection} connection */
const maxSizeOf = ({ sctp }) => sctp?.maxMessageSize || Infinity;

/** The fields of a description for the other side. @param {RTCSessionDescriptionInit} description */
export const announce = ({ type, sdp }) => ({ type, sdp, joins: MAX_MESSAGE });

/**
 * Read what the other side announces, and return its description. Fail if it has not sent one.
 * @param {RTCPeerConnection} connection @param {Description} [description]
 */
export function heed(connection, description) {
  if (!description) throw new SyntaxError("The other side sent no description");
  announced.set(connection, Math.max(Math.min(description.joins ?? 0, MAX_MESSAGE), 0));
  return description;
}

/**
 * Run a task for each recipient. Rejects when all have ended, with an error of this code or with that of the only one.
 * @template {{ peer?: PublicPeer }} Each @param {Each[]} recipients @param {(each: Each) => Promise<void>} task
 * @param {ErrorCode | false} [code]
 */
export function toEach(recipients, task, code) {
  /** @type {Error[]} */ const errors = [];
  const tasks = recipients.map((each) =>
    task(each).catch((error) => errors.push(Object.assign(error, { peer: each.peer }))),
  );
  const all = Promise.all(tasks).then(() => {
    if (!errors.length) return;
    throw code ? Object.assign(new SignalError(code, "Not all peers received it"), { errors }) : errors[0];
  });
  all.catch(() => {}); // in Node.js a slow peer would end a program that does not wait
  return all;
}

/**
 * Send a message as described in client.d.ts. An error of the arguments rejects as well.
 * @param {unknown} data @param {() => { messages: Messages, peer?: PublicPeer }[]} choose
 * @param {ErrorCode | false} [code] @returns {Promise<void>}
 */
export function send(data, choose, code) {
  try {
    const recipients = choose();
    const message = serialize(data);
    const size = sizeOf(message);
    for (const { messages } of recipients) {
      const [, limit] = messages.limits;
      const text = `The message has ${size} bytes, more than ${limit}: use sendFile`;
      if (size > limit) throw new SignalError("message-too-large", text);
    }
    /** @type {Blob | undefined} */ let copy;
    const copied = () => (copy ??= message instanceof Blob ? message : new Blob([/** @type {string} */ (message)]));
    return toEach(recipients, ({ messages }) => messages.send(message, size, copied), code);
  } catch (error) {
    return Promise.reject(error);
  }
}

export class Messages {
  #connection;
  #senders;
  /** @type {RTCDataChannel & { send(message: unknown): void }} */ #channel; // the DOM declares no union of what it sends
  #over;
  #slow;
  #sent = Promise.resolve();
  #waiting = 0; // bytes of memory of the messages that wait
  #chunks = 0; // handed to the channel
  #wake = () => {};
  /** @type {{ bytes: Uint8Array<ArrayBuffer>, at: number, size: number, text: boolean } | undefined} */
  #incomplete; // received so far; the bytes have room for more

  /**
   * @param {RTCPeerConnection} connection @param {RTCDataChannel} channel
   * @param {AbortSignal} over aborted when the connection has ended
   * @param {(error: SignalError) => void} slow called when messages are lost because too many wait
   */
  constructor(connection, channel, over, slow = () => {}) {
    this.#connection = connection;
    this.#senders = sendersOf(connection);
    this.#channel = channel;
    this.#over = over;
    this.#slow = slow;
    this.use(channel);
    onAbort(over, () => this.#wake());
  }

  /** Use a channel from now on. @param {RTCDataChannel} channel */
  use(channel) {
    const { wakes } = this.#senders;
    wakes.delete(this.#channel);
    this.#channel = channel;
    channel.binaryType = "arraybuffer";
    channel.bufferedAmountLowThreshold = CHUNK;
    const wake = () => this.#wake();
    for (const name of ["bufferedamountlow", "open", "close"]) channel.addEventListener(name, wake);
    wakes.set(channel, wake);
    channel.addEventListener("close", () => wakes.delete(channel));
  }

  /** Bytes of the largest message that is sent whole, and of the largest one. Parts need an ordered, reliable channel. */
  get limits() {
    const { ordered, maxPacketLifeTime, maxRetransmits } = this.#channel;
    const parts = ordered && (maxPacketLifeTime ?? maxRetransmits ?? -1) < 0 && announced.get(this.#connection);
    const channels = Math.max(maxSizeOf(this.#connection), SMALL);
    const whole = parts ? Math.min(channels, WHOLE) : channels;
    return [whole, Math.max(whole, parts || 0)];
  }

  get #isFull() {
    const { readyState, bufferedAmount } = this.#channel;
    // After empty messages on a channel without parts, Firefox counts below 0 in an unsigned number of 32 bits.
    return readyState === "connecting" || (bufferedAmount | 0) > BUFFER || this.#senders.opening > 0;
  }

  /**
   * Send a message at once if there is space, otherwise after the earlier ones.
   * @param {string | Blob | ArrayBuffer | ArrayBufferView} message @param {number} size @param {() => Blob} copy
   */
  async send(message, size, copy) {
    if (size <= SMALL && size > maxSizeOf(this.#connection)) return; // a peer that takes less must not silence the others
    const [whole, most] = this.limits;
    // Firefox counts -1 byte for an empty message. So one is sent as a message in parts that has none.
    const isWhole = size <= whole && (size > 0 || whole === most);
    const isText = typeof message === "string";
    try {
      if (!this.#waiting && !this.#isFull && isWhole && !(message instanceof Blob)) this.#channel.send(message);
      else await this.#enqueue(isText && isWhole ? message : copy(), size, isWhole, isText);
    } catch (cause) {
      if (this.#over.aborted || /clos/.test(this.#channel.readyState)) return;
      if (cause instanceof SignalError) throw cause;
      throw new SignalError("message-failed", "The message was not sent", { cause });
    }
  }

  /** @param {string | Blob} message @param {number} size @param {boolean} isWhole @param {boolean} text */
  #enqueue(message, size, isWhole, text) {
    if (this.#waiting > MAX_WAITING) {
      const error = temporary(new SignalError("peer-slow", "More than 64 MiB wait for the peer"));
      this.#slow(error);
      this.#slow = () => {};
      throw error;
    }
    this.#waiting += size + OVERHEAD;
    const sent = this.#sent.then(async () => {
      const bytes = isWhole && message instanceof Blob ? await message.arrayBuffer() : message;
      await this.#ready();
      if (isWhole) return this.#channel.send(bytes);
      this.#channel.send(`${MARK}${MARK}${JSON.stringify({ size, text })}`);
      return transmit(this.#channel, /** @type {Blob} */ (message), () => this.#ready());
    });
    const release = () => void (this.#waiting -= size + OVERHEAD);
    this.#sent = sent.then(release, release);
    return sent;
  }

  /** Wait for space in the buffer of the channel. */
  async #ready() {
    this.#chunks += 1;
    while (this.#isFull) {
      this.#over.throwIfAborted(); // nothing would end the wait
      await new Promise((resolve) => (this.#wake = () => resolve(0)));
    }
  }

  /** Close the channel after what still must be sent. Resolves when it is closed, or too slow. */
  async close() {
    const channel = this.#channel;
    this.#sent.then(() => channel.close());
    const over = new Promise((resolve) => onAbort(this.#over, () => resolve(0)));
    let before;
    for (let ms = 0; ms < MAX_CLOSE_MS && !this.#over.aborted; ms += CLOSE_MS) {
      const sent = this.#chunks * CHUNK - channel.bufferedAmount;
      if (sent === before) break;
      before = sent;
      await Promise.race([over, new Promise((resolve) => setTimeout(resolve, CLOSE_MS))]);
    }
  }

  /** Take received data. Returns a message, or undefined while parts are missing. @param {string | ArrayBuffer} data */
  take(data) {
    let message = this.#incomplete;
    this.#incomplete = undefined; // also by another message in the middle
    if (typeof data === "string") {
      const header = data.startsWith(MARK + MARK) ? read(data.slice(2), "parts") : undefined;
      if (!header || !Number.isInteger(header.size) || header.size < 0 || header.size > MAX_MESSAGE) {
        return { data: decode(data), size: data.length };
      }
      message = { ...header, bytes: new Uint8Array(), at: 0 };
    } else {
      const { byteLength: size } = data;
      if (!message) return { data: ArrayBuffer.isView(data) ? new Uint8Array(data).buffer : data, size }; // a Buffer of werift
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
    if (at === size) return { data: text ? decode(TEXT.decode(bytes)) : bytes.buffer, size };
    this.#incomplete = message;
  }
}

/** @param {unknown} data */
function serialize(data) {
  if (data instanceof Blob || data instanceof ArrayBuffer || ArrayBuffer.isView(data)) return data;
  if (typeof data === "string" && !data.startsWith(MARK)) return data;
  let cause;
  try {
    const json = JSON.stringify(data);
    if (json !== undefined) return MARK + json;
  } catch (error) {
    cause = error; // a BigInt or a circular value
  }
  throw new SignalError("invalid-message", `A value of type ${typeof data} has no JSON`, { cause });
}

/** @param {string | Blob | ArrayBuffer | ArrayBufferView} message */
function sizeOf(message) {
  if (typeof message === "string") return utf8(message).length;
  return "size" in message ? message.size : message.byteLength;
}

/** @param {unknown} data @returns {unknown} */
function decode(data) {
  if (typeof data !== "string" || !data.startsWith(MARK)) return data;
  try {
    return parse(data.slice(1));
  } catch {
    return data; // of a program that does not use the mark
  }
}
