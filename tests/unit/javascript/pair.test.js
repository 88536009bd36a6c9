import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { join, pair } from "../../../tornado_signal/web/client/connect.js";
import { refused, unreachable } from "../../../tornado_signal/web/client/errors.js";
import { publish } from "../../../tornado_signal/web/client/publish.js";
import { listedHere } from "../../../tornado_signal/web/client/session.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { PAIR_MS } from "../../../tornado_signal/web/client/timing.js";
import { FakeServer, LinkedConnection, next, PAGE } from "./fake_server.js";

const TOPIC = "pair~test";
let server;
beforeEach(() => (server = new FakeServer()));

const page = (options = {}) => pair("test", { ...PAGE, ...options });

const call = (topic, options) => join(topic, { ...PAGE, ...options });

/** Fail the next calls of a method of the server. */
function fail(name, ...errors) {
  const method = server[name];
  server[name] = (...parameters) => {
    const error = errors.shift();
    if (error) throw error;
    return method.apply(server, parameters);
  };
}

async function published() {
  while (!server.listed(TOPIC).length) await new Promise(setImmediate);
}

/** Put the offer of a peer that is no more under the topic, and return its code. */
function dead() {
  return server.offer(TOPIC, { info: "dead", offer: JSON.stringify({ type: "offer", sdp: "dead" }) }).code;
}

const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Let polls end after their `wait`, as those of a server do. */
function endPolls() {
  const { poll } = server;
  server.poll = (code, side, options) => {
    const late = new Promise((resolve) =>
      setTimeout(resolve, 1000 * options.wait, { answerCandidates: [], cursor: options.since }),
    );
    return Promise.race([poll.call(server, code, side, options), late]);
  };
}

async function assertPaired(...pages) {
  const connections = await Promise.all(pages);
  assert.deepEqual(connections.map(({ side }) => side).sort(), ["answerer", "offerer"]);
  assert.equal(connections[0].code, connections[1].code);
  const received = new Promise((resolve) =>
    connections[1].channel.addEventListener("message", resolve, { once: true }),
  );
  connections[0].channel.send("hello");
  assert.equal((await received).data, "hello");
  assert.deepEqual(server.listed(TOPIC), []);
}

test("the second page answers the offer of the first", async () => {
  const first = page();
  await published();
  await assertPaired(first, page());
});

test("two pages that publish at once become one pair", async () => {
  await assertPaired(page(), page());
});

test("the fifth of five pages waits for a sixth", async () => {
  const pages = Array.from({ length: 5 }, () => page());
  const paired = [];
  for (const each of pages) each.then((connection) => paired.push(connection));
  while (paired.length < 4 || server.listed(TOPIC).length !== 1) await new Promise(setImmediate);
  assert.equal(new Set(paired.map(({ code }) => code)).size, 2);
  assert.equal((await page()).side, "answerer");
  await Promise.all(pages);
  assert.equal(new Set(paired.map(({ code }) => code)).size, 3);
});

test("an offer that another page has answered is passed over", async () => {
  const steps = [];
  fail("answer", refused(409, "Session has an answer"));
  const first = page();
  await published();
  const second = page({ onstep: (name) => steps.push(name) });
  await assertPaired(first, second);
  assert.ok(steps.includes("taken"));
});

test("an answer whose response is lost is repeated, and connects once", async () => {
  const answer = server.answer;
  let calls = 0;
  server.answer = (...parameters) => {
    const result = answer.apply(server, parameters);
    if ((calls += 1) === 1) throw unreachable("https://server");
    return result;
  };
  const first = page();
  await published();
  await assertPaired(first, page());
  assert.equal(calls, 2);
});

test("candidates that cannot be sent are sent again", async () => {
  fail("candidates", unreachable("https://server"), refused(503, "later"));
  await assertPaired(page(), page());
});

