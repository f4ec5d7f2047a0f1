import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../shared/format";

test("a measured value has the same minus before it and in its exponent", () => {
  assert.equal(format.figure(-1.21e-5), "−1.21e−5");
  assert.equal(format.figure(1.21e-5), "1.21e−5");
  assert.equal(format.figure(-1234), "−1,234");
  assert.equal(format.figure(2.5e9), "2.5e9");
});

test("bytes are counted in 1024s and all else in 1000s", () => {
  assert.deepEqual([1023, 1024, 1536, 5 * 2 ** 30].map(format.bytes), ["1023 B", "1.0 KB", "1.5 KB", "5.0 GB"]);
  assert.deepEqual([999, 1000, 1_500_000].map(format.human), ["999", "1.0K", "1.5M"]);
});

test("times of any length", () => {
  assert.deepEqual([2e-9, 59.94, 60, 125, 3599, 7260].map(format.time), [
    "2 ns",
    "59.9 s",
    "1 min 0 s",
    "2 min 5 s",
    "59 min 59 s",
    "2 h 1 min",
  ]);
});

test("values that are not finite, and parts that are nearly nothing or all", () => {
  assert.deepEqual(
    [NaN, Infinity, -Infinity].map((one) => format.figure(one)),
    ["NaN", "∞", "−∞"],
  );
  assert.deepEqual([0, 1e-5, 0.042, 0.48, 0.99999, 1].map(format.percent), [
    "0 %",
    "< 0.1 %",
    "4.2 %",
    "48 %",
    "> 99.9 %",
    "100 %",
  ]);
  assert.deepEqual([1e-5, 0.01, -1000, 1e6].map(format.powerOfTen), ["1e−5", "0.01", "−1000", "1e6"]);
});

test("names that would turn the reading direction are shown as they are, and long ones are cut in the middle", () => {
  assert.equal(format.clean("a\u202eb\u0000"), "a\ufffdb\ufffd");
  assert.equal(format.shortened("x".repeat(40), 9), "xxxx…xxxx");
  assert.equal(Array.from(format.shortened("😀".repeat(20), 5)).length, 5);
});
