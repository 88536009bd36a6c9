/* Connections of two pages, for `publish`, `join` and `pair`, which load this file when they need it. */

import { announce } from "./data.js";
import { dispatch, report, SignalError, taken, temporary } from "./errors.js";
import { ownInfo, topicOf } from "./identity.js";
import { MAX_PEERS, OFFER_OPTIONS, Servers } from "./servers.js";
import { CHOSEN, createOffer, listedHere, SessionLink, waitForAnswer } from "./session.js";
import { Deadline, deferred, makePace, now, PAUSE_MS, retry, STAGGER_MS, sleep, WAIT_S } from "./timing.js";

/** @import { Connection } from "./session.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { JoinOptions, LinkOptions, PeerOptions, Session } from "./types.d.ts" */

const AGAIN_MS = 2000; // in which a peer that was taken publishes its next offer
const JOIN_OPTIONS = { onstep: "function", choose: "function", wait: "boolean" };
const PAIR = "pair~"; // the prefix of the topic of a pair on the server

/** @param {EventTarget} publication @param {string} topic @param {LinkOptions} options @param {Servers} servers */
export async function offerAll(publication, topic, options, servers) {
  for (;;) {
    const link = await servers.first((client) => createOffer(client, topic, options, servers));
    if (await waitForAnswer(link, servers)) {
      link.connect();
      link.opened.then(
        (connection) => dispatch(publication, "connection", { connection }),
        (error) => report(publication, error),
      );
    } else {
      link.fail(new Error()); // nothing waits for this link
    }
  }
}

/** @param {string} topic @param {JoinOptions} options */
export async function join(topic, options = {}) {
  const { info = ownInfo(), choose = (sessions) => sessions, wait = true, onstep = () => {} } = options;
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, (error) => onstep("failed", error), JOIN_OPTIONS);
  /** @type {Set<string>} */ const triedCodes = new Set();
  /** @type {Map<SignalClient, string | undefined>} */ const cursors = new Map();
  const pace = makePace();
  for (let untilMs = 0; ; ) {
    const leftS = Math.ceil(Math.max(0, untilMs - now()) / 1000);
    const { client, sessions, cursor } = await servers.first(async (client) => {
      const query = { wait: wait ? WAIT_S : leftS, since: cursors.get(client), limit: MAX_PEERS, signal };
      const [listing] = await Promise.all([client.sessions(topic, query), servers.iceServers(client)]);
      return { client, ...listing };
    });
    cursors.set(client, cursor);
    const own = (/** @type {Session} */ each) => listedHere.has(each.code) && each.info === info;
    const others = sessions.filter((each) => !own(each) && !triedCodes.has(each.code));
    onstep("peers", others.length);
    const choice = choose(shuffled(others));
    const { connection, late } = await connectToFirst(choice, client, options, servers);
    if (connection) return connection;
    for (const { code } of choice) triedCodes.add(code);
    if (late) untilMs = now() + AGAIN_MS;
    if (!wait && !choice.length && now() >= untilMs) return null;
    await (cursor ? pace(signal) : sleep(PAUSE_MS, signal));
  }
}

/**
 * Answer one session after the other until a connection opens; if one is silent, the next one in parallel. `late` is
 * whether another peer was faster with one of them.
 * @param {Session[]} sessions @param {SignalClient} client @param {LinkOptions} options @param {Servers} servers
 */
async function connectToFirst(sessions, client, options, servers) {
  const { signal } = servers;
  const { onstep = () => {} } = options;
  const iceServers = await servers.iceServers(client);
  /** @type {SessionLink[]} */ const links = [];
  let late = false;
  let ended = false; // whether nothing waits for another connection
  /** @type {Connection | undefined} */ let connection;
  const { promise: open, resolve } = deferred();
  /** @param {Session} session */
  const attempt = async (session) => {
    onstep("trying", session.info);
    const link = new SessionLink(client, "answerer", iceServers, options, signal);
    links.push(link);
    try {
      const candidate = await accept(link, session, options.info ?? ownInfo(), servers.tries);
      if (ended) return candidate.end();
      ended = true;
      connection = candidate;
      if (options.pair) connection.peerConnection.createDataChannel(CHOSEN); // shows the offerer that it was chosen
      resolve();
    } catch (error) {
      link.fail(error);
      if (ended || signal.aborted) return;
      late ||= taken(error);
      onstep(taken(error) ? "taken" : "failed", error);
    }
  };
  const attempts = [];
  try {
    for (const session of sessions) {
      const current = attempt(session);
      attempts.push(current);
      await Promise.race([open, current, sleep(STAGGER_MS, signal)]);
      if (ended) break;
    }
    await Promise.race([open, Promise.all(attempts)]);
    signal.throwIfAborted();
  } finally {
    ended = true;
    for (const link of links) link.fail(new Error());
  }
  return { connection: /** @type {Connection | undefined} */ (connection), late };
}

/**
 * Answer a session; fails if another peer was faster, or if the peer cannot be reached.
 * @param {SessionLink} link @param {Session} session @param {string} answererInfo @param {number} tries
 */
