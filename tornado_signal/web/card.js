// A connection on the demo page: its chat, its files, how it was made and which way it goes.

import { Talk } from "./talk.js";

export const $ = (id) => document.getElementById(id);

export const make = (name, text, fields) =>
  Object.assign(document.createElement(name), { textContent: text ?? "", ...fields });

/** A name without what tells two people of that name apart. */
export const shortName = (info) => info.replace(/ · [0-9a-f]{4}$/, "");

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/**
 * Show a connection until it is removed: `name` is who this side is, `steps` are [what, when (ms)] of how it was made;
 * `say` and `complain` tell what happens to it.
 */
export function show(connection, { name, steps, say, complain }) {
  const { channel, peerConnection } = connection;
  const card = $("connection").content.firstElementChild.cloneNode(true);
  const find = (selector) => card.querySelector(selector);
  let peer = connection.info ? shortName(connection.info) : "somebody";
  const title = () => (find("h3").textContent = `With ${peer}`);
  const line = (text, mine) => {
    find(".log").append(make("li", mine ? text : `${peer}: ${text}`, { className: mine ? "mine" : "" }));
    find(".log").scrollTop = find(".log").scrollHeight;
  };
  title();
  $("links").after(card);
  $("unconnected").hidden = true;
  find("tbody").replaceChildren(
    ...steps.map(([text, ms]) => {
      const row = make("tr");
      row.append(make("td", text), make("td", `${Math.round(ms)} ms`));
      return row;
    }),
  );
  describe(peerConnection).then((text) => card.classList.contains("over") || (find(".kind").textContent = text));

  const talk = new Talk(channel, name);
  talk.addEventListener("name", ({ name: theirs }) => {
    peer = theirs.slice(0, 60) || peer;
    title();
    say(`Connected to ${peer}.`);
  });
  talk.addEventListener("text", ({ text }) => line(text));
  talk.addEventListener("refused", ({ reason }) => line(reason));
  const bars = new Map();
  const progress = (file, verb) => {
    if (!bars.has(file)) {
      const item = make("li");
      const label = make("label", `${verb} ${file.name} (${size(file.size)})`);
      label.append(make("progress", "", { max: file.size || 1, value: 0 }));
      item.append(label);
      find(".files").prepend(item);
      bars.set(file, item);
    }
    bars.get(file).querySelector("progress").value = file.done || 0;
    return bars.get(file);
  };
  talk.addEventListener("sending", ({ file }) => {
    const item = progress(file, "Sending");
    if (file.done === file.size) item.replaceChildren(`Sent ${file.name} (${size(file.size)})`);
  });
  talk.addEventListener("receiving", ({ file }) => progress(file, "Receiving"));
  talk.addEventListener("received", ({ file, blob }) => {
    const link = make("a", `Save ${file.name} (${size(file.size)})`, {
      href: URL.createObjectURL(blob),
      download: file.name,
    });
    progress(file).replaceChildren(link);
    line(`sent ${file.name}`);
  });

  find(".say").addEventListener("submit", (event) => {
    event.preventDefault();
    const input = find(".say input");
    talk.say(input.value);
    line(input.value, true);
    input.value = "";
  });
  find(".file input").addEventListener("change", ({ target }) => {
    for (const file of target.files) talk.send(file).catch((error) => complain(`${error.message}.`));
    target.value = "";
  });
  find(".close").addEventListener("click", () => connection.close());
  connection.closed.then(() => {
    card.classList.add("over");
    find(".kind").textContent = "The connection has ended.";
    say(`The connection with ${peer} has ended.`);
    find(".close").replaceWith(
      make("button", "Remove", {
        type: "button",
        onclick() {
          card.remove();
          $("unconnected").hidden = document.querySelector("article") !== null;
        },
      }),
    );
  });
  find(".say input").focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

/** How the data goes: found in the statistics of the pair of addresses that is in use, which may come a little late. */
async function describe(peerConnection) {
  for (let attempt = 0; attempt < 10; attempt += 1) {
    const stats = await peerConnection.getStats();
    const all = [...stats.values()];
    const { selectedCandidatePairId } = all.find(({ type }) => type === "transport") ?? {};
    const pair =
      stats.get(selectedCandidatePairId) ?? all.find(({ type, nominated }) => type === "candidate-pair" && nominated);
    if (pair) {
      const kinds = [pair.localCandidateId, pair.remoteCandidateId].map((id) => stats.get(id)?.candidateType);
      if (kinds.includes("relay")) return "Relayed: all data goes through a TURN server, which cannot read it.";
      return "Direct: the data goes through no server.";
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  return "Connected.";
}
