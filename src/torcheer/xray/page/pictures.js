// From the codes of a frame to a picture: where the tiles lie, which colour each value has, and what is under the pointer.

const NEGATIVE = 253;
const POSITIVE = 254;
const NOT_A_NUMBER = 255;
const atlas = document.createElement("canvas");

// Colours -----------------------------------------------------------------------------------------------------------

function packedColour(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0; // as a little-endian pixel of ImageData
}

function readColours(hex) {
  return Uint32Array.from({ length: hex.length / 6 }, (_, i) => {
    const rgb = parseInt(hex.slice(6 * i, 6 * i + 6), 16);
    return packedColour(rgb >> 16, (rgb >> 8) & 255, rgb & 255);
  });
}

function cssColour(pixel) {
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}

class Palette {
  constructor(facts) {
    this.levels = facts.levels;
    this.bothSigns = readColours(facts.bothSigns);
    this.neverNegative = readColours(facts.neverNegative);
    this.nonfinite = readColours(facts.nonfinite.slice(1))[0];
  }

  of(limits) {
    return limits[0] < 0 ? this.bothSigns : this.neverNegative;
  }

  // The colour of each code of a frame, with the ends of the scale at `limits`.
  table(frame, limits) {
    const colours = this.of(limits);
    const table = new Uint32Array(256).fill(this.nonfinite);
    for (let code = 0; code <= this.levels; code++) {
      table[code] = colours[Math.round(share(codeValue(frame, code, this.levels), limits) * (colours.length - 1))];
    }
    return table;
  }

  // The brightness of each code, where three of them make one colour.
  brightness(frame, limits) {
    return Uint8Array.from({ length: 256 }, (_, code) => Math.round(share(codeValue(frame, code, this.levels), limits) * 255));
  }
}

function codeValue(frame, code, levels) {
  return frame.low + ((frame.high - frame.low) * code) / levels;
}

function share(value, limits) {
  return clamp((value - limits[0]) / (limits[1] - limits[0] || 1), 0, 1);
}

// Where tiles lie, in pixels of the screen -----------------------------------------------------------------------------

// What a frame shows: how many tiles, of which size, with which numbers.
function subjectOf(form, frame, stride) {
  const every = (numbers) => numbers.filter((_, at) => at % stride === 0);
  const { kept } = frame.chunk;
  if (form.layout === "maps")
    return { shape: "tiles", count: kept[0], height: kept[1], width: kept[2], rows: form.rows, planes: 1 };
  if (form.layout === "matrix" || (kept[2] === 1 && kept[3] === 1 && !form.colour)) {
    const columns = form.columns ?? Array.from({ length: kept[1] * stride }, (_, at) => at);
    const isMatrix = form.layout === "matrix";
    return {
      shape: "matrix",
      count: 1,
      height: kept[0],
      width: kept[1],
      rows: every(form.rows),
      columns: isMatrix ? every(columns) : columns,
      planes: 1,
    };
  }
  const [count, inputs, height, width] = kept;
  const rows = every(form.rows);
  if (form.colour) return { shape: "tiles", count, height, width, rows, planes: 3 };
  if (inputs === 1) return { shape: "tiles", count, height, width, rows, planes: 1 };
  const columns = form.columns ?? Array.from({ length: inputs }, (_, at) => at);
  return { shape: "grid", count: count * inputs, across: inputs, height, width, rows, columns, planes: 1 };
}

// room: { width, height, unit, isSmall }, unit being the pixels of the screen for one of the page.
function planOf(subject, room) {
  if (subject.shape === "matrix") return planMatrix(subject, room);
  return subject.shape === "grid" ? planGrid(subject, room) : planTiles(subject, room);
}

// A line is drawn as a band.
function drawnSize({ height, width }) {
  return [height === 1 ? Math.max(1, width / 8) : height, width === 1 ? Math.max(1, height / 8) : width];
}

// Large pixels are all of one size; small ones may differ, so that tiles are not much smaller than there is room for.
function whole(scale) {
  return scale >= 3 ? Math.floor(scale) : scale;
}

