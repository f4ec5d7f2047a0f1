// Shared by all charts. Each has one column for each snapshot, so that the same place across is the same moment everywhere.

const FONT = "11px system-ui, sans-serif";

function screenUnit() {
  return Math.min(window.devicePixelRatio || 1, 3);
}

function surface(canvas, width, height) {
  const unit = screenUnit();
  Object.assign(canvas, { width: Math.round(width * unit), height: Math.round(height * unit) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(unit, 0, 0, unit, 0, 0);
  pen.font = FONT;
  return pen;
}

// A drawing that stays the same while only the current step moves is made once for each key.
const kept = new WeakMap();
function keep(canvas, key, width, height, draw) {
  let found = kept.get(canvas);
  if (!found || found.key !== key) {
    found = { key, still: document.createElement("canvas") };
    draw(surface(found.still, width, height));
    kept.set(canvas, found);
  }
  const pen = surface(canvas, width, height);
  pen.drawImage(found.still, 0, 0, width, height);
  return pen;
}

function columnAt(x, left, width, total) {
  return clamp(Math.floor(((x - left) / width) * total), 0, total - 1);
}

function middleOf(at, left, width, total) {
  return left + ((at + 0.5) / total) * width;
}

function drawSteps(pen, run, left, width, y, look) {
  const labels = run.steps.map((step) => step.toLocaleString("en-US"));
  const widest = Math.max(...labels.map((text) => text.length)) * 7 + 18;
  const every = Math.max(1, Math.ceil(run.count / Math.max(1, Math.floor(width / widest))));
  pen.fillStyle = look.muted;
  pen.textBaseline = "top";
  for (let at = 0; at < run.count; at += every) {
    const x = middleOf(at, left, width, run.count);
    pen.fillRect(x - 0.5, y, 1, 4);
    const half = pen.measureText(labels[at]).width / 2;
    pen.textAlign = "left";
    pen.fillText(labels[at], clamp(x - half, left, left + width - 2 * half), y + 6);
  }
  pen.textBaseline = "alphabetic";
}

function drawNow(pen, at, left, top, width, height, total, look) {
  const x = middleOf(at, left, width, total);
  const wide = Math.max(width / total, 2);
  if (wide > 6) {
    for (const [colour, size, inset] of [
      [look.card, 3.5, 1.75],
      [look.ink, 1.75, 0.875],
    ]) {
      pen.strokeStyle = colour;
      pen.lineWidth = size;
      pen.strokeRect(x - wide / 2 + inset, top + inset, wide - 2 * inset, height - 2 * inset);
    }
  } else {
    pen.fillStyle = look.card;
    pen.fillRect(x - 2, top, 4, height);
    pen.fillStyle = look.ink;
    pen.fillRect(x - 1, top, 2, height);
  }
}

function hatch(pen, x, y, width, height, look) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = look.hatch;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}
