// Where numbers lie between others.

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}

/** Where a value lies between two others, 0 to 1, on a straight or a logarithmic scale. */
export function share(value: number, low: number, high: number, isLog = false): number {
  if (!(high > low)) return value > 0 ? 1 : 0;
  if (!isLog) return clamp((value - low) / (high - low), 0, 1);
  const floor = Math.max(low, high * 1e-12);
  if (value <= floor) return 0;
  return clamp(Math.log(value / floor) / Math.log(high / floor), 0, 1);
}