function planTiles(subject, { width, height, unit, isSmall }) {
  const gap = (isSmall ? 1 : 6) * unit;
  const [tileHeight, tileWidth] = drawnSize(subject);
  const most = (isSmall ? 112 : 200) * unit;
  const strip = isSmall ? 0 : 15 * unit;
  let best = null;
  for (let across = 1; across <= subject.count; across++) {
    const down = Math.ceil(subject.count / across);
    const room = Math.min(
      (width - gap * (across - 1)) / (across * tileWidth),
      (height - gap * (down - 1) - strip * down) / (down * tileHeight),
      most / Math.max(tileWidth, tileHeight),
    );
    if (room <= 0) continue;
    const scale = whole(room);
    const empty = across * down - subject.count;
    if (!best || scale > best.scale || (scale === best.scale && empty < best.empty)) best = { across, scale, empty };
  }
  best ??= {
    across: Math.ceil(Math.sqrt(subject.count)),
    scale: width / (tileWidth * Math.ceil(Math.sqrt(subject.count)) * 2),
  };
  const [w, h] = [tileWidth * best.scale, tileHeight * best.scale];
  const isNumbered = !isSmall && w >= 20 * unit;
  const lead = isNumbered ? strip : 0;
  const plan = { tiles: [], texts: [], width: 0, height: 0 };
  for (let i = 0; i < subject.count; i++) {
    const x = Math.round((i % best.across) * (w + gap));
    const y = Math.round(Math.floor(i / best.across) * (h + gap + lead) + lead);
    plan.tiles.push({ x, y, w, h, index: i, row: subject.rows[i], column: null });
    if (isNumbered) plan.texts.push({ x, y: y - 3 * unit, text: String(subject.rows[i]), align: "left" });
    plan.width = Math.max(plan.width, x + w);
    plan.height = Math.max(plan.height, y + h);
  }
  return plan;
}

// Filters one way, input channels the other, whichever leaves larger tiles.
function planGrid(subject, { width, height, unit, isSmall }) {
  const gap = (isSmall ? 1 : 2) * unit;
  const [left, top] = isSmall ? [0, 0] : [30 * unit, 16 * unit];
  const [tileHeight, tileWidth] = drawnSize(subject);
  const filters = subject.rows.length;
  const inputs = subject.columns.length;
  const scaleFor = (across, down) =>
    Math.min(
      (width - left - gap * (across - 1)) / (across * tileWidth),
      (height - top - gap * (down - 1)) / (down * tileHeight),
      (48 * unit) / Math.max(tileWidth, tileHeight),
    );
  const isTurned = whole(scaleFor(filters, inputs)) > whole(scaleFor(inputs, filters));
  const [across, down] = isTurned ? [filters, inputs] : [inputs, filters];
  const scale = whole(Math.max(scaleFor(across, down), 0.05));
  const [w, h] = [tileWidth * scale, tileHeight * scale];
  const plan = { tiles: [], texts: [], isTurned, width: left + across * (w + gap) - gap, height: top + down * (h + gap) - gap };
  for (let i = 0; i < subject.count; i++) {
    const [filter, input] = [Math.floor(i / inputs), i % inputs];
    const x = Math.round(left + (isTurned ? filter : input) * (w + gap));
    const y = Math.round(top + (isTurned ? input : filter) * (h + gap));
    plan.tiles.push({ x, y, w, h, index: i, row: subject.rows[filter], column: subject.columns[input] });
  }
  if (!isSmall) {
    const [xs, ys] = isTurned ? [subject.rows, subject.columns] : [subject.columns, subject.rows];
    for (const at of ticks(across, w + gap, 24 * unit))
      plan.texts.push({ x: left + at * (w + gap) + w / 2, y: top - 4 * unit, text: String(xs[at]), align: "center" });
    for (const at of ticks(down, h + gap, 14 * unit))
      plan.texts.push({
        x: left - 6 * unit,
        y: top + at * (h + gap) + h / 2 + 3.5 * unit,
        text: String(ys[at]),
        align: "right",
      });
  }
  return plan;
}

function planMatrix(subject, { width, height, unit, isSmall }) {
  const [left, top] = isSmall ? [0, 0] : [36 * unit, 16 * unit];
  const [rows, columns] = [subject.height, subject.width];
  const largest = 30 * unit;
  let across = whole(Math.min((width - left) / columns, largest));
  let down = Math.min(across, (height - top) / rows);
  const least = (isSmall ? 48 : 140) * unit;
  if (rows * down < least) down = Math.min(least / rows, largest);
  if (columns * across < least) across = Math.min(least / columns, largest, (width - left) / columns);
  [across, down] = [whole(across), whole(down)];
  const [w, h] = [columns * across, rows * down];
  const plan = {
    tiles: [{ x: left, y: top, w, h, index: 0, row: null, column: null }],
    texts: [],
    width: left + w,
    height: top + h,
  };
  if (!isSmall) {
    for (const at of ticks(columns, across, 34 * unit))
      plan.texts.push({ x: left + (at + 0.5) * across, y: top - 4 * unit, text: String(subject.columns[at]), align: "center" });
    for (const at of ticks(rows, down, 14 * unit))
      plan.texts.push({
        x: left - 6 * unit,
        y: top + (at + 0.5) * down + 3.5 * unit,
        text: String(subject.rows[at]),
        align: "right",
      });
  }
  return plan;
}

// Which of so many places get a number, so that the numbers do not touch.
function ticks(length, size, least) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
  const step = steps.find((one) => one * size >= least) ?? length;
  return Array.from({ length: Math.ceil(length / step) }, (_, at) => at * step);
}

// Drawing -------------------------------------------------------------------------------------------------------------

