/* Connections to whoever has published, or joins. */

import { ownInfo } from "./identity.js";
import { createOffer, Link, WAIT_S, waitForAnswer } from "./link.js";
import { Servers } from "./servers.js";
import { PAUSE_MS, retry, sleep, taken } from "./timing.js";

export const STAGGER_MS = 1500; // about: then another one is tried beside a peer that says nothing
const AGAIN_MS = 2000; // in which a peer that was taken is listed again
export const MAX_PEERS = 100; // of a listing

/** Offers under a topic, one unanswered at a time; events `connection`, `error` and `close`. */
class Publication extends EventTarget {
  #stop = new AbortController();
  #listed; // the link that waits for its answer

  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    globalThis.addEventListener?.("pagehide", () => this.#withdraw(), { signal });
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    // Later, so that the caller can listen for the event.
    if (options.signal?.aborted) queueMicrotask(() => this.close());
    else this.#run(topic, options, new Servers(options, signal, (error) => this.#tell("error", { error })));
  }

  /** Take the offer back. Connections that were made stay. */
  close() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    this.#tell("close");
  }

  async #run(topic, options, servers) {
    const { signal } = this.#stop;
    try {
      for (;;) {
        const link = (this.#listed = await servers.first((client) => createOffer(client, topic, options, servers)));
        const isAnswered = await waitForAnswer(link, servers);
        this.#listed = undefined;
        if (isAnswered) {
          link.connect();
          link.opened.then(
            (connection) => this.#tell("connection", { connection }),
            (error) => this.#tell("error", { error }),
          );
        } else {
          link.fail(new Error("Nobody answered"));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error });
      this.close();
    }
  }

  #withdraw() {
    const link = this.#listed;
    if (link) link.client.leave(link.code, "offerer", link.own);
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}

/** Publish under a topic: whoever joins is a `connection` event of what this returns. */
export const publish = (topic, options = {}) => new Publication(topic, options);

/** Connect to somebody who has published under a topic, as soon as there is somebody. */
export async function join(topic, options = {}) {
  const { info = ownInfo(), choose = (sessions) => sessions, wait = true, onstep = () => {} } = options;
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, (error) => onstep("failed", error));
  const tried = new Set();
  const cursors = new Map();
  for (let untilMs = 0; ; ) {
    const moment = Math.ceil(Math.max(0, untilMs - Date.now()) / 1000);
    const { client, sessions, cursor } = await servers.first(async (client) => {
      const asked = { wait: wait ? WAIT_S : moment, since: cursors.get(client), limit: MAX_PEERS, signal };
      const [listing] = await Promise.all([client.sessions(topic, asked), servers.iceServers(client)]);
      return { client, ...listing };
    });
    cursors.set(client, cursor);
    const others = sessions.filter((each) => each.info !== info && !tried.has(each.code));
    onstep("peers", others.length);
    const chosen = choose(shuffled(others));
    const { connection, late } = await connectToFirst(chosen, client, options, servers);
    if (connection) return connection;
    for (const { code } of chosen) tried.add(code);
    if (late) untilMs = Date.now() + AGAIN_MS;
    if (!wait && !chosen.length && Date.now() >= untilMs) return null;
    if (!cursor) await sleep(PAUSE_MS, signal);
  }
}

/**
 * Answer one session after the other until a connection opens; the next one beside one that says nothing. `late` tells
 * whether another peer was faster with one of them.
 */
export async function connectToFirst(sessions, client, options, servers) {
  const { signal } = servers;
  const { onstep = () => {} } = options;
  const iceServers = await servers.iceServers(client);
  const links = [];
  let late = false;
  let connection;
  let opened;
  const open = new Promise((resolve) => (opened = resolve));
  const attempt = async (session) => {
    onstep("trying", session.info);
    const link = new Link(client, "answerer", iceServers, options, signal);
    links.push(link);
    try {
      const found = await accept(link, session, servers.tries);
      if (connection) return found.end();
      connection = found;
      if (options.pair) connection.peerConnection.createDataChannel("pair"); // this is the one
      opened();
    } catch (error) {
      link.fail(error);
      if (connection || signal.aborted) return;
      late ||= taken(error);
      onstep(taken(error) ? "taken" : "failed", error);
    }
  };
  const attempts = [];
  for (const session of sessions) {
    const trying = attempt(session);
    attempts.push(trying);
    await Promise.race([open, trying, sleep(STAGGER_MS, signal)]);
    if (connection) break;
  }
  await Promise.race([open, Promise.all(attempts)]);
  signal.throwIfAborted();
  for (const link of links) link.fail(new Error("Another peer was faster"));
  return { connection, late };
}

/** Answer a session; fails if somebody else was faster, or there is no way to the peer. */
async function accept(link, { code, info, offer, offerCandidates }, tries) {
  Object.assign(link, { code, info });
  const description = await link.describe(offer);
  const answer = JSON.stringify(description);
  await retry(() => link.client.answer(code, answer, link.own), link.signal, tries);
  link.step("accepted");
  try {
    // Not before: what two peers send to one offer would keep both from connecting for a long time.
    await link.use(description);
    link.add(offerCandidates);
    link.begin(code);
    link.connect();
    return await link.opened;
  } catch (error) {
    link.client.leave(code, "answerer", link.own);
    throw error;
  }
}

/** In any order: else everybody who joins would try the same peer. */
export const shuffled = (list) =>
  list
    .map((each) => [Math.random(), each])
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);
