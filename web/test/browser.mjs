// What both browser tests share: a Chromium, and conditions with a deadline.
import { chromium } from "playwright-core";
import assert from "node:assert/strict";
import { existsSync } from "node:fs";

const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const PATIENCE_MS = 20_000;

/** A page whose errors, and requests to elsewhere, are kept. */
export async function open(flags = []) {
  const executablePath = process.env.CHROMIUM ?? PROGRAMS.find((path) => existsSync(path));
  assert(executablePath, "a Chromium is needed: install the package chromium");
  // As root, Chromium has no sandbox of its own; what it loads is ours.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", ...flags];
  const browser = await chromium.launch({ executablePath, args, headless: true });
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const errors = [];
  const hosts = new Set();
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    // Requests that fail while a server is away are reported there, too.
    const isOfRequest = /Failed to load resource|net::ERR_/.test(message.text());
    if (message.type() === "error" && !isOfRequest) errors.push(message.text());
  });
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  return { browser, context, page, errors, hosts };
}

/** Waits until `look` gives something true; gives that. */
export async function until(what, look, patience = PATIENCE_MS) {
  const end = Date.now() + patience;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${patience} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** Runs steps by name; the first that fails ends it. */
export async function steps(all) {
  for (const [name, step] of all) {
    const begin = Date.now();
    try {
      await step();
    } catch (error) {
      console.log(`FAILED ${name}: ${error.stack}`);
      throw error;
    }
    console.log(`ok ${name} (${Date.now() - begin} ms)`);
  }
}
