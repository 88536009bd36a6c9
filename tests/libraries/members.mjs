// Members of a room, and a pair, with an implementation of WebRTC. Each sends messages and a file. Prints what arrives.

const [client, url, implementation] = process.argv.slice(2);
const { pair, room } = await import(client);
const { RTCPeerConnection } = await import(implementation);
const options = { url, origin: "https://app.example", RTCPeerConnection };
const text = "x".repeat(300_000); // goes in parts
const file = new File(["y".repeat(300_000)], "notes.txt", { type: "text/plain" });

/** Send to one side, and return what that side receives. */
async function exchange(recipient, send, sendFile) {
  const heard = [];
  const received = new Promise((resolve) => {
    recipient.addEventListener("message", ({ data }) => {
      heard.push(data instanceof ArrayBuffer ? [...new Uint8Array(data)] : (data.length ?? data));
      if (heard.length === 3) resolve(heard);
    });
  });
  const arrived = new Promise((resolve, reject) => {
    recipient.addEventListener("file", (event) => event.file.accept().then(resolve, reject));
  });
  for (const data of [{ json: true }, text, new Uint8Array([1, 2, 3])]) await send(data);
  await sendFile(file);
  const { name, size } = await arrived;
  return [...(await received), name, size];
}

const rooms = ["one", "two"].map((info) => room("members", { ...options, info }));
const peers = await Promise.all(
  rooms.map((each) => new Promise((resolve) => each.addEventListener("join", ({ peer }) => resolve(peer)))),
);
const pairs = await Promise.all(["one", "two"].map((info) => pair("pairs", { ...options, info })));
const results = [];
for (const at of [0, 1]) {
  const [sender, to] = [rooms[at], peers[at]];
  results.push(
    await exchange(
      rooms[1 - at],
      (data) => sender.send(data, to),
      (file) => sender.sendFile(file, { to }),
    ),
    await exchange(
      pairs[1 - at],
      (data) => pairs[at].send(data),
      (file) => pairs[at].sendFile(file),
    ),
  );
}
console.log(JSON.stringify(results));
process.exit();
