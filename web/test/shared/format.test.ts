import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../shared/format";

test("a measured value has the same minus before it and in its exponent", () => {
  assert.equal(format.figure(-1.21e-5), "−1.21e−5");
  assert.equal(format.figure(1.21e-5), "1.21e−5");
  assert.equal(format.figure(-1234), "−1,234");
  assert.equal(format.figure(2.5e9), "2.5e9");
});
