import assert from "node:assert/strict";
import { test } from "node:test";
import { aboutRun, notesOf } from "../../report/data/notes";
import { runOf } from "./making";

test("what many snapshots say is said once, and what the file leaves out is named", () => {
  const steps = Array.from({ length: 5 }, () => ({}));
  const notes = [
    [0, ["again", "once"]],
    [3, ["again"]],
  ];
  const run = runOf([{ layer: "a", kind: "weight", steps }], {
    notes,
    pictures: [0, 4],
    stride: 2,
    snapshots: 9,
    unreadable: [1],
  });
  const { title, sentences } = notesOf(run);
  assert.equal(title, "pictures of 2 of 5 snapshots, 2 notes");
  assert.deepEqual(sentences, [
    "This file shows 5 of the 9 snapshots, evenly over the run.",
    "To stay below 1.0 MB, this file has pictures of steps 0, 40 only. Numbers and histograms are of every step.",
    "To stay below 1.0 MB, pictures show every 2nd pixel, filter, and row and column of a matrix.",
    "The pictures of these steps could not be read: 10.",
    "2 snapshots, steps 0 – 30: again",
    "Step 0: once",
  ]);
  assert.equal(aboutRun(run), "9 snapshots  ·  steps 0 – 40  ·  1 layer with pictures (weight)  ·  2.0 KB on disk");
});
