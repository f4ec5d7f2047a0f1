// Bundles the viewer into one classic script and one style sheet, or (--tests) bundles the tests and runs them.
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "..", "src", "torcheer", "viewer", "static");

async function buildPage() {
  mkdirSync(STATIC, { recursive: true });
  await build({
    entryPoints: [join(HERE, "src", "main.ts")],
    outfile: join(STATIC, "viewer.js"),
    bundle: true,
    minify: true,
    charset: "utf8",
    format: "iife",
    target: ["es2022"],
  });
  await build({
    entryPoints: [join(HERE, "src", "style.css")],
    outfile: join(STATIC, "viewer.css"),
    bundle: true,
    minify: true,
    charset: "utf8",
  });
  for (const name of ["viewer.js", "viewer.css"]) {
    const text = readFileSync(join(STATIC, name), "utf8");
    if (/<\/(script|style)/i.test(text)) throw new Error(`${name} would close the element it is inlined into.`);
    console.log(`${name}: ${(text.length / 1024).toFixed(0)} kB`);
  }
}

async function runTests() {
  const folder = mkdtempSync(join(tmpdir(), "viewer-tests-"));
  try {
    const names = readdirSync(join(HERE, "test")).filter((name) => name.endsWith(".test.ts"));
    await build({
      entryPoints: names.map((name) => join(HERE, "test", name)),
      outdir: folder,
      bundle: true,
      platform: "node",
      format: "esm",
      target: ["node20"],
      sourcemap: "inline",
      outExtension: { ".js": ".mjs" },
    });
    const files = names.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
    return spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], { stdio: "inherit" }).status ?? 1;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

if (process.argv.includes("--tests")) process.exitCode = await runTests();
else await buildPage();
