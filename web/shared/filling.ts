// Checks data against the tables that are generated from Python, and fills in what was left out.

interface Check {
  is: string; // "string", "number", "boolean", "list" or "object"
  of?: string; // the part that the object, or every element of the list, is
  isNullable?: boolean;
}

interface Part {
  required: string[];
  template: Record<string, unknown>; // every key: its default, or null. Copies of it are quick to fill, for they never grow.
  checks: Record<string, Check>;
}

export type Parts = Record<string, Part>;

/** Says what is wrong in some data, and where: `nodes[3].stats: "count" is missing.` */
export class DataError extends Error {
  constructor(
    readonly reason: string,
    readonly place = "",
  ) {
    super(place ? `${place}: ${reason}` : reason);
  }

  /** The same error, with the place that holds this one before it. */
  inside(place: string): DataError {
    return new DataError(this.reason, this.place ? `${place}.${this.place}` : place);
  }
}

/** Data of a part with every key that was left out; throws a DataError. */
export function filled<T>(parts: Parts, name: string, given: unknown): T {
  if (!isRecord(given)) throw new DataError("expected an object.");
  const { required, template, checks } = parts[name]!;
  for (const key of required) if (!(key in given)) throw new DataError(`"${key}" is missing.`);
  const made: Record<string, unknown> = { ...template, ...given };
  for (const key in given) {
    const check = checks[key];
    const value = given[key];
    if (!check || (value === null && check.isNullable)) continue;
    if (!isOfKind(value, check.is)) throw new DataError(`expected ${check.is === "object" ? "an" : "a"} ${check.is}.`, key);
    const inner = check.of;
    if (!inner) continue;
    if (Array.isArray(value)) made[key] = value.map((one, i) => filledAt(parts, inner, one, key, i));
    else made[key] = filledAt(parts, inner, value, key);
  }
  return made as T;
}

function filledAt(parts: Parts, name: string, given: unknown, key: string, i?: number): unknown {
  try {
    return filled(parts, name, given);
  } catch (error) {
    throw error instanceof DataError ? error.inside(i === undefined ? key : `${key}[${i}]`) : error;
  }
}

function isOfKind(value: unknown, kind: string): boolean {
  if (kind === "list") return Array.isArray(value);
  return kind === "object" ? isRecord(value) : typeof value === kind;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
