import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { topicOf } from "../../../tornado_signal/web/client/identity.js";
import { Cipher } from "../../../tornado_signal/web/client/secret.js";

const text = readFileSync(new URL("../../room-vectors.json", import.meta.url), "utf8");
const { origin, password: vectors } = JSON.parse(text);
const { room, password, topic, others, accepted, ignored } = vectors;
let turns = 0; // of the event loop
const timer = setInterval(() => {
  turns += 1;
}, 1);
const cipher = await Cipher.of(origin, topicOf("room~", room), password);
clearInterval(timer);

test("the derivation of a key blocks no other task", () => {
  assert.ok(turns > 10, `${turns} turns`); // a few follow from the other steps
});

test("the topic is made from the name and the password", async () => {
  assert.equal(cipher.topic, topic);
  for (const { password, topic, what, origin: other = origin } of others) {
    assert.equal((await Cipher.of(other, topicOf("room~", room), password)).topic, topic, what);
  }
});

for (const { what, code, text, plain } of accepted) {
  test(`accepted: ${what}`, async () => assert.equal(await cipher.unseal(text, code), plain));
}

for (const { what, code, text } of ignored) {
  test(`ignored and counted: ${what}`, async () => {
    const before = cipher.ignored;
    assert.equal(await cipher.unseal(text, code), "");
    assert.equal(cipher.ignored, before + 1);
  });
}

test("mail is accepted once, and a beacon whenever it is listed", async () => {
  const [beacon, mail, other] = await Promise.all([cipher.seal("b"), cipher.seal("m", "1"), cipher.seal("o", "2")]);
  const seen = [];
  const nonces = new Set();
  for (const [text, code] of [[beacon], [beacon], [mail, "1"], [mail, "1"], [`${mail} `, "1"], [other, "2"]]) {
    seen.push(await cipher.unseal(text, code, code && nonces));
  }
  assert.deepEqual(seen, ["b", "b", "m", "", "", "o"]);
});

test("equal texts are encrypted differently", async () => {
  assert.notEqual(await cipher.seal("b"), await cipher.seal("b"));
});

test("an unusable password is an error with a code", async () => {
  for (const password of ["", null, 7]) {
    await assert.rejects(Cipher.of(origin, "room~a", password), { code: "password-invalid" });
  }
});
