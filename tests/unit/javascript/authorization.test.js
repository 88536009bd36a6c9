import assert from "node:assert/strict";
import { test } from "node:test";
import { authorizationOf } from "../../../tornado_signal/web/client/authorization.js";
import { passing, refused } from "../../../tornado_signal/web/client/errors.js";

const part = (fields) => Buffer.from(JSON.stringify(fields)).toString("base64url");
/** A token with an expiry, in seconds from now. A subject with this letter has all characters of base64url. */
const make = (seconds, subject = "\u{1f9ff}???>>>") =>
  `e30.${part({ sub: subject, exp: Date.now() / 1000 + seconds })}.sig`;
const echo = async (token) => token;
const refuse = async () => {
  throw refused(401, "Missing or invalid token");
};

/** A source of tokens with these lifetimes in seconds, and the tokens that it has made. */
function source(...lives) {
  const made = [];
  const next = async () => {
    made.push(make(lives[made.length], String(made.length)));
    return made.at(-1);
  };
  return { made, authorization: authorizationOf(next), next };
}

test("a function is called once for calls at the same time, and its token is kept", async () => {
  const { made, authorization } = source(600);
  const used = await Promise.all([authorization.use(echo), authorization.use(echo)]);
  assert.deepEqual(used, [made[0], made[0]]);
  assert.equal(await authorization.use(echo), made[0]);
  assert.equal(authorization.token, made[0]);
  assert.equal(made.length, 1);
});

test("a function is called again a minute before the expiry, or after half of a short life", async (context) => {
  let elapsedMs = 0; // by a clock that is never set
  context.mock.method(performance, "now", () => elapsedMs);
  context.mock.timers.enable({ apis: ["Date"] });
  const tick = (ms) => {
    elapsedMs += ms;
    context.mock.timers.tick(ms);
  };
  const { made, authorization } = source(600, 40, 40);
  await authorization.use(echo);
  tick(539_000);
  await authorization.use(echo);
  assert.equal(made.length, 1);
  tick(1000);
  assert.equal(await authorization.use(echo), made[1]);
  context.mock.timers.tick(3_600_000); // the wall clock is set
  tick(19_000);
  await authorization.use(echo);
  assert.equal(made.length, 2);
  tick(1000);
  assert.equal(await authorization.use(echo), made[2]);
});

test("a function is not called for every request if the clock is wrong", async () => {
  const { made, authorization } = source(-3600);
  assert.equal(await authorization.use(echo), made[0]);
  assert.equal(await authorization.use(echo), made[0]);
});

test("after a 401 the task runs once more with a new token", async () => {
  const { made, authorization } = source(600, 600);
  const used = await authorization.use((token) => (token === made[0] ? refuse() : echo(token)));
  assert.equal(used, made[1]);
  assert.equal(made.length, 2);
});

test("calls that are refused at the same time renew the token once", async () => {
  const { made, authorization } = source(600, 600, 600);
  const once = (token) => (token === made[0] ? refuse() : echo(token));
  await Promise.all([authorization.use(once), authorization.use(once), authorization.use(once)]);
  assert.equal(made.length, 2);
});

test("a second 401, another error, and an error of the function are errors of the task", async () => {
  const { made, authorization } = source(600, 600);
  await assert.rejects(authorization.use(refuse), { status: 401 });
  assert.equal(made.length, 2);
  const other = refused(403, "Not allowed by the token");
  await assert.rejects(
    authorization.use(() => Promise.reject(other)),
    other,
  );
  assert.equal(made.length, 2);
  const offline = new TypeError("Failed to fetch");
  await assert.rejects(authorizationOf(() => Promise.reject(offline)).use(echo), offline);
});

test("a text is presented as it is, and its 401 is final", async () => {
  let runs = 0;
  assert.equal(await authorizationOf("a text").use(echo), "a text");
  await assert.rejects(
    authorizationOf("a text").use((token) => {
      runs += 1;
      return refuse(token);
    }),
    { code: "unauthorized" },
  );
  assert.equal(runs, 1);
  assert.equal(await authorizationOf(undefined).use(echo), "");
});

test("clients with the same source share an authorization", () => {
  const { authorization, next } = source();
  assert.equal(authorizationOf(next), authorization);
  assert.equal(authorizationOf("a text"), authorizationOf("a text"));
  assert.notEqual(authorizationOf("a text"), authorizationOf("another"));
  assert.equal(authorizationOf(undefined), authorizationOf(""));
});

test("a function that hangs once, or fails after it has worked, is called again", async (context) => {
  const fail = () => Promise.reject(new TypeError("fetch failed"));
  const outcomes = [() => new Promise(() => {}), () => make(600), fail, () => make(600)];
  const authorization = authorizationOf(() => outcomes.shift()());
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const hanging = authorization.use(echo);
  while (outcomes.length > 3) await new Promise(setImmediate); // the part that calls the function is loaded
  context.mock.timers.tick(15_000);
  const failed = (error) => error.code === "token-failed" && passing(error);
  await assert.rejects(hanging, failed);
  assert.ok(await authorization.use(echo));
  await assert.rejects(authorization.use(refuse), failed);
  assert.ok(await authorization.use(echo));
});

test("the error of a function that has never worked is the application's", async () => {
  const error = new TypeError("config is undefined");
  const failing = authorizationOf(() => {
    throw error;
  });
  await assert.rejects(failing.use(echo), (thrown) => thrown === error && !passing(thrown));
});
