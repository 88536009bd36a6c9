/* Everybody under a topic, connected to everybody. */

import { MAX_PEERS, STAGGER_MS } from "./connect.js";
import { Identity, isName, MAX_NAME, ownInfo, ownSecret, random, seal, unseal } from "./identity.js";
import { PAIR_MS, WAIT_S } from "./link.js";
import { Peer } from "./peer.js";
import { publishHeld, Servers } from "./servers.js";
import { backOff, Deadline, PAUSE_MS, retry, sleep, taken } from "./timing.js";

const MAX_MAILS = 250; // to one beacon: the server's limits allow twice as many
const MAX_ATTEMPTS = 50; // at once that a room begins, and as many that others do: a page may have 500 connections
const ROOM = "room/"; // what the topic of a room begins with on the server: no offers are there that `join` could take

/** Members that wait for an attempt: the least tried first, in random order. */
class Queue {
  #byTries = Array.from({ length: 5 }, () => []);

  add(member) {
    this.delete(member);
    member.waiting = this.#byTries[Math.min(4, member.tries)];
    member.place = member.waiting.push(member) - 1;
  }

  delete(member) {
    const { waiting, place } = member;
    if (!waiting) return;
    const last = waiting.pop();
    if (last !== member) Object.assign((waiting[place] = last), { place });
    member.waiting = undefined;
  }

  get next() {
    const waiting = this.#byTries.find(({ length }) => length) ?? [];
    return waiting[Math.floor(Math.random() * waiting.length)];
  }
}

/**
 * Everybody under a topic, connected to everybody: events `listed`, `join`, `leave`, `message`, `stream`, `streamend`,
 * `error` and `close`.
 *
 * A member has an id, and under the topic a session, its beacon, as long as it is there. Nobody answers a beacon. Its
 * `offer` is `{id, at, me}`, its `info` the member's. Its candidates are the mail to the member:
 *
 *   {from, me, info, code, connection, description, of, candidates}
 *
 * `from`, `me`, `info` and `code` are the sender's id, name, info and beacon; `connection` names the attempt that this is
 * about, and is known to both sides only; the others are described at `Negotiation`, which goes on over a data channel
 * when there is one. Of two members the one with the smaller id leads: it begins.
 *
 * Offer and mail are JSON. A member with a name has a secret, and an id that is made from it (`Identity`): it signs
 * both, together with the topic and the id of the recipient of the mail, and its signature stands before the JSON.
 */
class Room extends EventTarget {
  id;
  listed = false;
  peers = new Map();
  #members = new Map(); // by id: {id, name, code, at, createdAt, info, connection, tries, resting, peer, waiting, place}
  #listed = new Map(); // the members by the codes of their beacons
  #named = new Map(); // by name: the members that use it; it belongs to the first one
  #queue = new Queue();
  #attempts = { true: new Map(), false: new Map() }; // by who leads: links, by the peers that have not joined
  #made = 0; // how many peers there have been
  // biome-ignore lint/correctness/noUnusedPrivateClassMembers: kept in a field so that bundlers do not drop the allocation
  #garbage;
  #paused = false; // because one could not be made
  #streams = new Set();
  #topic;
  #options;
  #identity;
  #secret = random(); // of the beacon
  #at = 0; // when the beacon was made
  #iceServers;
  #client;
  #code; // of the beacon
  #stop = new AbortController();

