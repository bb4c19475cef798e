// The files in a zip, such as a .npz.

const ENTRY = 46; // bytes of an entry of the directory before its name
const END = 22;
const DEFLATED = 8;

const inflated = (bytes) => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();

/** Each file's bytes by its name, in the order of the zip's directory. */
export async function filesOf(buffer) {
  const view = new DataView(buffer);
  const number = (at) => view.getUint16(at, true);
  const long = (at) => view.getUint32(at, true);
  const end = buffer.byteLength - END; // no comment follows
  const found = new Map();
  for (let left = number(end + 10), at = long(end + 16); left; left -= 1) {
    const [name, extra, comment] = [number(at + 28), number(at + 30), number(at + 32)];
    const start = long(at + 42);
    const from = start + 30 + number(start + 26) + number(start + 28);
    const bytes = buffer.slice(from, from + long(at + 20));
    const called = new TextDecoder().decode(new Uint8Array(buffer, at + ENTRY, name));
    found.set(called, number(at + 10) === DEFLATED ? await inflated(bytes) : bytes);
    at += ENTRY + name + extra + comment;
  }
  return found;
}
