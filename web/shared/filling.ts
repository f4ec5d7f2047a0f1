// Checks data against the tables that are generated from Python, and fills in what was left out.

interface Check {
  is: string; // "string", "number", "boolean", "list" or "object"
  of?: string; // the part that the object, or every one of the list, is
  isNullable?: boolean;
}

interface Part {
  required: string[];
  defaults: Record<string, unknown>;
  checks: Record<string, Check>;
}

export type Parts = Record<string, Part>;

export class DataError extends Error {}

/** Data of a part with every key that was left out; throws a DataError that says what is wrong where. */
export function filled<T>(parts: Parts, name: string, given: unknown, where: string): T {
  if (!isRecord(given)) throw new DataError(`Expected an object for ${where}.`);
  const { required, defaults, checks } = parts[name]!;
  for (const key of required) if (!(key in given)) throw new DataError(`"${key}" is missing in ${where}.`);
  const made: Record<string, unknown> = { ...defaults, ...given };
  for (const key in given) {
    const check = checks[key];
    if (check) made[key] = checked(parts, check, given[key], `${where}, "${key}"`);
  }
  return made as T;
}

function checked(parts: Parts, check: Check, value: unknown, where: string): unknown {
  if (value === null && check.isNullable) return null;
  if (check.is === "list") {
    if (!Array.isArray(value)) throw new DataError(`Expected a list for ${where}.`);
    return check.of ? value.map((one, at) => filled(parts, check.of!, one, `${where}, number ${at}`)) : value;
  }
  if (check.of) return filled(parts, check.of, value, where);
  const isRight = check.is === "object" ? isRecord(value) : typeof value === check.is;
  if (!isRight) throw new DataError(`Expected ${check.is === "object" ? "an object" : `a ${check.is}`} for ${where}.`);
  return value;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