function drawFrame(canvas, plan, subject, pixels, unit, ink) {
  const [width, height] = [Math.ceil(plan.width), Math.ceil(plan.height)];
  Object.assign(canvas, { width, height });
  canvas.style.width = `${width / unit}px`;
  canvas.style.height = `${height / unit}px`;
  const pen = canvas.getContext("2d");
  const perRow = Math.max(1, Math.ceil(Math.sqrt(subject.count)));
  fillAtlas(subject, pixels, perRow);
  for (const tile of plan.tiles) {
    pen.imageSmoothingEnabled = tile.w < 3 * subject.width || tile.h < 3 * subject.height;
    pen.imageSmoothingQuality = "high";
    const x = (tile.index % perRow) * subject.width;
    const y = Math.floor(tile.index / perRow) * subject.height;
    pen.drawImage(atlas, x, y, subject.width, subject.height, tile.x, tile.y, tile.w, tile.h);
  }
  pen.fillStyle = ink;
  pen.font = `${10.5 * unit}px system-ui, sans-serif`;
  for (const { x, y, text, align } of plan.texts) {
    pen.textAlign = align;
    pen.fillText(text, x, y);
  }
}

// All tiles at their own size, in rows, so that no side gets too long for a canvas.
function fillAtlas(subject, pixels, perRow) {
  const { count, width, height } = subject;
  Object.assign(atlas, { width: width * Math.min(perRow, count), height: height * Math.ceil(count / perRow) });
  const pen = atlas.getContext("2d", { willReadFrequently: true });
  const image = pen.createImageData(atlas.width, atlas.height);
  const target = new Uint32Array(image.data.buffer);
  for (let tile = 0; tile < count; tile++) {
    const start = Math.floor(tile / perRow) * height * atlas.width + (tile % perRow) * width;
    for (let row = 0; row < height; row++) {
      const from = (tile * height + row) * width;
      target.set(pixels.subarray(from, from + width), start + row * atlas.width);
    }
  }
  pen.putImageData(image, 0, 0);
}

function pixelsOf(subject, codes, frame, limits, palette) {
  if (subject.planes === 3) return colourPixels(subject, codes, palette.brightness(frame, limits), palette);
  const table = palette.table(frame, limits);
  const pixels = new Uint32Array(codes.length);
  for (let i = 0; i < codes.length; i++) pixels[i] = table[codes[i]];
  return pixels;
}

function colourPixels(subject, codes, bright, palette) {
  const area = subject.width * subject.height;
  const pixels = new Uint32Array(subject.count * area);
  for (let i = 0; i < pixels.length; i++) {
    const at = Math.floor(i / area) * 3 * area + (i % area);
    const [red, green, blue] = [codes[at], codes[at + area], codes[at + 2 * area]];
    const isKnown = Math.max(red, green, blue) <= palette.levels;
    pixels[i] = isKnown ? packedColour(bright[red], bright[green], bright[blue]) : palette.nonfinite;
  }
  return pixels;
}

// What is under a point ------------------------------------------------------------------------------------------------

function placeAt(plan, subject, x, y) {
  const tile = plan.tiles.find((one) => x >= one.x && y >= one.y && x < one.x + one.w && y < one.y + one.h);
  if (!tile) return null;
  return {
    tile,
    row: Math.floor(((y - tile.y) / tile.h) * subject.height),
    column: Math.floor(((x - tile.x) / tile.w) * subject.width),
  };
}

function codeText(code, frame, levels) {
  if (code === NOT_A_NUMBER) return "NaN";
  if (code === POSITIVE) return "+∞";
  if (code === NEGATIVE) return `${MINUS}∞`;
  const isBeyond = frame.isClipped && (code === levels || (code === 0 && frame.low < 0));
  const sign = isBeyond ? (code === 0 ? "≤ " : "≥ ") : "";
  return sign + number(codeValue(frame, code, levels));
}

function placeText(place, subject, form, codes, frame, stride, levels) {
  const { tile, row, column } = place;
  const area = subject.width * subject.height;
  const at = row * subject.width + column;
  const [rowWord, columnWord] = form.axes;
  if (subject.shape === "matrix") {
    return `${rowWord} ${subject.rows[row]}, ${columnWord} ${subject.columns[column]}\n${codeText(codes[at], frame, levels)}`;
  }
  const zoom = form.layout === "maps" ? stride : 1;
  const where = `${rowWord} ${tile.row}${tile.column === null ? "" : `, ${columnWord} ${tile.column}`}`;
  const pixel = `row ${row * zoom}, column ${column * zoom}`;
  if (subject.planes === 1) return `${where}\n${pixel}: ${codeText(codes[tile.index * area + at], frame, levels)}`;
  const three = ["red", "green", "blue"].map(
    (name, plane) => `${name} ${codeText(codes[(tile.index * 3 + plane) * area + at], frame, levels)}`,
  );
  return `${where}\n${pixel}: ${three.join(", ")}`;
}
