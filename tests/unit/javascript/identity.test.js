import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { scopeOf, seal, topicOf, unseal } from "../../../tornado_signal/web/client/identity.js";
import { named } from "../../../tornado_signal/web/client/named.js";
import { roomOf } from "../../../tornado_signal/web/client/rooms.js";
import { parse } from "../../../tornado_signal/web/client/text.js";

const {
  origin,
  topic,
  topics,
  identities,
  accepted,
  ignored,
  json,
  "no json": noJson,
} = JSON.parse(readFileSync(new URL("../../room-vectors.json", import.meta.url), "utf8"));

const scope = scopeOf(origin, topic);

test("the topic of a room has no character that proxies change", () => {
  for (const [name, expected] of topics) assert.equal(topicOf("room~", name), expected);
});

test("a room is found from its topic", () => {
  for (const [name] of topics) assert.equal(roomOf(topicOf("room~", name)), name);
  assert.equal(roomOf("room~~110000~"), "~110000~");
});

test("an id is made from its secret", async () => {
  for (const { secret, id } of identities) assert.equal((await named(secret)).id, id);
});

for (const { what, kind, to, code, createdAt, text, fields } of accepted) {
  test(`accepted: ${what}`, async () => {
    assert.deepEqual(JSON.parse(JSON.stringify(await unseal(scope, text, kind, to, code, createdAt))), fields);
  });
}

for (const { what, kind, to, code, createdAt, text } of ignored) {
  test(`ignored: ${what}`, async () => assert.equal(await unseal(scope, text, kind, to, code, createdAt), undefined));
}

test("half of a surrogate pair is replaced", () => {
  for (const [text, value] of json) assert.deepEqual(parse(text), value);
  for (const text of noJson) assert.throws(() => parse(text), SyntaxError);
});

test("what is sealed is unsealed", async () => {
  const identity = await named("of Alice");
  const text = await seal(identity, scope, { from: identity.id, info: "a", code: "b" }, "someone", "c");
  assert.equal((await unseal(scope, text, "mail", "someone", "c")).info, "a");
});