test("a page that begins again does not answer its first offer", { timeout: 5000 }, async () => {
  const steps = [];
  const first = page({ onstep: (name) => steps.push(name) });
  await published();
  const [{ code }] = server.listed(TOPIC);
  fail("listing", unreachable("https://server"));
  while ([code, undefined].includes(server.listed(TOPIC)[0]?.code)) await new Promise(setImmediate);
  assert.deepEqual([server.listed(TOPIC).length, steps.includes("trying")], [1, false]);
  await assertPaired(first, page());
});

test("offers of peers that are no more delay no pair", { timeout: 5000 }, async () => {
  dead();
  const first = page();
  while (!server.listed(TOPIC).some(({ info }) => info !== "dead")) await new Promise(setImmediate);
  dead();
  const connections = await Promise.all([first, page()]);
  assert.deepEqual(connections.map(({ side }) => side).sort(), ["answerer", "offerer"]);
});

test("a page that has taken back its offer continues, also if the news of it come first", {
  timeout: 5000,
}, async () => {
  const steps = [];
  const { answer } = server;
  server.answer = async (...parameters) => {
    answer.apply(server, parameters);
    if (parameters[1] === "taken back") while (!steps.includes("answered")) await new Promise(setImmediate);
  };
  const first = page({ onstep: (name) => steps.push(name) });
  await published();
  dead();
  while (!steps.includes("trying")) await new Promise(setImmediate);
  assert.deepEqual([steps.includes("failed"), await Promise.race([first, null])], [false, null]); // it is still alone
  const second = page();
  assert.equal((await first).code, (await second).code);
});

test("an answer that comes before the offer is taken back is used", { timeout: 5000 }, async () => {
  let release;
  const { answer } = server;
  server.answer = async (...parameters) => {
    if (parameters[1] === "taken back") await new Promise((resolve) => (release = resolve));
    return answer.apply(server, parameters);
  };
  const first = page();
  await published();
  const [{ code }] = server.listed(TOPIC);
  const other = dead();
  while (!release) await new Promise(setImmediate);
  server.remove(other);
  const second = page();
  while (server.listed(TOPIC).length) await new Promise(setImmediate);
  release();
  assert.deepEqual([(await first).code, (await second).code], [code, code]);
});

test("a page that stops withdraws its offer", async () => {
  const stop = new AbortController();
  const stopped = page({ signal: stop.signal });
  await published();
  stop.abort(new Error("enough"));
  await assert.rejects(stopped, { message: "enough" });
  assert.deepEqual(server.listed(TOPIC), []);
});

test("a mistake in `rtc` or in a function of the page ends the call with its error", { timeout: 5000 }, async () => {
  const mistake = new TypeError("a mistake");
  const fail = () => {
    throw mistake;
  };
  class Refusing extends LinkedConnection {
    constructor() {
      super();
      fail();
    }
  }
  for (const options of [{ prepare: fail }, { RTCPeerConnection: Refusing }, { onstep: fail }]) {
    const expected = options.RTCPeerConnection ? { code: "rtc-failed", cause: mistake } : mistake;
    await assert.rejects(page(options), expected);
    const published = publish("test", { ...PAGE, ...options });
    const [{ error }] = await Promise.all(["error", "close"].map((name) => next(published, name)));
    assert.equal(error.cause ?? error, mistake);
  }
  const waiting = publish("lobby", PAGE);
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  await assert.rejects(call("lobby", { choose: fail }), mistake);
  waiting.close();
});

test("pages with the same info find each other, and not themselves", { timeout: 5000 }, async () => {
  const options = { ...PAGE, info: "Guest" };
  const published = publish("lobby", options);
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  assert.equal(await call("lobby", { info: "Guest", wait: false }), null);
  listedHere.clear(); // as on another page
  const [{ connection }] = await Promise.all([next(published, "connection"), call("lobby", { info: "Guest" })]);
  assert.equal(connection.info, "Guest");
  published.close();
});

