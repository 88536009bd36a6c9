/* The bytes of an event stream, taken apart. */

/** A function that takes the bytes of an event stream as they come, split anywhere, and gives what ends in them. */
export function messages() {
  const decoder = new TextDecoder();
  let rest = "";
  let fields = {};
  return function* (bytes) {
    // A CR at the end may be half of a CR LF.
    const lines = (rest + decoder.decode(bytes, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/);
    rest = lines.pop();
    for (const line of lines) {
      if (line) {
        const [, name, value] = /^([^:]*):? ?(.*)/s.exec(line);
        fields[name] = name === "data" && name in fields ? `${fields[name]}\n${value}` : value;
      } else {
        yield fields;
        fields = {};
      }
    }
  };
}
