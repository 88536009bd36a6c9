/* The response of `GET /ice-servers`: servers are renewed in time, and reports are sent where they are wanted. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { join } from "../../../tornado_signal/web/client/connect.js";
import { refused } from "../../../tornado_signal/web/client/errors.js";
import { publish } from "../../../tornado_signal/web/client/publish.js";
import { PAIR_MS } from "../../../tornado_signal/web/client/timing.js";
import { enter, FakeServer, LinkedConnection, leave, next, PAGE } from "./fake_server.js";

let server, reports;
beforeEach(() => {
  server = new FakeServer();
  reports = [];
  server.iceServers = () => ({ iceServers: [], expiresAt: Infinity, reports: true });
  server.report = (report) => void reports.push(report);
});

const soon = () => new Promise((resolve) => setTimeout(resolve, 1));

async function meet(options) {
  const rooms = [enter("alice", options), enter("bob", options)];
  await Promise.all(rooms.map((each) => next(each, "join")));
  await soon();
  return rooms;
}

const RELAY = { candidateType: "relay", protocol: "udp", relayProtocol: "tls", address: "192.0.2.7" };
const STATS = {
  local: { id: "local", ...RELAY },
  remote: { id: "remote", candidateType: "srflx", protocol: "udp", address: "192.0.2.8" },
  other: { id: "other", type: "candidate-pair", localCandidateId: "remote", remoteCandidateId: "remote" },
};
const PAIR = { id: "pair", type: "candidate-pair", localCandidateId: "local", remoteCandidateId: "remote" };
const KINDS = { local: "relay", remote: "srflx", transport: "tls" };
for (const [name, stats, kinds] of [
  ["Chromium", { ...STATS, pair: PAIR, T: { id: "T", type: "transport", selectedCandidatePairId: "pair" } }, KINDS],
  ["Firefox", { ...STATS, pair: { ...PAIR, selected: true } }, KINDS],
  ["an implementation without statistics", undefined, {}],
]) {
  test(`each side reports the kinds of its pair, by ${name}`, async () => {
    class Connection extends LinkedConnection {
      getStats = async () => stats && new Map(Object.entries(stats));
    }
    await leave(...(await meet({ RTCPeerConnection: Connection })));
    const report = { outcome: "connected", ...kinds };
    const sent = JSON.parse(JSON.stringify(reports)); // without what is undefined
    assert.deepEqual(
      sent.map(({ ms, ...others }) => (ms > 0 && ms % 100 === 0 ? others : ms)),
      [report, report],
    );
  });
}

test("reports are sent only where the server wants them, and a refused one changes nothing", async () => {
  server.report = () => {
    reports.push("refused");
    throw refused(429, "Too many requests");
  };
  const rooms = await meet();
  const message = next(rooms[1], "message");
  rooms[0].send("hello");
  assert.equal((await message).data, "hello");
  await leave(...rooms);
  assert.deepEqual(reports, ["refused", "refused"]);
  delete server.iceServers;
  await leave(...(await meet()));
  assert.equal(reports.length, 2);
});

/** Wait for a report of an attempt that takes too long. */
async function assertFailed() {
  while (!reports.length) await soon();
  const [{ ms, ...others }] = reports;
  assert.deepEqual(others, { outcome: "failed", local: undefined, remote: undefined, transport: undefined });
  assert.ok(ms >= PAIR_MS);
}

test("an attempt of a room that does not connect is reported", async () => {
  class Deaf extends LinkedConnection {
    async addIceCandidate() {}
  }
  const rooms = [enter("alice", { RTCPeerConnection: Deaf }), enter("bob", { RTCPeerConnection: Deaf })];
  await assertFailed();
  await leave(...rooms);
});

test("`publish` and `join` report as well", async () => {
  const stop = new AbortController();
  const options = { ...PAGE, signal: stop.signal };
  const publication = publish("topic", options);
  await Promise.all([join("topic", { ...options, info: "bob" }), next(publication, "connection")]);
  await soon();
  assert.deepEqual(
    reports.map(({ outcome }) => outcome),
    ["connected", "connected"],
  );
  reports = [];
  server.offer("lost", { info: "absent", offer: JSON.stringify({ type: "offer", sdp: "absent" }) });
  const joining = assert.rejects(join("lost", options), (reason) => reason === null);
  await assertFailed();
  stop.abort(null);
  await joining;
});

test("an ICE restart uses servers that are renewed before their passwords expire, on both sides", async () => {
  const { poll } = server;
  server.poll = (code, side, options) => {
    const late = new Promise((resolve) => setTimeout(resolve, 1000 * options.wait, { cursor: options.since }));
    return Promise.race([poll.call(server, code, side, options), late]);
  };
  let number = 0;
  server.iceServers = () => ({ iceServers: [{ urls: `stun:${(number += 1)}` }], expiresAt: Date.now() + 120_000 });
  const used = [];
  class Connection extends LinkedConnection {
    constructor({ iceServers }) {
      super();
      this.setConfiguration = ({ iceServers: others }) => used.push([this, others[0].urls !== iceServers[0].urls]);
    }
    restartIce() {
      used.push([this, "restart"]);
      this.need();
    }
  }
  const rooms = await meet({ RTCPeerConnection: Connection });
  const connections = rooms
    .sort((one, other) => (one.id < other.id ? -1 : 1))
    .map(({ peers }) => [...peers.values()][0].peerConnection);
  const [leading] = connections;
  await new Promise((resolve) => setTimeout(resolve, 300_000));
  assert.ok(number > (2 * 300_000) / 120_000);
  used.length = 0;
  leading.connectionState = "disconnected";
  leading.dispatchEvent(new Event("connectionstatechange"));
  await soon();
  assert.deepEqual(
    used.slice(0, 3).map(([connection, what]) => [connections.indexOf(connection), what]),
    [
      [0, true],
      [0, "restart"],
      [1, true],
    ],
  );
  await leave(...rooms);
});
