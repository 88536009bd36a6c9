/* Files over a data channel each. */

import { dispatch, SignalError } from "./errors.js";
import { checkOptions } from "./signal-client.js";
import { read } from "./text.js";
import { deferred, onAbort } from "./timing.js";

/** @import { Fields, FileOptions, IncomingFile as PublicFile, Records } from "./types.d.ts" */

export const CHUNK = 65_536; // bytes, which every data channel accepts
export const BUFFER = 2 ** 20; // bytes that all files, or all messages, of a connection may have in the buffers
const FILE_PROTOCOL = "tornado-signal-file"; // of the channels of files
const MAX_INCOMING = 100; // files of one peer at a time
const READ = 2 ** 20; // bytes that are read at once
const PART = 256; // chunks that become a Blob, which a browser can keep on disk
// Media types that no browser runs, without parameters. XML, such as SVG, can contain scripts.
const HARMLESS = /^(?:(?:image|audio|video)\/[\w.-]+|text\/plain)(?=[ ;]|$)/i;
const UNKNOWN = "application/octet-stream";
const DRAINED_MS = 20; // between two checks of the buffers

/** The channels of a connection on which something is sent. */
class Senders {
  opening = 0; // channels that wait until they can be opened
  /** @type {Map<RTCDataChannel, () => void>} */ wakes = new Map(); // what makes the sender of each channel continue

  get areDrained() {
    return [...this.wakes.keys()].every(
      ({ readyState, bufferedAmount }) => readyState !== "open" || (bufferedAmount | 0) <= 0,
    );
  }

  /**
   * Open a channel once the others have sent all that is in their buffers. Otherwise Firefox can lose it without an error.
   * @param {() => RTCDataChannel} open @param {AbortSignal[]} signals that end the wait for them
   */
  async open(open, ...signals) {
    this.opening += 1;
    try {
      while (!this.areDrained && !signals.some(({ aborted }) => aborted))
        await new Promise((resolve) => setTimeout(resolve, DRAINED_MS));
      return open();
    } finally {
      this.opening -= 1;
      for (const wake of this.wakes.values()) wake();
    }
  }
}

/** @type {WeakMap<RTCPeerConnection, Senders>} */ const senders = new WeakMap();

/** @param {RTCPeerConnection} connection */
export function sendersOf(connection) {
  let found = senders.get(connection);
  if (!found) senders.set(connection, (found = new Senders()));
  return found;
}

/** @param {"refused" | "cancelled" | "interrupted"} reason */
const failure = (reason) => new SignalError(`file-${reason}`, `The file transfer was ${reason}`);

/** @param {RTCDataChannel} channel @param {Fields} message */
function post(channel, message) {
  if (channel.readyState === "open") channel.send(JSON.stringify(message));
}

/** @param {Blob} file @param {object} options */
export function checkFile(file, options) {
  if (typeof file?.arrayBuffer !== "function") {
    throw new SignalError("argument-invalid", "`sendFile` takes a File or a Blob; make one with `new Blob([data])`");
  }
  checkOptions(options, { signal: "object", onprogress: "function" });
}

/**
 * @template {object} Context @param {Files} files those of the connection @param {Blob & { name?: string }} file
 * @param {FileOptions<Context & { loaded: number, total: number }>} options
 * @param {Context} context fields of the progress
 */
export async function sendFile(files, file, options, context) {
  checkFile(file, options);
  const { signal = new AbortController().signal, onprogress = () => {} } = options;
  const { connection, over } = files;
  const senders = sendersOf(connection);
  const open = () => {
    signal.throwIfAborted();
    if (over.aborted) throw failure("interrupted");
    return connection.createDataChannel("file", { protocol: FILE_PROTOCOL });
  };
  const channel = await senders.open(open, over, signal);
  /** @type {Records["transfer"]} */ const state = {}; // what the other side has sent
  let wake = () => {};
  /** @param {() => unknown} condition */
  const until = async (condition) => {
    for (;;) {
      signal.throwIfAborted();
      if (state.cancel) throw failure(state.cancel === "refused" ? "refused" : "cancelled");
      if (condition()) return;
      if (over.aborted || channel.readyState === "closed") throw failure("interrupted");
      await new Promise((resolve) => (wake = () => resolve(0)));
    }
  };
  const awake = () => wake();
  senders.wakes.set(channel, awake);
  channel.onopen = channel.onbufferedamountlow = channel.onclose = awake;
  channel.onmessage = ({ data }) => {
    Object.assign(state, read(data, "transfer"));
    if (state.received || state.cancel) channel.close();
    wake();
  };
  const signals = [signal, over];
  const ends = signals.map((each) => onAbort(each, awake));
  files.sending += 1;
  try {
    await until(() => channel.readyState === "open");
    post(channel, { name: file.name ?? "", type: file.type, size: file.size });
    await until(() => state.accept);
    const ready = () => {
      const limit = (channel.bufferedAmountLowThreshold = Math.max(CHUNK, BUFFER / files.sending));
      return until(() => channel.readyState === "open" && channel.bufferedAmount <= limit && !senders.opening);
    };
    await transmit(channel, file, ready, (loaded) => onprogress({ ...context, loaded, total: file.size }));
    await until(() => state.received);
  } catch (error) {
    // The other side then closes the channel.
    if (channel.readyState === "open") post(channel, { cancel: "cancelled" });
    else channel.close();
    throw error;
  } finally {
    files.sending -= 1;
    senders.wakes.delete(channel);
    for (const end of ends) end();
  }
}

