/** A WebSocket whose server responds with what a test sets, by the name of a method. */

import "./virtual_time.js";

export const sockets = [];

export class Socket extends EventTarget {
  static replies = {};
  static opens = 0; // after this time in milliseconds, or never
  readyState = 1;
  closed = false;
  sent = [];

  constructor() {
    super();
    sockets.push(this);
    const { opens } = this.constructor;
    setTimeout(() => (opens === undefined ? this.onclose?.({ code: 1006, reason: "" }) : this.onopen?.()), opens);
  }

  send(text) {
    const message = JSON.parse(text);
    this.sent.push(message);
    const { id, method } = message;
    const reply = this.constructor.replies[method];
    if (id && reply) setTimeout(() => this.receive({ id, ...reply }));
  }

  receive(frame) {
    this.onmessage?.({ data: typeof frame === "string" ? frame : JSON.stringify(frame) });
  }

  close() {
    this.closed = true;
  }

  /** The names of the methods that the client has called, in order. */
  get methods() {
    return this.sent.map(({ method }) => method);
  }
}

/** Let a test use it. */
export function useSocket() {
  globalThis.WebSocket = Socket;
  Object.assign(Socket, { replies: {}, opens: 0 });
  sockets.length = 0;
}
