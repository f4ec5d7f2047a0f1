// What the page was given: facts at once, statistics and histograms unpacked at the start, pictures when they are looked at.

const LARGEST_CACHE = 200e6; // bytes of unpacked pictures

async function unpack(id) {
  const text = atob(byId(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Run {
  static async read() {
    const facts = JSON.parse(byId("facts").textContent);
    const [planes, histograms] = await Promise.all([unpack("statistics"), unpack("histograms")]);
    return new Run(facts, planes, histograms);
  }

  constructor(facts, planes, histograms) {
    this.facts = facts;
    this.steps = facts.steps;
    this.count = facts.steps.length;
    this.layers = facts.layers;
    this.kindWords = facts.kinds;
    this.series = facts.series.map((one, index) => ({ ...one, index, frames: framesOf(one.chunks) }));
    this._table = fromPlanes(planes);
    this._fields = Object.fromEntries(facts.fields.map((name, at) => [name, at]));
    this._histograms = histograms;
    this._parts = Float64Array.from({ length: 256 }, (_, code) => (code ? facts.leastFraction ** (1 - (code - 1) / 254) : 0));
    this._found = new Map(this.series.map((one) => [`${one.layer}/${one.kind}`, one]));
    this.bins = facts.edges.length + 1;
  }

  find(layer, kind) {
    return this._found.get(`${layer}/${kind}`);
  }

  kindsOf(layer) {
    return Object.keys(this.kindWords).filter((kind) => this.find(layer, kind));
  }

  value(series, field, at) {
    return this._table[(series.index * this.facts.fields.length + this._fields[field]) * this.count + at];
  }

  has(series, at) {
    return !Number.isNaN(this.value(series, "form", at));
  }

  form(series, at) {
    return series.forms[this.value(series, "form", at)];
  }

  nonfinite(series, at) {
    return this.value(series, "nan", at) + this.value(series, "inf", at);
  }

  // The part of the values that lie in a bin; told to within some hundredths of itself.
  part(series, bin, at) {
    if (series.kind === "summary") return 0;
    return this._parts[this._histograms[(series.index * this.bins + bin) * this.count + at]];
  }

  // The kinds of a layer that have pictures.
  pictured(layer) {
    return this.kindsOf(layer).filter((kind) => kind !== "summary");
  }

  name(layer, most) {
    return short(this.layers[layer], most);
  }

  title(layer) {
    return clean(this.layers[layer]);
  }

  stepText(at) {
    return count(this.steps[at]);
  }
}

function framesOf(chunks) {
  return chunks.flatMap((chunk) =>
    chunk.frames.map(([at, high, flags], number) => {
      return { at, low: flags & 1 ? -high : 0, high, isClipped: Boolean(flags & 2), number, chunk };
    }),
  );
}

function fromPlanes(planes) {
  const length = planes.length / 4;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0; i < length; i++) bytes[4 * i + plane] = planes[plane * length + i];
  }
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length }, (_, i) => view.getFloat32(4 * i, true));
}

// The frame nearest to a snapshot; most often its own.
function nearestFrame(series, at) {
  let best = null;
  for (const frame of series.frames) {
    if (!best || Math.abs(frame.at - at) < Math.abs(best.at - at)) best = frame;
  }
  return best;
}

// Unpacks pictures when they are first wanted, and lets go of those not wanted for longest.
class Album {
  constructor(whenRead) {
    this._whenRead = whenRead;
    this._chunks = new Map();
    this._size = 0;
  }

  // The codes of a frame, or nothing as long as they are being unpacked.
  codes(frame) {
    const { block } = frame.chunk;
    const found = this._chunks.get(block);
    if (!found) {
      this._read(frame.chunk);
      return null;
    }
    this._chunks.delete(block);
    this._chunks.set(block, found);
    if (!found.data) return null;
    const size = frame.chunk.kept.reduce((a, b) => a * b, 1);
    return found.data.subarray(frame.number * size, (frame.number + 1) * size);
  }

  async _read(chunk) {
    const entry = { data: null };
    this._chunks.set(chunk.block, entry);
    const data = await unpack(`pictures-${chunk.block}`);
    const size = chunk.kept.reduce((a, b) => a * b, 1);
    for (let i = size; i < data.length; i++) data[i] += data[i - size];
    entry.data = data;
    this._size += data.length;
    for (const [block, old] of this._chunks) {
      if (this._size <= LARGEST_CACHE) break;
      if (old === entry || !old.data) continue;
      this._size -= old.data.length;
      this._chunks.delete(block);
    }
    this._whenRead();
  }
}