/** @param {RTCDataChannel} channel @param {Blob} blob @param {() => Promise<void>} ready waits for space */
export async function transmit(channel, blob, ready, report = (/** @type {number} */ _loaded) => {}) {
  for (let start = 0; start < blob.size; start += READ) {
    const block = await blob
      .slice(start, start + READ)
      .arrayBuffer()
      .catch((cause) => {
        throw new SignalError("file-unreadable", "The file can no longer be read", { cause });
      });
    for (let at = 0; at < block.byteLength; at += CHUNK) {
      await ready();
      const chunk = new Uint8Array(block, at, Math.min(CHUNK, block.byteLength - at));
      channel.send(chunk);
      report(start + at + chunk.length);
    }
  }
}

/** @typedef {(target: EventTarget, fields: object) => void} Offer dispatches the event of a file */

export class Files {
  sending = 0; // files that are being sent

  /**
   * @param {RTCPeerConnection} connection @param {AbortSignal} over aborted when the connection has ended
   * @param {(offer: Offer) => unknown} receive called with each file that the other side offers
   */
  constructor(connection, over, receive) {
    this.connection = connection;
    this.over = over;
    let incoming = 0;
    /** @param {RTCDataChannelEvent} event */
    const open = (event) => {
      const { channel } = event;
      if (channel.protocol !== FILE_PROTOCOL) return;
      event.stopImmediatePropagation?.(); // other channels are for the page; werift cannot stop events
      incoming += 1;
      channel.addEventListener("close", () => (incoming -= 1));
      channel.binaryType = "arraybuffer";
      if (incoming > MAX_INCOMING) channel.close();
      else receiveFile(channel, over, receive);
    };
    connection.addEventListener("datachannel", open, { signal: over });
  }
}

/** @param {RTCDataChannel} channel @param {AbortSignal} over @param {(offer: Offer) => unknown} receive */
export function receiveFile(channel, over, receive) {
  channel.onmessage = ({ data }) => {
    const header = read(data, "file");
    if (!header || !Number.isInteger(header.size) || header.size < 0) return channel.close();
    const file = new IncomingFile(channel, over, header);
    receive((target, fields) => {
      if (!dispatch(target, "file", { ...fields, file })) file.cancel(); // no listener reads it from the event
    });
  };
}

/** @implements {PublicFile} */
class IncomingFile extends EventTarget {
  #channel;
  #accepted = false;
  #stop = new AbortController();
  #ended = this.#stop.signal; // fires when the transfer has ended
  /** @type {BlobPart[]} */ #parts = [];
  /** @type {ArrayBuffer[]} */ #chunks = []; // received after the last part
  /** @type {ReturnType<typeof deferred<File>>} */ #file = deferred();
  received = 0;

  /** @param {RTCDataChannel} channel @param {AbortSignal} over @param {Records["file"]} header */
  constructor(channel, over, { name, type, size }) {
    super();
    this.#channel = channel;
    this.name = name;
    this.type = (HARMLESS.exec(type)?.[0] ?? UNKNOWN).toLowerCase();
    this.size = size;
    const lose = () => this.#end(failure("interrupted"));
    channel.onmessage = ({ data }) => this.#take(data);
    channel.onclose = lose;
    onAbort(this.#ended, onAbort(over, lose));
  }

  accept() {
    if (!this.#accepted && !this.#ended.aborted) {
      this.#accepted = true;
      post(this.#channel, { accept: true });
      this.#finish();
    }
    return this.#file.promise;
  }

  cancel() {
    if (!this.#ended.aborted) post(this.#channel, { cancel: this.#accepted ? "cancelled" : "refused" });
    this.#end(failure("cancelled"));
  }

  /** @param {string | ArrayBuffer} data */
  #take(data) {
    if (typeof data === "string") {
      if (!read(data, "transfer")?.cancel) return;
      this.#channel.close();
      return this.#end(failure("cancelled"));
    }
    if (this.#ended.aborted) return;
    // Nothing is kept that this side has not accepted.
    if (!this.#accepted || this.received + data.byteLength > this.size) return this.cancel();
    this.received += data.byteLength;
    if (this.#chunks.push(data) >= PART) this.#parts.push(new Blob(this.#chunks.splice(0)));
    this.dispatchEvent(new Event("progress"));
    this.#finish();
  }

  #finish() {
    if (this.received < this.size || this.#ended.aborted) return;
    this.#file.resolve(new File([...this.#parts, ...this.#chunks], this.name, { type: this.type }));
    post(this.#channel, { received: true });
    this.#end();
  }

  /** @param {Error} [error] */
  #end(error) {
    if (this.#ended.aborted) return;
    this.#stop.abort();
    if (error) this.#file.reject(error);
    this.#parts = [];
    this.#chunks = [];
    this.dispatchEvent(new Event("close"));
  }
}
