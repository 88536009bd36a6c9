import { useEffect, useRef, useState } from "react";
import { type Peer, type Room, room, type TokenSource } from "tornado-signal";

export interface Message {
  from: string;
  text: string;
}

/**
 * Join a room while the component is mounted.
 *
 * @param url The address of the server.
 * @param info The text that the other members see.
 * @param token The token, if the server requires one. A function must be the same in each rendering.
 */
export function useRoom(topic: string, url: string, info: string, token?: TokenSource) {
  const [peers, setPeers] = useState<Peer[]>([]);
  const [messages, setMessages] = useState<Message[]>([]);
  const [error, setError] = useState<Error>();
  const current = useRef<Room>(null);

  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const joinedRoom = room(topic, { url, info, signal, token });
    const update = () => setPeers([...joinedRoom.peers.values()]);
    joinedRoom.addEventListener("join", update, { signal });
    joinedRoom.addEventListener("leave", update, { signal });
    joinedRoom.addEventListener("error", ({ error }) => setError(error), { signal });
    joinedRoom.addEventListener(
      "message",
      ({ peer, data }) => {
        if (typeof data === "string") setMessages((before) => [...before, { from: peer.info, text: data }]);
      },
      { signal },
    );
    current.current = joinedRoom;
    update();
    return () => stop.abort();
  }, [topic, url, info, token]);

  function send(text: string) {
    current.current?.send(text);
    setMessages((before) => [...before, { from: `${info} (you)`, text }]);
  }

  return { peers, messages, error, send };
}
