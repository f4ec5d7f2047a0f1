// Numbers, sizes, times, shapes and names as text. Bytes are counted in 1024s and all else in 1000s, as in torcheer's own text.

const MINUS = "−";

/** A whole number with separators: 12,288. */
export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A large number in few characters: 512, 75.0K, 61.1M. */
export function human(value: number): string {
  const size = Math.abs(value);
  if (size < 1000) return figure(value);
  const sign = value < 0 ? MINUS : "";
  let scaled = size;
  for (const unit of ["K", "M", "B"]) {
    scaled /= 1000;
    if (scaled < 999.95) return `${sign}${scaled.toFixed(1)}${unit}`;
  }
  return `${sign}${(scaled / 1000).toFixed(1)}T`;
}

/** Operations on numbers: 512 FLOPs, 1.4 GFLOPs. */
export function flops(value: number): string {
  return human(value).replace("B", "G").replace(/([KMGT]?)$/, " $1FLOPs");
}

/** Bytes, in 1024s: 512 B, 2.3 MB. */
export function bytes(value: number): string {
  if (value < 1024) return `${Math.round(value)} B`;
  let scaled = value;
  for (const unit of ["KB", "MB", "GB"]) {
    scaled /= 1024;
    if (scaled < 1023.95) return `${scaled.toFixed(1)} ${unit}`;
  }
  return `${(scaled / 1024).toFixed(1)} TB`;
}

/** Seconds: 840 ns, 12.3 µs, 4.56 ms, 1.20 s, 2 min 5 s, 3 h 20 min. */
export function time(seconds: number): string {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${(seconds * 1e9).toFixed(0)} ns`;
  if (size < 1e-3) return `${threeDigits(seconds * 1e6)} µs`;
  if (size < 1) return `${threeDigits(seconds * 1e3)} ms`;
  if (size < 60) return `${threeDigits(seconds)} s`;
  if (size < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function threeDigits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** A measured value with so many significant figures, and exponents only where needed; a dash for null. */
export function figure(value: number | null, digits = 4): string {
  if (value === null) return "–";
  if (Number.isNaN(value)) return "NaN";
  const size = Math.abs(value);
  const sign = value < 0 ? MINUS : "";
  if (size === Infinity) return `${sign}∞`;
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) {
    const [mantissa, power] = size.toExponential(Math.min(digits, 3) - 1).split("e") as [string, string];
    return `${sign}${Number(mantissa)}e${power.replace("+", "").replace("-", MINUS)}`;
  }
  return sign + (size >= 1000 ? count(size) : String(Number(size.toPrecision(digits))));
}

/** A power of ten as a tick of an axis: 0.01, 1000, 1e−5. */
export function powerOfTen(value: number): string {
  const size = Math.abs(value);
  const power = String(Math.round(Math.log10(size))).replace("-", MINUS);
  return (value < 0 ? MINUS : "") + (size >= 0.01 && size <= 1000 ? String(Number(size.toPrecision(1))) : `1e${power}`);
}

/** A part of one: 48 %, 4.2 %. */
export function percent(share: number): string {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share > 0.999 && share < 1) return "> 99.9 %";
  return `${Number((100 * share).toFixed(share < 0.1 || share > 0.9 ? 1 : 0))} %`;
}

/** A shape: 1×64×55×55. */
export function shape(sizes: number[] | null): string {
  if (sizes === null) return "shapes differ";
  return sizes.map((size) => (size < 0 ? "?" : String(size))).join("×") || "scalar";
}

/** Where an input was given or an output returned, in short: `kwargs['mask']` is `mask`. */
export function role(text: string): string {
  return text.replace(/^(?:kwargs|output)\['([^']+)'\]/, "$1");
}

/** The name of a file, without its folders. */
export function baseName(path: string): string {
  return path.split(/[\\/]/).at(-1)!;
}

/** Passes in few characters: 1–3,7. */
export function passes(numbers: Iterable<number>): string {
  const runs: [number, number][] = [];
  for (const number of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([low, high]) => (low === high ? String(low) : `${low}–${high}`)).join(",");
}

/** Text with a visible sign for every character that would turn the reading direction or cannot be seen. */
export function clean(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
}

/** Clean text, cut in the middle when it is longer than so many characters. */
export function shortened(text: string, most: number): string {
  const letters = Array.from(clean(text));
  if (letters.length <= most) return letters.join("");
  const tail = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}
