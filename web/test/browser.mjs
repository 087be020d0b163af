// Shared by both browser tests: starts a Chromium, and waits for conditions with a deadline.
import { chromium } from "playwright-core";
import assert from "node:assert/strict";
import { existsSync } from "node:fs";

const PROGRAMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
// Well beyond what a page takes on a machine that is busy with other tests.
const TIMEOUT_MS = 60_000;

/** Opens a page and records its errors and the hosts of its requests. */
export async function open(flags = []) {
  const executablePath = process.env.CHROMIUM ?? PROGRAMS.find((path) => existsSync(path));
  assert(executablePath, "a Chromium is needed: install the package chromium");
  // Chromium's sandbox does not work as root; the tests load only our own page.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", ...flags];
  const browser = await chromium.launch({ executablePath, args, headless: true });
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(TIMEOUT_MS);
  const errors = [];
  const hosts = new Set();
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    // The console also reports requests that fail while a server is unavailable.
    const isOfRequest = /Failed to load resource|net::ERR_/.test(message.text());
    if (message.type() === "error" && !isOfRequest) errors.push(message.text());
  });
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  return { browser, context, page, errors, hosts };
}

/** Waits until `look` returns a truthy value, and returns it. */
export async function until(what, look, timeoutMs = TIMEOUT_MS) {
  const end = Date.now() + timeoutMs;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${timeoutMs} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** Runs named steps in order; the first failure ends the test. */
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
