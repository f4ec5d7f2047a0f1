// Bundles each program into one classic script and one style sheet, or (--tests) bundles the tests and runs them.
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "..", "src", "torcheer", "page", "static");
const PROGRAMS = ["graph", "report"];

async function buildProgram(program) {
  mkdirSync(STATIC, { recursive: true });
  const options = { bundle: true, minify: true, charset: "utf8", format: "iife", target: ["es2022"] };
  await build({ ...options, entryPoints: [join(HERE, program, "main.ts")], outfile: join(STATIC, `${program}.js`) });
  await build({ ...options, entryPoints: [join(HERE, program, "style.css")], outfile: join(STATIC, `${program}.css`) });
  copyFileSync(join(HERE, program, "body.html"), join(STATIC, `${program}.html`));
  for (const name of [`${program}.js`, `${program}.css`]) {
    const text = readFileSync(join(STATIC, name), "utf8");
    if (/<\/(script|style)/i.test(text)) throw new Error(`${name} would close the element it is inlined into.`);
    console.log(`${name}: ${(text.length / 1024).toFixed(0)} kB`);
  }
}

async function runTests() {
  const folder = mkdtempSync(join(tmpdir(), "web-tests-"));
  try {
    const names = readdirSync(join(HERE, "test"), { recursive: true }).filter((name) => name.endsWith(".test.ts"));
    await build({
      entryPoints: names.map((name) => join(HERE, "test", name)),
      outdir: folder,
      outbase: join(HERE, "test"),
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
else for (const program of PROGRAMS) await buildProgram(program);
