"use strict";
// Numbers and names as text, and the few ways elements are made. What comes from a run gets into the page as text only.

const MINUS = "\u2212";

function number(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6 || size < 1e-3)
    text = size
      .toExponential(digits - 1)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e")
      .replace("e-", `e${MINUS}`);
  else if (size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else text = String(Number(size.toPrecision(digits)));
  return value < 0 ? MINUS + text : text;
}

function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

function plural(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

function percent(part) {
  if (part > 0 && part < 0.001) return "<0.1 %";
  if (part > 0.999 && part < 1) return ">99.9 %";
  return `${Number((100 * part).toFixed(part < 0.1 || part > 0.9 ? 1 : 0))} %`;
}

// In units of 1024, as everywhere in torcheer.
function byteSize(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${at === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[at]}`;
}

function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

// What could turn the reading direction, or is not to be seen, has a sign of its own.
function clean(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
}

function short(text, most = 40) {
  const letters = Array.from(clean(text));
  if (letters.length <= most) return letters.join("");
  const head = Math.ceil((most - 1) * 0.6);
  return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - 1 - head)).join("")}`;
}

function byId(id) {
  return document.getElementById(id);
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A group of radio buttons: [value, text, title] each.
function choices(group, name, options, chosen, choose) {
  group.replaceChildren(
    ...options.map(([value, text, title, disabled]) => {
      const input = make("input", { type: "radio", name, value, checked: value === chosen, disabled: Boolean(disabled) });
      input.addEventListener("change", () => choose(value));
      return make("label", { title: title ?? "" }, input, text);
    }),
  );
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
