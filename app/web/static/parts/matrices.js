// Matrices as text and as .npy files.

const WORDS = new Set(["NaN", "Infinity", "-Infinity"]);
const READERS = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "<i8": BigInt64Array, "|u1": Uint8Array, "|i1": Int8Array };

/** Rows of numbers, as a person or a spreadsheet writes them. */
export function matrixOf(text, name) {
  const lines = text.trim().split(/\n+/).filter((line) => line.trim());
  if (!lines.length) throw new Error(`${name} is empty`);
  const rows = lines.map((line) => line.trim().split(/[\s,;]+/).filter(Boolean).map((word) => WORDS.has(word) ? word : Number(word)));
  if (rows.flat().some((value) => Number.isNaN(value))) throw new Error(`something in ${name} is no number`);
  if (rows.some((row) => row.length !== rows[0].length)) throw new Error(`the rows of ${name} have different lengths`);
  return rows;
}

/** The rows of a .npy file of two dimensions. */
export function rowsOf(buffer) {
  const view = new DataView(buffer);
  if (view.getUint32(0) !== 0x934e554d) throw new Error("the file is no .npy");
  const wide = view.getUint8(6) > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, wide ? 12 : 10, length));
  const kind = /'descr': *'([^']+)'/.exec(header)?.[1];
  const sizes = /'shape': *\(([^)]*)\)/.exec(header)?.[1].split(",").map((word) => word.trim()).filter(Boolean).map(Number);
  if (!(kind in READERS)) throw new Error(`elements of type ${kind} are not shown here: send the file by curl or Python`);
  if (sizes?.length !== 2) throw new Error(`the file has ${sizes?.length} dimensions, a matrix has 2`);
  const [rows, columns] = sizes;
  const values = Array.from(new READERS[kind](buffer.slice(start)), Number);
  const turned = /'fortran_order': *True/.test(header);
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (__, column) => values[turned ? column * rows + row : row * columns + column]));
}

export const textOf = (rows) => rows.map((row) => row.join(" ")).join("\n");
export const identity = (rows, columns) => Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (__, column) => Number(row === column)));

/** Numbers from -1 to 1 of three places, the same for a seed everywhere (mulberry32). */
export function random(rows, columns, seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return Array.from({ length: rows }, () => Array.from({ length: columns }, () => Number((2 * next() - 1).toFixed(3))));
}

/** Rows as a .npy file: of float64 where they are, else of float32, which has every float16 and bfloat16. */
export function npyOf(rows, dtype) {
  const [kind, Numbers] = dtype === "float64" ? ["<f8", Float64Array] : ["<f4", Float32Array];
  const header = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${rows.length}, ${rows[0].length}), }`;
  const length = Math.ceil((10 + header.length + 1) / 64) * 64 - 10;
  const start = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, length & 255, length >> 8]);
  return new Blob([start, header.padEnd(length - 1), "\n", new Numbers(rows.flat().map(Number))]);
}
