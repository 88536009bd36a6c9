import { WebrtcProvider } from "y-webrtc";
import * as Y from "yjs";

const server = "http://127.0.0.1:3000";
const doc = new Y.Doc();
const text = doc.getText("text");
const area = document.querySelector("textarea");

new WebrtcProvider("a-shared-text", doc, { signaling: [`${server.replace("http", "ws")}/y-webrtc`] });

text.observe(() => {
  area.value = text.toString();
});

area.addEventListener("input", () => {
  const before = text.toString();
  const after = area.value;
  let start = 0;
  while (start < Math.min(before.length, after.length) && before[start] === after[start]) start += 1;
  let end = 0;
  const rest = Math.min(before.length, after.length) - start;
  while (end < rest && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  doc.transact(() => {
    text.delete(start, before.length - start - end);
    text.insert(start, after.slice(start, after.length - end));
  });
});
