// Messages between two demo pages over a data channel: chat, and files in chunks.

const PIECE = 64 * 1024; // a message size that every browser accepts
const HIGH = 1024 * 1024; // buffered bytes at which the sender waits
const LOW = 256 * 1024; // buffered bytes at which it continues
const MAX_FILE = 512 * 1024 * 1024; // the receiver keeps it in memory

/**
 * Events: `text` (text); of a file, {name, size, done}, that comes: `receiving` (file), then `received` (file, blob) or
 * `broken` (file, reason); `refused` (reason).
 */
export class Talk extends EventTarget {
  #channel;
  #incoming; // {name, size, done, pieces} of the file that is being received
  #turn = Promise.resolve(); // files go one after the other

  constructor(channel) {
    super();
    this.#channel = channel;
    channel.bufferedAmountLowThreshold = LOW;
  }

  say(text) {
    this.#say({ type: "text", text });
  }

  /**
   * Send a file after those before it; `progress` is called with the number of bytes that are on their way. Resolves
   * with the last one; rejects if the file cannot be read, or the channel closes.
   */
  send(file, progress) {
    const sent = this.#turn.then(() => this.#send(file, progress));
    this.#turn = sent.catch(() => {});
    return sent;
  }

  async #send(file, progress) {
    if (file.size > MAX_FILE) throw new Error("it is too large, this page sends up to 512 MB");
    this.#open();
    this.#say({ type: "file", name: file.name, size: file.size });
    progress(0);
    for (let done = 0; done < file.size; done += PIECE) {
      const piece = await file
        .slice(done, done + PIECE)
        .arrayBuffer()
        .catch(() => {
          if (this.#channel.readyState === "open") this.#say({ type: "broken" });
          throw new Error("the browser cannot read it any more");
        });
      await this.#space();
      this.#channel.send(piece);
      progress(done + piece.byteLength);
    }
  }

  #open() {
    if (this.#channel.readyState !== "open") throw new Error("the connection ended before it was through");
  }

  /** Wait until there is space for more: what is sent too fast fills the memory, and then the channel fails. */
  async #space() {
    const channel = this.#channel;
    if (channel.bufferedAmount > HIGH) {
      const stop = new AbortController();
      const { signal } = stop;
      await new Promise((resolve) => {
        for (const name of ["bufferedamountlow", "close"]) channel.addEventListener(name, resolve, { signal });
      });
      stop.abort();
    }
    this.#open();
  }

  /** Take a message of the other side. */
  take(data) {
    if (typeof data === "string") this.#hear(data);
    else this.#take(data);
  }

  #hear(data) {
    let said;
    try {
      said = JSON.parse(data);
    } catch {
      said = null;
    }
    const { type, text, name, size } = Object(said);
    if (type === "file" && size <= MAX_FILE) {
      this.#incoming = { name: String(name), size, done: 0, pieces: [] };
      this.#progress();
    } else if (type === "file") {
      this.#tell("refused", { reason: `${name} is too large for this page` });
    } else if (type === "broken") {
      this.#broken("it could not be read any more on the other side");
    } else {
      this.#tell("text", { text: type === "text" ? String(text) : data }); // another program may say anything
    }
  }

  #take(piece) {
    const file = this.#incoming;
    if (!file) return; // of a file that was refused
    file.pieces.push(piece);
    file.done += piece.byteLength;
    this.#progress();
  }

  #progress() {
    const file = this.#incoming;
    this.#tell("receiving", { file });
    if (file.done < file.size) return;
    this.#incoming = undefined;
    this.#tell("received", { file, blob: new Blob(file.pieces) });
  }

  /** The connection has ended. */
  end() {
    this.#broken("the connection ended before it was through");
  }

  #broken(reason) {
    const file = this.#incoming;
    this.#incoming = undefined;
    if (file) this.#tell("broken", { file, reason });
  }

  #say(message) {
    this.#channel.send(JSON.stringify(message));
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}
