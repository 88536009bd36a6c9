import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { parse, roomOf, seal, topicOf, unseal } from "../../../tornado_signal/web/client/identity.js";
import { named } from "../../../tornado_signal/web/client/named.js";

const {
  topic,
  topics,
  identities,
  accepted,
  ignored,
  json,
  "no json": noJson,
} = JSON.parse(readFileSync(new URL("../../room-vectors.json", import.meta.url), "utf8"));

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

for (const { what, field, to, text, fields } of accepted) {
  test(`accepted: ${what}`, async () => {
    assert.deepEqual(JSON.parse(JSON.stringify(await unseal(topic, text, field, to))), fields);
  });
}

for (const { what, field, to, text } of ignored) {
  test(`ignored: ${what}`, async () => assert.deepEqual(await unseal(topic, text, field, to), {}));
}

test("half of a surrogate pair is replaced", () => {
  for (const [text, value] of json) assert.deepEqual(parse(text), value);
  for (const text of noJson) assert.throws(() => parse(text), SyntaxError);
});

test("what is sealed is unsealed", async () => {
  const identity = await named("of Alice");
  const text = await seal(identity, topic, { from: identity.id, info: "a" }, "someone");
  assert.equal((await unseal(topic, text, "from", "someone")).info, "a");
});
