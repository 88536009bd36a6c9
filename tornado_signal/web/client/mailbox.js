/* The beacons of this page in a room, the mail to them, and how both are sealed. */

import { taken } from "./errors.js";
import { ownInfo, random, scopeOf, seal, unseal, VERSION } from "./identity.js";
import { publishHeld } from "./servers.js";
import { backOff, Deadline, makePace, retry, sleep, WAIT_S } from "./timing.js";

/** @import { Identity } from "./identity.js" */
/** @import { Cipher } from "./secret.js" */
/** @import { Membership } from "./room.js" */
/** @import { Servers } from "./servers.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Fields, Mailbox, Session } from "./types.d.ts" */

const MAX_MAILS = 250; // valid ones to one beacon; a quarter of the server's limit
const MAX_TEXTS = 750; // to one beacon, with those that are not valid
const MAX_TEXTS_SIZE = 2 ** 18; // UTF-16 code units of them, of up to three bytes; the server takes a mebibyte
export const ALIVE_MS = 5000; // for a sign of life, and for which a replaced beacon is still read
const CLOCK_MS = 30_000; // by which this page's clock may differ from the server's

/** The beacons of this page, of which the last one counts. */
export class Mailboxes {
  /** @type {Identity | undefined} */ identity;
  /** @type {Cipher | undefined} */ cipher; // of a room with a password
  since = 0; // when this page entered, by the server's clock; 0 if it does not know that yet
  #room;
  #secret = random(); // of the beacons
  #at = 0; // when the beacon was created
  #clockMs = 0; // what this page's clock lacks, compared with the server's
  #corrections = 0; // of it, one after another
  #sinceSent = false; // whether the beacon contains `since`
  /** @type {Map<string, number>} */ #offers = new Map(); // of the beacons, and the times in them until they are seen
  /** @type {Set<Mailbox>} */ #all = new Set();
  /** @type {Mailbox | undefined} */ #current;

  /** @param {string} origin @param {string} topic @param {Membership} room */
  constructor(origin, topic, room) {
    this.origin = origin;
    this.topic = topic;
    this.#room = room;
  }

  /** The first lines of what members of the room sign. */
  get scope() {
    return scopeOf(this.origin, this.topic);
  }

