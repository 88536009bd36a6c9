/* What a server refuses, and whether the same may work later. */

/** A server's refusal: HTTP's status, the server's own text, and after how many ms to try again, if it says so. */
export class SignalError extends Error {
  constructor(status, message, retryAfterMs) {
    super(message);
    this.name = "SignalError";
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Whether the same may work later, or elsewhere: no network, no answer in time, a server that cannot just now. */
export const passing = ({ name, status }) =>
  status >= 500 || status === 429 || ["TypeError", "TimeoutError"].includes(name);

/** With secrets, a session that somebody else has answered is told as one that is not there. */
export const taken = ({ status }) => status === 404 || status === 409;
