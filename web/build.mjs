// Builds the dashboard's bundle: `node build.mjs [DIRECTORY]`. The same sources and lock file give the same bytes.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../crates/programs/cli/src/dashboard/bundle");

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) await copyFile(join(here, "src", file), join(out, file));

const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
const packages = [...Object.keys(dependencies), "@preact/signals-core"].sort();
const notices = [];
for (const name of packages) {
  const directory = join(here, "node_modules", name);
  const { version } = JSON.parse(await readFile(join(directory, "package.json"), "utf8"));
  const text = await readFile(join(directory, "LICENSE"), "utf8");
  notices.push(`${name} ${version}\n\n${text.trim()}\n`);
}
await writeFile(join(out, "licenses.txt"), notices.join("\n----\n\n"));