  /** Publish a beacon, which replaces the others. @param {SignalClient} client @param {AbortSignal} signal */
  async publish(client, signal) {
    const { target, options } = this.#room;
    const { me, info = ownInfo() } = options;
    this.#at = Math.max(Date.now(), this.#at + 1); // also after the clock was set back
    const serverMs = Date.now() + this.#clockMs;
    this.#sinceSent = this.since > 0;
    const since = Math.min(this.since, serverMs) || undefined;
    const beacon = { v: VERSION, id: target.id, at: this.#at, now: serverMs, since, me };
    const offer = await this.#seal(this.cipher ? { ...beacon, info } : beacon);
    this.#offers.set(offer, serverMs);
    const fields = { info: this.cipher ? "-" : info, offer, secret: this.#secret };
    const held = await publishHeld(client, this.topic, fields);
    const replaced = [...this.#all];
    /** @type {Mailbox} */ const mailbox = {
      ...held,
      client,
      offer,
      deadline: new Deadline(signal),
      nonces: new Set(),
      full: () => {},
      untested: 0,
    };
    this.#all.add(mailbox);
    if (signal.aborted) this.#withdraw(mailbox);
    signal.throwIfAborted();
    this.#current = mailbox;
    for (const each of replaced) {
      // Mail to it can be on its way.
      sleep(0, each.deadline.signal, ALIVE_MS)
        .catch(() => {})
        .then(() => this.#withdraw(each));
    }
    this.#room.published();
  }

  /** Replace the beacon if the server takes no more mail to it. Its limits may be lower than the default ones. */
  test() {
    const mailbox = this.#current;
    if (!mailbox || mailbox.untested < 1) return;
    mailbox.untested = -1; // with this text
    const replace = (/** @type {{ status: number }} */ { status }) => status < 500 && mailbox.full();
    this.send(this.#room.target.id, mailbox.code, {}).catch(replace);
  }

  /** Publish when this page entered, if the beacon does not contain it. */
  publishEntry() {
    if (!this.#sinceSent) this.#current?.full();
  }

  /** Read the mail to the current beacon and its successors. @param {Servers} servers @param {AbortSignal} signal */
  async receive(servers, signal) {
    for (;;) {
      const mailbox = /** @type {Mailbox} */ (this.#current);
      await new Promise((resolve, reject) => {
        mailbox.full = () => resolve(0);
        this.#read(mailbox, servers).catch(reject);
        this.#room.askRivals();
      });
      await sleep(backOff(1 + this.#corrections), signal);
      await retry(() => this.publish(mailbox.client, signal), signal, servers.tries);
    }
  }

  /** @param {Mailbox} mailbox @param {Servers} servers */
  async #read(mailbox, servers) {
    const { client, code, keep, deadline, nonces } = mailbox;
    const { signal } = deadline;
    const pace = makePace();
    /** @type {string | undefined} */ let since;
    const poll = async () => {
      await pace(signal);
      await keep();
      return client.poll(code, "offerer", { wait: WAIT_S, since, secret: this.#secret, signal });
    };
    /** @param {string} text */
    const take = async (text) => {
      const mail = await this.unseal(text, "mail", { to: this.#room.target.id, code, nonces });
      return mail !== undefined && this.#room.take(mail);
    };
    try {
      for (let [count, valid, size] = [0, 0, 0]; ; ) {
        const { answer, answerCandidates = [], cursor } = await retry(poll, signal, servers.tries);
        since = cursor;
        for (const text of answerCandidates) {
          count += 1;
          size += text.length;
          mailbox.untested += 1;
          valid += Number(await take(text).catch(() => false)); // it concerns this text only
        }
        if (valid >= MAX_MAILS || count >= MAX_TEXTS || size >= MAX_TEXTS_SIZE) mailbox.full();
        if (answer) break; // an answered beacon is no longer listed
        await servers.iceServers(client);
      }
    } catch (error) {
      if (!signal.aborted && !taken(error)) throw error;
    }
    mailbox.full();
  }

  /** @param {Mailbox} mailbox */
  #withdraw(mailbox) {
    if (!this.#all.delete(mailbox)) return;
    this.#offers.delete(mailbox.offer);
    mailbox.deadline.end();
    this.#leave(mailbox);
  }

  /** @param {Mailbox} mailbox */
  #leave({ client, code }) {
    client.leave(code, "offerer", { secret: this.#secret });
  }

  end() {
    for (const each of this.#all) this.#withdraw(each);
  }

  /** Withdraw all while the page is being closed. A page that is shown again publishes another beacon. */
  hide() {
    for (const each of this.#all) this.#leave(each);
  }

  /** Whether a session is a beacon of this page. The first one shows the server's time. @param {Session} session */
  see({ offer, createdAt }) {
    const serverMs = this.#offers.get(offer);
    if (!serverMs) return serverMs === 0;
    this.#offers.set(offer, 0); // a later session with it is a copy
    this.since ||= createdAt;
    const wrong = Math.abs(createdAt - serverMs) > CLOCK_MS;
    this.#corrections = wrong ? this.#corrections + 1 : 0;
    if (wrong) {
      this.#clockMs += createdAt - serverMs;
      this.#current?.full();
    }
    this.#room.askRivals();
    return true;
  }

  /** @param {string | undefined} id of its member @param {string} code @param {Fields} fields */
  async send(id, code, fields, signal = this.#room.signal) {
    const { target, options } = this.#room;
    const { me, info = ownInfo() } = options;
    const { client, code: own } = /** @type {Mailbox} */ (this.#current); // members are known after it is published
    const text = await this.#seal({ from: target.id, me, info, code: own, ...fields }, id, code);
    return client.candidate(code, "answerer", text, { signal });
  }

  /** Encode what is sent to a beacon, or to all. @param {Fields} fields @param {string} [to] @param {string} [code] */
  async #seal(fields, to, code) {
    const text = await seal(this.identity, this.scope, fields, to, code);
    return this.cipher ? this.cipher.seal(text, code) : text;
  }

  /**
   * Decode what a member has sent to this member, whose beacon has a code, or to all.
   * @template {"beacon" | "mail"} Kind @param {string} text @param {Kind} kind
   * @param {{ to?: string, code?: string, createdAt?: number, nonces?: Set<string> }} fields
   */
  async unseal(text, kind, { to, code, createdAt, nonces }) {
    const plain = this.cipher ? await this.cipher.unseal(text, code, nonces) : text;
    return unseal(this.scope, plain, kind, to, code, createdAt);
  }
}
