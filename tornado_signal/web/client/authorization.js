/* Tokens (docs/authorization.md), and the headers of requests. */

import { refusal } from "./errors.js";
import { notLoaded } from "./parts.js";
import { now } from "./timing.js";

/** @import { TokenSource } from "../client.d.ts" */
/** @import { Socket } from "./socket.js" */

export const JSON_BODY = { "Content-Type": "application/json" };

/** @param {string} token @returns {Record<string, string>} */
export const bearer = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

/** The current token of all clients with the same source of tokens. */
export class Authorization {
  #source;
  #renewAtMs = 0;
  /** @type {Promise<void> | undefined} */ #renewing;
  token = "";
  /** @type {Map<string, Socket>} */ sockets = new Map(); // by the URL of the server

  /** @param {TokenSource} source */
  constructor(source) {
    this.#source = source;
  }

  /** Run a task, and again with a new token after a 401. @template T @param {(token: string) => Promise<T>} task */
  async use(task) {
    if (now() >= this.#renewAtMs) await this.#renew();
    const { token } = this;
    try {
      return await task(token);
    } catch (error) {
      if (refusal(error).status !== 401) throw error;
      if (token === this.token) await this.#renew(); // otherwise another call has renewed it
      if (token === this.token) throw error;
      return task(this.token);
    }
  }

  #renew() {
    this.#renewing ??= this.#ask().finally(() => (this.#renewing = undefined));
    return this.#renewing;
  }

  async #ask() {
    const source = this.#source;
    if (typeof source === "string") {
      this.token = source;
      this.#renewAtMs = Infinity;
      return;
    }
    const { ask, renewalMs } = await import("./tokens.js").catch(notLoaded);
    this.token = await ask(source, this.token);
    this.#renewAtMs = renewalMs(this.token);
  }
}

const without = new Authorization("");
/** @type {Map<string, Authorization>} */ const texts = new Map();
/** @type {WeakMap<() => string | Promise<string>, Authorization>} */ const functions = new WeakMap();

/** @param {TokenSource} [source] */
export function authorizationOf(source) {
  if (!source) return without;
  const known = /** @type {Map<TokenSource, Authorization>} */ (typeof source === "function" ? functions : texts);
  const found = known.get(source) ?? new Authorization(source);
  known.set(source, found);
  return found;
}
