import { type FormEvent, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { useRoom } from "./useRoom";

const SERVER = import.meta.env.VITE_SERVER ?? "http://127.0.0.1:3000";
const TOKENS = import.meta.env.VITE_TOKENS; // the address of the backend, if the server requires tokens
const INFO = `Guest ${Math.floor(1000 * Math.random())}`;

async function fetchToken() {
  const response = await fetch(`${TOKENS}?user=${encodeURIComponent(INFO)}`);
  return response.text();
}

function App() {
  const { peers, messages, error, send } = useRoom("lobby", SERVER, INFO, TOKENS && fetchToken);
  const [text, setText] = useState("");

  function submit(event: FormEvent) {
    event.preventDefault();
    send(text);
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