async function accept(link, { code, info, offer, offerCandidates }, answererInfo, tries) {
  link.info = info;
  const description = await link.describe(offer);
  // The other side learns this side's `info` from the answer.
  const answer = JSON.stringify({ ...announce(description), info: answererInfo });
  await retry(() => link.client.answer(code, answer, link.own), link.opening, tries);
  link.step("accepted");
  link.begin(code);
  // Not earlier: if two peers send to one offer, neither can connect for a long time.
  await link.peerConnection.setLocalDescription(description);
  link.add(offerCandidates);
  link.connect();
  return link.opened;
}

/** Return a list in random order, so that simultaneous peers try different ones. @template T @param {T[]} list */
const shuffled = (list) =>
  list
    .map((each) => /** @type {const} */ ([Math.random(), each]))
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);

/** @param {string} topic @param {PeerOptions & { channel?: RTCDataChannelInit }} [options] */
export async function pair(topic, options = {}) {
  const stop = new Deadline();
  const { signal } = stop;
  const servers = new Servers(options, signal, (error) => options.onstep?.("failed", error), OFFER_OPTIONS);
  stop.follow(options.signal);
  globalThis.addEventListener?.("pagehide", () => stop.end(), { signal });
  try {
    const all = { ...options, pair: true };
    return await servers.first((client) => matchPair(client, topicOf(PAIR, topic), all, servers));
  } finally {
    stop.end();
  }
}

/**
 * Pair with one server. In the order of the offers, the second one answers the first, the fourth the third, and so on. The
 * others wait, unless nothing happens. A side takes back its own offer, so that no other can answer it, before it answers
 * another one.
 * @param {SignalClient} client @param {string} topic @param {LinkOptions} options @param {Servers} servers
 */
async function matchPair(client, topic, options, servers) {
  const { signal } = servers;
  const pace = makePace();
  /** @type {Set<string>} */ const triedCodes = new Set();
  /** @type {SessionLink | undefined} */ let link; // of the offer that is listed
  let answered = Promise.resolve(false); // whether the offer is, when it no longer waits
  /** @type {string | undefined} */ let cursor;
  let others = 0; // listed sessions

  function withdraw() {
    if (!link) return;
    link.fail(new Error("Withdrawn"));
    triedCodes.add(link.code);
    link = undefined;
  }

  /** Answer the own offer, so that no other peer can. Returns false if another peer already has. */
  async function claim(/** @type {SessionLink} */ { code }) {
    try {
      await retry(() => client.answer(code, "taken back", { signal }), signal);
      return true;
    } catch (error) {
      if (!taken(error)) throw error;
      return false;
    }
  }

  /** Connect to the peer that has answered the offer. Returns nothing if it cannot be reached. */
  async function useAnswer() {
    const current = link;
    if (!current) return;
    if (!(await answered)) return withdraw();
    current.connect();
    try {
      return await current.opened;
    } catch (error) {
      signal.throwIfAborted();
      servers.report(/** @type {Error} */ (error));
      withdraw();
    }
  }

  async function publish() {
    link = await createOffer(client, topic, options, servers);
    answered = waitForAnswer(link, servers);
    answered.catch(() => {}); // `round` fails with it, unless the offer is withdrawn
  }

  /** React to the next listing or answer. Returns a connection if it opens one. @param {AbortSignal} stay */
  async function round(stay) {
    const deadline = new Deadline(stay);
    const wait = others ? 1 + Math.round(2 * Math.random()) : WAIT_S;
    const query = { ...(link && { wait, since: cursor }), limit: MAX_PEERS, signal: deadline.signal };
    const sessions = client.sessions(topic, query);
    const listing = await Promise.race(link ? [answered, sessions] : [sessions]).finally(() => deadline.end());
    if (typeof listing === "boolean") return useAnswer();
    const stuck = link && listing.cursor === cursor;
    const listed = listing.sessions.filter(({ code }) => !triedCodes.has(code)).reverse(); // the oldest first
    const place = link ? listed.findIndex(({ code }) => code === link?.code) : listed.length;
    cursor = listing.cursor;
    const peers = listed.filter(({ code }) => code !== link?.code);
    others = peers.length;
    if (others && (place % 2 === 1 || stuck)) {
      if (link && !(await claim(link))) return useAnswer();
      withdraw();
      const next = listed[place - 1];
      const sorted = shuffled(peers).sort((a, b) => Number(b === next) - Number(a === next));
      const { connection } = await connectToFirst(sorted, client, options, servers);
      if (!connection) for (const { code } of sorted) triedCodes.add(code);
      return connection;
    }
    if (!link) await publish();
    else await (cursor ? pace(signal) : sleep(PAUSE_MS, signal));
  }

  const stay = new Deadline(signal);
  const move = () => stay.end(temporary(new SignalError("server-busy", "A preferred server works")));
  servers.preferred(client, stay.signal).then(move, () => {});
  try {
    for (;;) {
      const connection = await round(stay.signal);
      if (connection) return connection;
    }
  } finally {
    stay.end();
    withdraw();
  }
}
