// What two demo pages say to each other over a data channel: names, chat, and files in pieces.

const PIECE = 64 * 1024; // what every browser takes as one message
const HIGH = 1024 * 1024; // bytes on their way before the sender waits
const LOW = 256 * 1024; // and goes on
const MAX_FILE = 512 * 1024 * 1024; // it is kept in memory

/**
 * Events: `name` (name), `text` (text), `sending` and `receiving` (file: {name, size, done}), `received` (file, blob),
 * `refused` (reason).
 */
export class Talk extends EventTarget {
  #channel;
  #incoming; // {name, size, done, pieces} of the file that is being received
  #turn = Promise.resolve(); // files go one after the other

  constructor(channel, name) {
    super();
    this.#channel = channel;
    channel.bufferedAmountLowThreshold = LOW;
    channel.addEventListener("message", ({ data }) => (typeof data === "string" ? this.#hear(data) : this.#take(data)));
    this.#say({ type: "name", name });
  }

  say(text) {
    this.#say({ type: "text", text });
  }

  /** Send a file after those before it; resolves when its last piece is on its way, rejects if the channel closes. */
  send(file) {
    const sent = this.#turn.then(() => this.#send(file));
    this.#turn = sent.catch(() => {});
    return sent;
  }

  async #send(file) {
    if (file.size > MAX_FILE) throw new Error(`${file.name} is too large: this page sends up to 512 MB`);
    const state = { name: file.name, size: file.size, done: 0 };
    this.#say({ type: "file", name: file.name, size: file.size });
    this.#tell("sending", { file: state });
    while (state.done < file.size) {
      const piece = await file.slice(state.done, state.done + PIECE).arrayBuffer();
      await this.#room();
      this.#channel.send(piece);
      state.done += piece.byteLength;
      this.#tell("sending", { file: state });
    }
  }

  /** Wait until there is room for more: what is sent too fast fills the memory, and then the channel fails. */
  #room() {
    const channel = this.#channel;
    if (channel.readyState !== "open") throw new Error("The connection ended before the file was through");
    if (channel.bufferedAmount <= HIGH) return undefined;
    return new Promise((resolve, reject) => {
      const stop = new AbortController();
      const { signal } = stop;
      const end = (settle, value) => {
        stop.abort();
        settle(value);
      };
      const lost = () => end(reject, new Error("The connection ended before the file was through"));
      channel.addEventListener("bufferedamountlow", () => end(resolve), { signal });
      channel.addEventListener("close", lost, { signal });
    });
  }

  #hear(data) {
    let said;
    try {
      said = JSON.parse(data);
    } catch {
      said = null;
    }
    const { type, text, name, size } = Object(said);
    if (type === "name") {
      this.#tell("name", { name: String(name) });
    } else if (type === "file" && size <= MAX_FILE) {
      this.#incoming = { name: String(name), size, done: 0, pieces: [] };
      this.#progress();
    } else if (type === "file") {
      this.#tell("refused", { reason: `${name} is too large for this page` });
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

  #say(message) {
    this.#channel.send(JSON.stringify(message));
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}