  constructor(topic, options) {
    super();
    this.#topic = ROOM + topic;
    this.#options = options;
    if (!options.me && !options.secret) this.id = random(4);
    const { signal } = this.#stop;
    const hide = () => {
      this.#withdraw();
      for (const { peer } of this.#members.values()) peer?.end(); // the others are told at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    options.signal?.addEventListener("abort", () => this.leave(), { signal });
    if (options.signal?.aborted) this.leave();
    else this.#run(new Servers(options, signal, (error) => this.#tell("error", { error })));
  }

  /** Send a stream to all, now and later. */
  addStream(stream) {
    this.#streams.add(stream);
    for (const { peer } of this.#members.values()) peer?.add(stream);
  }

  removeStream(stream) {
    this.#streams.delete(stream);
    for (const { peer } of this.#members.values()) peer?.remove(stream);
  }

  /** Send to one peer (or its id), or to all. */
  send(data, to) {
    for (const { channel } of to === undefined ? this.peers.values() : [this.peers.get(to.id ?? to) ?? {}]) {
      if (channel?.readyState === "open") channel.send(data);
    }
  }

  async leave() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    await Promise.all([...this.#members.values()].map(({ peer }) => peer?.close()));
    this.#tell("close");
  }

  async #run(servers) {
    const { signal } = this.#stop;
    const { me, secret = me && ownSecret() } = this.#options;
    try {
      if (secret) {
        this.#identity = await Identity.of(secret);
        this.id = this.#identity.id;
        if (me && !isName(me)) throw new Error(`A name has one to ${MAX_NAME} characters`);
        if (me) await servers.first((client) => this.#claim(client, me));
      }
      for (;;) {
        await servers.first((client) => this.#attend(client, servers));
        await sleep(backOff(0), signal);
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error });
      this.leave();
    }
  }

  /** Look whether another member has the name. */
  async #claim(client, me) {
    const { sessions } = await client.sessions(this.#topic, { limit: MAX_PEERS, signal: this.#stop.signal });
    for (const { offer } of sessions) {
      const { id, me: theirs } = await unseal(this.#topic, offer, "id");
      if (id && id !== this.id && theirs === me) throw new Error(`Another member has the name ${me}`);
    }
  }

  /** Be there, by one beacon, until another is needed. */
  async #attend(client, servers) {
    const { signal } = this.#stop;
    const { me, info = ownInfo() } = this.#options;
    this.#iceServers = (await servers.iceServers(client)).iceServers;
    this.#at = Math.max(Date.now(), this.#at + 1); // also after the clock was set back
    const offer = await seal(this.#identity, this.#topic, { id: this.id, at: this.#at, me });
    const { code, keep } = await publishHeld(client, this.#topic, { info, offer, secret: this.#secret });
    this.#withdraw();
    this.#client = client;
    this.#code = code;
    if (signal.aborted) this.#withdraw();
    else this.#setListed(true);
    const deadline = new Deadline(signal);
    // Those that are there are told now.
    this.#listed.clear();
    this.#queue = new Queue();
    for (const member of this.#members.values()) member.code = member.at = undefined;
    for (const member of this.#members.values()) if (!member.peer) this.#remove(member);
    try {
      const better = servers.better(client, deadline.signal);
      await Promise.race([this.#watch(deadline), this.#receive(deadline, servers, keep), better]);
    } finally {
      deadline.end();
      this.#setListed(false);
    }
  }

  #setListed(listed) {
    this.listed = listed;
    this.#tell("listed");
  }

  async #watch({ signal }) {
    for await (const { type, data } of this.#client.events(this.#topic, { signal })) {
      if (type === "session") await this.#see(data);
      else this.#gone(data.code);
    }
  }

  async #receive({ signal }, servers, keep) {
    const client = this.#client;
    const code = this.#code;
    const own = { secret: this.#secret, signal };
    let since;
    const ask = async () => {
      await keep();
      return client.poll(code, "offerer", { wait: WAIT_S, since, ...own });
    };
    try {
      for (let got = 0; got < MAX_MAILS; ) {
        const { answer, answerCandidates, cursor } = await retry(ask, signal, servers.tries);
        for (const each of answerCandidates) await this.#take(each);
        if (answer) return; // what nobody should do
        since = cursor;
        got += answerCandidates.length;
        this.#iceServers = (await servers.iceServers(client)).iceServers;
      }
    } catch (error) {
      if (!taken(error)) throw error;
    }
  }

  #withdraw() {
    if (this.#code) this.#client.leave(this.#code, "offerer", { secret: this.#secret });
    this.#code = undefined;
  }

  async #see({ code, info, offer, createdAt }) {
    const { id, at, me } = await unseal(this.#topic, offer, "id");
    if (id === this.id && this.#identity && at > this.#at) {
      throw new Error("Another page is in this room with the same secret");
    }
    if (!id || id === this.id || !(at > 0) || this.#stop.signal.aborted) return;
    const member = this.#members.get(id) ?? { id, tries: 0 };
    // It has another one now, or this is a copy of it.
    if (at < member.at || (at === member.at && createdAt > member.createdAt)) return;
    this.#add(member, me);
    this.#listed.set(code, member);
    Object.assign(member, { code, at, createdAt, info, resting: false });
    if (!member.peer) return this.#begin(member);
    member.peer.info = info;
    member.peer.post();
  }

  #gone(code) {
    const member = this.#listed.get(code);
    this.#listed.delete(code);
    if (member?.code !== code) return;
    member.code = member.at = undefined;
    if (member.peer) member.peer.check();
    else this.#remove(member);
  }

  /** Add a member, or give it another name. */
  #add(member, name) {
    if (this.#members.get(member.id) === member && member.name === name) return;
    this.#remove(member);
    this.#members.set(member.id, Object.assign(member, { name }));
    this.#named.set(name, (this.#named.get(name) ?? new Set()).add(member));
  }

  #remove(member) {
    this.#queue.delete(member);
    if (this.#members.get(member.id) !== member) return;
    this.#members.delete(member.id);
    const others = this.#named.get(member.name);
    others.delete(member);
    const [owner] = others;
    if (owner) this.#begin(owner);
    else this.#named.delete(member.name);
  }

  /** Whether a member has the name of another one, which had it first. */
  #nameConflicts({ id, name }) {
    const [owner] = this.#named.get(name) ?? [];
    return name && (name === this.#options.me || (owner ?? { id }).id !== id);
  }

  async #take(text) {
    const { from, me, info, code, connection, ...mail } = await unseal(this.#topic, text, "from", this.id);
    if (!from || from === this.id || this.#stop.signal.aborted) return;
    const member = this.#members.get(from) ?? { id: from, name: me, info: String(info), tries: 0 };
    const first = from < this.id && mail.description?.type === "offer" && mail.of === 1;
    const another = member.connection !== connection && this.#attempts.false.get(member.peer)?.late !== false;
    if (first && another && !this.#nameConflicts(member) && this.#admits(false)) {
      member.code ??= String(code);
      this.#connect(member, connection);
      if (member.peer) this.#add(member, member.name);
    }
    if (member.connection === connection) member.peer?.take(mail);
  }

  /** Queue a member if it needs an attempt, and begin attempts. */
  #begin(member) {
    if (
      member &&
      this.id < member.id &&
      member.code &&
      !member.peer &&
      !member.resting &&
      !this.#nameConflicts(member)
    ) {
      this.#queue.add(member);
    }
    while (!this.#stop.signal.aborted && this.#queue.next && this.#admits(true)) {
      const { next } = this.#queue; // an attempt that has ended for this one may have begun another
      if (next) this.#connect(next, random(4));
    }
  }

  /** Whether another attempt may begin, of what may be listed in any number; one that has had its time ends for it. */
  #admits(leads) {
    const attempts = this.#attempts[leads];
    if (this.#paused) return false;
    if (attempts.size >= MAX_ATTEMPTS) [...attempts].find(([, { late }]) => late)?.[0].end();
    return attempts.size < MAX_ATTEMPTS;
  }

  /** Begin an attempt, in the place of another one. */
  #connect(member, connection) {
    const room = this;
    this.#queue.delete(member);
    const before = member.peer;
    const times = Math.min(4, (member.tries += 1)); // longer each time: it may be the machine that is slow
    const callbacks = {
      leads: this.id < member.id,
      ms: PAIR_MS * times,
      late: false,
      iceServers: this.#iceServers,
      get listed() {
        return member.code;
      },
      send: (mail, signal) => this.#send(member, { connection, ...mail }, signal),
      tell: (name, fields) => this.#tell(name, fields),
      joined(peer) {
        member.tries = 0;
        room.#attempts[callbacks.leads].delete(peer);
        room.peers.set(member.id, peer);
        room.#tell("join", { peer });
        room.#begin();
      },
      unreachable() {
        const error = new Error(`There is no way to ${member.name ?? member.info}`);
        if (member.tries > 1) room.#tell("error", { error }); // once it may be a machine that is slow
      },
      ended: (peer, joined) => this.#ended(member, peer, joined),
    };
    try {
      member.peer = new Peer(member, callbacks, this.#streams, this.#options);
    } catch (error) {
      if (!this.#made) throw error; // it never works
      this.#tell("error", { error });
      this.#free();
      this.#paused = true;
      this.#later(PAUSE_MS, () => (this.#paused = false), member);
      return;
    }
    if ((this.#made += 1) % MAX_ATTEMPTS === 0) this.#free();
    this.#attempts[callbacks.leads].set(member.peer, callbacks);
    this.#later(STAGGER_MS * times, () => (callbacks.late = true));
    member.connection = connection;
    before?.giveUp();
  }

  /** Make Chromium free closed connections, which count for its limit of 500. It does after enough was allocated. */
  #free() {
    try {
      this.#garbage = new ArrayBuffer(2 ** 24).byteLength;
    } catch {
      // There is little memory: then it frees what it can.
    }
  }

  /** Change something after a while; then another attempt may begin. */
  #later(ms, change, member) {
    const begin = () => {
      change();
      this.#begin(member);
    };
    sleep(0, this.#stop.signal, ms).then(begin, () => {});
  }

  #ended(member, peer, joined) {
    this.#attempts[this.id < member.id].delete(peer);
    if (joined) {
      this.peers.delete(member.id);
      this.#tell("leave", { peer });
    }
    if (member.peer !== peer) return;
    member.peer = undefined;
    if (!member.code || !member.at) {
      this.#remove(member);
      return this.#begin();
    }
    member.resting = true;
    this.#later(PAUSE_MS * (0.5 + Math.random()), () => (member.resting = false), member);
  }

  /** Send mail to a member; whether it was taken, or there is nothing more to be done about it. */
  async #send(member, mail, signal) {
    const { id, code } = member;
    const { me, info = ownInfo() } = this.#options;
    const mailed = { from: this.id, me, info, code: this.#code, ...mail };
    const text = await seal(this.#identity, this.#topic, mailed, id);
    try {
      await retry(() => this.#client.candidate(code, "answerer", text, { signal }), signal);
    } catch (error) {
      if (signal.aborted) return false;
      if (taken(error)) {
        if (member.code === code) member.code = undefined; // it may have another beacon soon
        return false;
      }
      this.#tell("error", { error });
    }
    return true;
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}

/** Be in a room: everybody who calls this with the same topic is connected to everybody else. */
export const room = (topic, options = {}) => new Room(topic, options);
