// Numbers, sizes, times and shapes in words that fit on a box.

export function plural(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** A large number in few characters: 512, 75.0K, 61.1M. */
export function human(count: number): string {
  const size = Math.abs(count);
  if (size < 1000) return Number.isInteger(count) ? String(count) : figure(count);
  let scaled = size;
  for (const unit of ["K", "M", "G"]) {
    scaled /= 1000;
    if (scaled < 999.95) return `${count < 0 ? "−" : ""}${scaled.toFixed(1)}${unit}`;
  }
  return `${count < 0 ? "−" : ""}${(scaled / 1000).toFixed(1)}T`;
}

/** Operations on numbers: 512 FLOPs, 1.4 GFLOPs. */
export function flops(count: number): string {
  return human(count).replace(/([KMGT]?)$/, " $1FLOPs");
}

/** Bytes, in 1024s: 512 B, 2.3 MB. */
export function bytes(count: number): string {
  if (count < 1024) return `${Math.round(count)} B`;
  let scaled = count;
  for (const unit of ["KB", "MB", "GB"]) {
    scaled /= 1024;
    if (scaled < 1023.95) return `${scaled.toFixed(1)} ${unit}`;
  }
  return `${(scaled / 1024).toFixed(1)} TB`;
}

/** Seconds: 840 ns, 12.3 µs, 4.56 ms, 1.20 s. */
export function time(seconds: number): string {
  if (seconds === 0) return "0 s";
  const size = Math.abs(seconds);
  if (size < 1e-6) return `${(seconds * 1e9).toFixed(0)} ns`;
  if (size < 1e-3) return `${three(seconds * 1e6)} µs`;
  if (size < 1) return `${three(seconds * 1e3)} ms`;
  return `${three(seconds)} s`;
}

/** A measured value: four significant figures, exponents only where needed. */
export function figure(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US").replace("-", "−");
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replaceAll("-", "−");
}

export function percent(share: number): string {
  const scaled = share * 100;
  if (scaled === 0) return "0 %";
  return `${scaled < 0.1 ? "< 0.1" : scaled < 10 ? scaled.toFixed(1) : scaled.toFixed(0)} %`;
}

/** A shape: 1×64×55×55. */
export function shape(sizes: number[] | null): string {
  if (sizes === null) return "shapes differ";
  return sizes.map((size) => (size < 0 ? "?" : String(size))).join("×") || "scalar";
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

/** Text cut in the middle when it is longer than so many characters. */
export function shortened(text: string, limit: number): string {
  if (text.length <= limit) return text;
  const tail = Math.floor((limit - 1) / 2);
  return `${text.slice(0, limit - 1 - tail)}…${text.slice(text.length - tail)}`;
}

function three(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}
