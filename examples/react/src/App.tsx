import { type FormEvent, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { useRoom } from "tornado-signal/react";

const SERVER = import.meta.env.VITE_SERVER ?? "http://127.0.0.1:3000";
const TOKENS = import.meta.env.VITE_TOKENS; // the address of the backend, if the server requires tokens
const INFO = `Guest ${Math.floor(1000 * Math.random())}`;

async function fetchToken() {
  const response = await fetch(`${TOKENS}?user=${encodeURIComponent(INFO)}`);
  return response.text();
}

function App() {
  const [messages, setMessages] = useState<{ from: string; text: string }[]>([]);
  const [text, setText] = useState("");
  const add = (from: string, text: string) => setMessages((before) => [...before, { from, text }]);
  const { room, peers, error } = useRoom("lobby", {
    url: SERVER,
    info: INFO,
    token: TOKENS && fetchToken,
    onmessage: ({ peer, data }) => add(peer.info, String(data)),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    room?.send(text);
    add(`${INFO} (you)`, text);
    setText("");
  }

  return (
    <>
      <h1>A room</h1>
      <p role="status">{peers.length ? `You and ${peers.length} more` : "You are alone here."}</p>
      {error && <p role="alert">{error.message}</p>}
      <ul role="log">
        {messages.map((message, index) => (
          <li key={index}>
            {message.from}: {message.text}
          </li>
        ))}
      </ul>
      <form onSubmit={submit}>
        <input aria-label="Message" value={text} onChange={({ target }) => setText(target.value)} required />
        <button type="submit">Send</button>
      </form>
    </>
  );
}

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
