// Light and dark, and the colours that canvases are drawn with.

function savedTheme() {
  try {
    return localStorage.getItem("torcheer-theme");
  } catch {
    return null;
  } // some browsers keep nothing for files
}

function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function turnTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("torcheer-theme", theme);
  } catch {
    /* it lasts until the page is closed */
  }
  chooseTheme(theme);
  readLook();
  redraw();
}

function readLook() {
  const style = getComputedStyle(document.documentElement);
  const isDark = document.documentElement.dataset.theme === "dark";
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  look = {
    ink: read("ink"),
    muted: read("muted"),
    accent: read("accent"),
    card: read("card"),
    grid: read("grid"),
    hatch: read("hatch"),
  };
  look.palette = new Palette(run.facts);
  look.ramp = readColours(
    blend(
      isDark
        ? ["#20252c", "#1f4a7d", "#3f8fc9", "#9bd0f5", "#f4faff"]
        : ["#f2f3f1", "#b9d4e8", "#5f9fcb", "#1f62a3", "#0a2a55"],
    ),
  );
  look.theme = isDark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(isDark));
  byId("theme").textContent = isDark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark ? "Light colours" : "Dark colours");
}

// Colours between some, evenly, as one text.
function blend(stops, total = 64) {
  const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: total }, (_, i) => {
    const place = (i / (total - 1)) * (stops.length - 1);
    const at = Math.min(Math.floor(place), stops.length - 2);
    return parts[at]
      .map((from, part) =>
        Math.round(from + (parts[at + 1][part] - from) * (place - at))
          .toString(16)
          .padStart(2, "0"),
      )
      .join("");
  }).join("");
}