test("a page begins to connect only when its answer is accepted", { timeout: 5000 }, async () => {
  const steps = [];
  class Watched extends LinkedConnection {
    setLocalDescription(...parameters) {
      steps.push("local");
      return super.setLocalDescription(...parameters);
    }
    addIceCandidate(...parameters) {
      steps.push("candidate");
      return super.addIceCandidate(...parameters);
    }
  }
  const { answer } = server;
  let error = refused(409, "Session has an answer");
  server.answer = (...parameters) => {
    steps.push("answer");
    if (error) throw error;
    return answer.apply(server, parameters);
  };
  const publishOne = () => {
    const { code } = server.offer("lobby", { info: "alice", offer: JSON.stringify({ type: "offer", sdp: "lost" }) });
    server.candidates(code, "offerer", [JSON.stringify({ candidate: "a" })]);
    return code;
  };
  const first = publishOne();
  const ticking = setInterval(() => {}, 1000); // time passes
  assert.equal(await call("lobby", { RTCPeerConnection: Watched, wait: false }), null);
  clearInterval(ticking);
  assert.deepEqual(steps, ["answer"]);
  server.remove(first);
  error = undefined;
  steps.length = 0;
  publishOne();
  const stop = new AbortController();
  const joining = call("lobby", { RTCPeerConnection: Watched, signal: stop.signal });
  while (steps.length < 3) await new Promise(setImmediate);
  stop.abort(new Error("enough"));
  await assert.rejects(joining, { message: "enough" });
  assert.deepEqual(steps.slice(0, 3), ["answer", "local", "candidate"]);
});

test("an offer is refreshed over HTTP, renewed after ten minutes, and published again after its end", async (context) => {
  endPolls();
  const hold = context.mock.method(SignalClient.prototype, "hold", async () => {});
  const published = publish("lobby", { ...PAGE, info: "alice" });
  const listed = () => server.listed("lobby").map(({ code }) => code);
  while (!listed().length) await new Promise(setImmediate);
  const [first] = listed();
  await pass(100_000);
  assert.deepEqual(listed(), [first]);
  assert.ok(hold.mock.callCount());
  assert.ok(hold.mock.calls.every(({ arguments: [code] }) => code === first));
  await pass(600_000);
  const [second, ...more] = listed();
  assert.deepEqual([second === first, more], [false, []]);
  server.remove(second);
  while (!listed().length) await pass(1000);
  published.close();
});

test("ICE servers are asked for again after half of the time of their passwords", async () => {
  endPolls();
  let asked = 0;
  server.iceServers = () => {
    asked += 1;
    return { iceServers: [], expiresAt: Date.now() + 600_000 };
  };
  const published = publish("lobby", { ...PAGE, info: "alice" });
  published.addEventListener("error", ({ error }) => error);
  const listed = async (before) => {
    while ([before, undefined].includes(server.listed("lobby")[0]?.code)) await new Promise(setImmediate);
    return server.listed("lobby")[0].code;
  };
  const first = await listed();
  server.answer(first, "nonsense");
  const second = await listed(first);
  assert.equal(asked, 1);
  await pass(250_000);
  server.answer(second, "nonsense");
  await listed(second);
  assert.equal(asked, 1);
  await pass(100_000);
  assert.equal(asked, 2);
  published.close();
});

test("offers that make no connection are skipped", { timeout: 5000 }, async () => {
  const published = publish("lobby", { ...PAGE, info: "alice" });
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  for (const offer of ["no JSON", "null", '{"type": "offer"}']) server.offer("lobby", { info: "mallory", offer });
  const failures = [];
  const { info } = await call("lobby", {
    choose: (sessions) => sessions.sort((one, other) => (one.info < other.info ? 1 : -1)), // alice last
    onstep: (name) => name === "failed" && failures.push(name),
  });
  assert.deepEqual([info, failures.length], ["alice", 3]);
  published.close();
});

