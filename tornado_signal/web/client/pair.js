/* A connection to whichever page comes next. */

import { connectToFirst, MAX_PEERS, shuffled } from "./connect.js";
import { createOffer, WAIT_S, waitForAnswer } from "./link.js";
import { Servers } from "./servers.js";
import { Deadline, PAUSE_MS, retry, sleep, taken } from "./timing.js";

const PAIR = "pair/"; // what the topic of a pair begins with on the server

/** Connect two that call this with the same topic, whichever comes next. */
export async function pair(topic, options = {}) {
  const stop = new AbortController();
  const { signal } = stop;
  const report = (error) => options.onstep?.("failed", error);
  const end = () => stop.abort(options.signal?.reason);
  globalThis.addEventListener?.("pagehide", end, { signal });
  options.signal?.addEventListener("abort", end, { signal });
  if (options.signal?.aborted) end();
  try {
    const servers = new Servers(options, signal, report);
    return await servers.first((client) => matchPair(client, PAIR + topic, { ...options, pair: true }, servers));
  } finally {
    stop.abort();
  }
}

/**
 * Be one of a pair. In the order of the offers the second one answers the first, the fourth the third, and so on; the
 * others wait, unless nothing happens. A peer takes its own offer, so that no other can, before it answers another one.
 */
async function matchPair(client, topic, options, servers) {
  const { signal } = servers;
  const tried = new Set();
  let link; // of the offer that is listed
  let answer; // whether it is answered, as a promise
  let cursor;
  let others = [];
  const withdraw = () => {
    if (!link) return;
    client.leave(link.code, "offerer", link.own);
    link.fail(new Error("The offer was taken back"));
    tried.add(link.code);
    link = answer = undefined;
  };
  signal.addEventListener("abort", withdraw);
  const stay = new Deadline(signal);
  const better = servers.better(client, stay.signal).then(() => {
    throw new TypeError("A server that comes before this one works again");
  });
  better.catch(() => {}); // it may come while nothing waits
  try {
    for (;;) {
      const round = new Deadline(signal);
      const most = others.length ? 1 + Math.round(2 * Math.random()) : WAIT_S;
      const asked = { ...(link && { wait: most, since: cursor }), limit: MAX_PEERS, signal: round.signal };
      const asking = client.sessions(topic, asked);
      const listing = await Promise.race([asking, answer ?? asking, better]).finally(() => round.end());
      let isAnswered = !listing.sessions;
      if (!isAnswered) {
        const listed = listing.sessions.filter(({ code }) => !tried.has(code)).reverse(); // the oldest first
        const place = link ? listed.findIndex(({ code }) => code === link.code) : listed.length;
        const stuck = link && listing.cursor === cursor;
        cursor = listing.cursor;
        others = listed.filter(({ code }) => code !== link?.code);
        if (others.length && (place % 2 === 1 || stuck)) {
          isAnswered = link && !(await claimOwnOffer(link, signal));
          if (!isAnswered) {
            withdraw();
            const next = listed[place - 1];
            const sorted = shuffled(others).sort((a, b) => (b === next) - (a === next));
            const { connection } = await connectToFirst(sorted, client, options, servers);
            if (connection) return connection;
            for (const { code } of others) tried.add(code);
          }
        } else if (!link) {
          link = await createOffer(client, topic, options, servers);
          answer = waitForAnswer(link, servers);
          answer.catch(() => {}); // it may be withdrawn
        } else if (!cursor) {
          await sleep(PAUSE_MS, signal);
        }
      }
      if (isAnswered) {
        const { opened } = link;
        if (await answer) link.connect();
        else withdraw();
        try {
          return await opened;
        } catch (error) {
          signal.throwIfAborted();
          options.onstep?.("failed", error);
          withdraw();
        }
      }
    }
  } catch (error) {
    withdraw();
    throw error;
  } finally {
    stay.end();
    signal.removeEventListener("abort", withdraw);
  }
}

/** Take one's own offer, so that no other peer can answer it; whether none has. */
async function claimOwnOffer({ client, code }, signal) {
  try {
    await retry(() => client.answer(code, "taken back", { signal }), signal);
    return true;
  } catch (error) {
    if (!taken(error)) throw error;
    return false;
  }
}
