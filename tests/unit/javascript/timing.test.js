import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { passing, refused, taken, unreachable } from "../../../tornado_signal/web/client/errors.js";
import { request } from "../../../tornado_signal/web/client/http.js";
import { iceFailure } from "../../../tornado_signal/web/client/negotiation.js";
import { SignalClient } from "../../../tornado_signal/web/client/signal-client.js";
import { Deadline, makePace, retry, withTimeout } from "../../../tornado_signal/web/client/timing.js";

const never = new Promise(() => {});

test("a deadline that passes aborts its signal and says so", async () => {
  const deadline = new Deadline();
  await assert.rejects(deadline.within(1, never), { name: "SignalError", code: "timeout", retryable: true });
  assert.equal(deadline.passed, true);
  assert.equal(deadline.signal.aborted, true);
});

test("a failure without a TURN server has a code of its own", () => {
  const given = (...urls) => ({ getConfiguration: () => ({ iceServers: urls.map((each) => ({ urls: each })) }) });
  for (const none of [given(), given("stun:a.example", ["stun:turn.example"]), {}])
    assert.equal(iceFailure("Bob", none).code, "no-relay");
  for (const some of [given("stun:a", "turn:a"), given(["turns:a.example?transport=tcp"])])
    assert.equal(iceFailure("Bob", some).code, "ice-failed");
  assert.match(iceFailure("Bob", given()).message, /Bob.*docs\/turn\.md/);
});

test("pauses that a server asks for are bounded", () => {
  for (const wrong of [-5000, 0, NaN, "soon", {}, undefined]) {
    assert.equal(refused(503, "busy", wrong).retryAfterMs, undefined);
  }
  assert.equal(refused(503, "busy", 1e12).retryAfterMs, 3_600_000);
});

test("polls after a burst are delayed", async () => {
  const pace = makePace();
  const signal = new AbortController().signal;
  const beganMs = performance.now();
  for (let count = 0; count < 23; count += 1) await pace(signal);
  assert.ok(performance.now() - beganMs >= 200);
});

test("a deadline ends with the signal that it was made with", async () => {
  const outer = new AbortController();
  const deadline = new Deadline(outer.signal);
  const waiting = deadline.within(60_000, never);
  outer.abort(new Error("enough"));
  await assert.rejects(waiting, { message: "enough" });
  assert.equal(deadline.passed, false);
  assert.equal(new Deadline(outer.signal).signal.aborted, true);
});

test("what a task comes to, and its deadline has ended", async () => {
  let signal;
  const result = await withTimeout(60_000, undefined, async (deadline) => {
    ({ signal } = deadline);
    return 7;
  });
  assert.equal(result, 7);
  assert.equal(signal.aborted, true);
});

test("only what may pass is tried again", async () => {
  const { signal } = new AbortController();
  let tries = 0;
  const failing = (error) => async () => {
    tries += 1;
    throw error;
  };
  await assert.rejects(retry(failing(refused(404, "no")), signal, 5), { status: 404 });
  assert.equal(tries, 1);
  await assert.rejects(retry(failing(refused(503, "later", 1)), signal, 2), { status: 503 });
  assert.equal(tries, 3);
});

test("which errors may pass, and which say that a session is taken", () => {
  assert.deepEqual(
    [500, 503, 429, 404, 409, 400].map((status) => [passing(refused(status, "")), taken(refused(status, ""))]),
    [
      [true, false],
      [true, false],
      [true, false],
      [false, true],
      [false, true],
      [false, false],
    ],
  );
  assert.equal(passing(unreachable("https://server")), true);
  const others = [
    new TypeError("of the page"),
    new DOMException("", "TimeoutError"),
    { status: 503, retryable: true },
    "text",
    undefined,
  ];
  for (const error of others) assert.equal(passing(error), false);
});

test("an error response has the code of its status", () => {
  const codes = [400, 403, 404, 409, 413, 429, 500, 503].map((status) => refused(status, "").code);
  const [invalid, busy] = ["invalid-request", "server-busy"];
  assert.deepEqual(codes, [invalid, "origin-not-allowed", "not-found", "already-answered", invalid, busy, busy, busy]);
  assert.match(refused(429, "Too many requests").message, /responds but refuses requests: 429 Too many/);
  assert.equal(refused(401, "Missing or invalid token").code, "unauthorized");
  assert.equal(refused(403, "Not allowed by the token").code, "not-allowed");
});

test("the error of a proxy without its server names the status", async (context) => {
  let statusText = "Bad Gateway";
  context.mock.method(globalThis, "fetch", async () => new Response("<html>", { status: 502, statusText }));
  const fails = (message) => assert.rejects(request("http://127.0.0.1:1/health", {}), { code: "server-busy", message });
  await fails("The server responds but refuses requests: 502 Bad Gateway");
  statusText = ""; // as in HTTP/2
  await fails("The server responds but refuses requests: 502");
});

test("a deadline keeps nothing of what it has waited for", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const deadline = new Deadline();
  const events = [];
  for (let count = 0; count < 100; count += 1) {
    const event = { count };
    events.push(new WeakRef(event));
    await deadline.within(undefined, Promise.resolve(event));
  }
  await new Promise((resolve) => setTimeout(resolve));
  collect();
  assert.ok(events.filter((each) => each.deref()).length < 10);
});

test("another protocol than HTTP is not a server", async () => {
  const server = createServer((socket) => socket.on("data", () => socket.end("SSH-2.0-OpenSSH_9.2\r\n")));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.unref().address();
  const options = { origin: "https://app.example", socket: false };
  await assert.rejects(new SignalClient(`http://127.0.0.1:${port}`, options).health(), { code: "not-a-server" });
});
