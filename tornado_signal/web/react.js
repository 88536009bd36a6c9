/* A room as a React hook. The browser module is loaded by an effect, so servers can render components with it. */

import { useEffect, useRef, useState } from "react";

const OUTSIDE = { room: null, peers: [], error: null };

export function useRoom(name, options = {}) {
  const [state, setState] = useState(OUTSIDE);
  const latest = useRef(options);
  useEffect(() => {
    latest.current = options;
  });

  const { url, info, me, max, password } = options;
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const enter = ({ room }) => {
      if (signal.aborted) return;
      const { onmessage, token, ...others } = latest.current;
      const renewed = typeof token === "function" ? (...why) => latest.current.token(...why) : token;
      const entered = room(name, { ...others, token: renewed, signal });
      const update = () => setState((before) => ({ ...before, room: entered, peers: [...entered.peers.values()] }));
      for (const type of ["join", "leave"]) entered.addEventListener(type, update, { signal });
      entered.addEventListener("message", (event) => latest.current.onmessage?.(event), { signal });
      entered.addEventListener("error", ({ error }) => setState((before) => ({ ...before, error })), { signal });
      update();
    };
    import("./index.js").then(enter).catch((error) => signal.aborted || setState({ ...OUTSIDE, error }));
    return () => {
      stop.abort();
      setState(OUTSIDE);
    };
  }, [name, url, info, me, max, password]);

  return state;
}