test("five peers that join one publisher at once all connect before an attempt times out", async () => {
  const secrets = new Set();
  const { offer } = server;
  server.offer = (topic, fields) => {
    secrets.add(fields.secret);
    return offer.call(server, topic, fields);
  };
  const published = publish("lobby", { ...PAGE, info: "alice" });
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  listedHere.clear(); // as on another page
  const beganMs = performance.now();
  published.addEventListener("error", ({ error }) => assert.fail(error));
  const steps = [];
  const onstep = (name) => steps.push(name);
  const joined = await Promise.all(Array.from({ length: 5 }, () => call("lobby", { info: "Guest", onstep })));
  assert.ok(performance.now() - beganMs < PAIR_MS);
  for (const name of ["peers", "trying", "answer", "accepted", "connected", "open"])
    assert.ok(steps.includes(name), name);
  while (server.listed("lobby").length !== 1) await new Promise(setImmediate);
  assert.equal(secrets.size, 6); // one for each session, and the next one is listed
  assert.ok([...secrets].every((each) => each.length >= 16));
  published.close();
  while (server.listed("lobby").length) await new Promise(setImmediate);
  assert.deepEqual(new Set(joined.map(({ channel }) => channel.readyState)), new Set(["open"]));
});

test("an answer that cannot be used is withdrawn", { timeout: 5000 }, async () => {
  class Refusing extends LinkedConnection {
    setLocalDescription = async () => {
      throw new TypeError("no");
    };
  }
  const published = publish("lobby", PAGE);
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  const [[code]] = server.sessions;
  listedHere.clear(); // as on another page
  const joined = call("lobby", { RTCPeerConnection: Refusing, wait: false });
  const { error } = await next(published, "error");
  assert.deepEqual([error.code, server.sessions.has(code), await joined], ["peer-left", false, null]);
  published.close();
});

test("a publisher withdraws a session whose answer makes no connection", { timeout: 5000 }, async () => {
  const published = publish("lobby", PAGE);
  while (!server.listed("lobby").length) await new Promise(setImmediate);
  const [[code]] = server.sessions;
  server.answer(code, JSON.stringify({ type: "answer", sdp: "lost" }));
  const { error } = await next(published, "error");
  assert.deepEqual([error.code, server.sessions.has(code)], ["connect-timeout", false]);
  published.close();
});

test("a message of a peer that closes at once arrives", { timeout: 5000 }, async () => {
  class Recorded extends LinkedConnection {
    createDataChannel(label, ...parameters) {
      const channel = super.createDataChannel(label, ...parameters);
      this[label] = channel;
      return channel;
    }
  }
  for (const step of ["connected", "open"]) {
    const onstep = (name, _, { data }) => {
      if (name !== step) return;
      queueMicrotask(() => {
        data.twin.send("the last words");
        data.twin.close();
      });
    };
    const published = publish("lobby", { ...PAGE, RTCPeerConnection: Recorded, onstep });
    while (!server.listed("lobby").length) await new Promise(setImmediate);
    listedHere.clear(); // as on another page
    call("lobby").catch(() => {});
    const { connection } = await next(published, "connection");
    const [{ data }] = await Promise.all([next(connection, "message"), connection.closed]);
    assert.equal(data, "the last words");
    published.close();
  }
});

test("channels that a page opens before are not taken for the connection's", { timeout: 5000 }, async () => {
  const prepare = (connection) => ["chat", "data", "pair"].map((label) => connection.createDataChannel(label));
  await assertPaired(page({ prepare }), page({ prepare }));
});

test("a mistake in `prepare` of a later attempt also ends the earlier one", { timeout: 5000 }, async () => {
  for (let count = 0; count < 2; count += 1)
    server.offer("lobby", { info: "silent", offer: '{"type": "offer", "sdp": "lost"}' });
  const mistake = new TypeError("a mistake");
  const prepared = [];
  const steps = [];
  const joining = call("lobby", {
    prepare: (connection) => {
      if (prepared.push(connection) === 2) throw mistake;
    },
    onstep: (name) => steps.push(name),
  });
  await assert.rejects(joining, mistake);
  assert.deepEqual(
    prepared.map(({ connectionState }) => connectionState),
    ["closed", "closed"],
  );
  await new Promise(setImmediate);
  assert.equal(steps.includes("failed"), false);
});
