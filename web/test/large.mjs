// Tests the page with a thousand workloads and hostile names in a real Chromium: `node test/large.mjs BUNDLE [IMAGES]`.
import assert from "node:assert/strict";
import { join } from "node:path";
import { open, steps, until } from "./browser.mjs";
import { HOSTILE, start } from "./mock.mjs";

const [bundle, images] = process.argv.slice(2);
const server = await start(bundle);
const { browser, page, errors, hosts } = await open();
const canvas = page.locator(".canvas");
const count = async (name) => Number(await canvas.getAttribute(`data-${name}`));

/** Measures the times between frames during the next `ms` milliseconds. */
const frames = (ms) =>
  page.evaluate(
    (ms) =>
      new Promise((done) => {
        const times = [];
        let last = performance.now();
        const end = last + ms;
        const frame = (now) => {
          times.push(now - last);
          last = now;
          if (now < end) requestAnimationFrame(frame);
          else done(times.slice(1).sort((a, b) => a - b));
        };
        requestAnimationFrame(frame);
      }),
    ms,
  );

try {
  await steps([
    ["a thousand workloads are drawn", async () => {
      const begin = Date.now();
      await page.goto(server.url);
      await until("all nodes", async () => (await count("nodes")) >= 1000 && (await count("edges")) >= 1900);
      console.log(`drawn after ${Date.now() - begin} ms`);
    }],
    ["the token leaves the address", async () => {
      assert(!page.url().includes("token"), page.url());
      await page.reload();
      await until("all nodes again", async () => (await count("nodes")) >= 1000);
    }],
    ["it moves with the mouse", async () => {
      const box = await canvas.boundingBox();
      const before = await canvas.screenshot();
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      const measured = frames(4000);
      await page.mouse.move(x, y);
      await page.mouse.down();
      for (let step = 0; step < 60; step += 1) await page.mouse.move(x + 3 * (step % 30), y + 2 * (step % 20));
      await page.mouse.up();
      for (let step = 0; step < 20; step += 1) await page.mouse.wheel(0, step < 10 ? -120 : 120);
      const times = await measured;
      const at = (share) => times[Math.min(times.length - 1, Math.floor(times.length * share))].toFixed(1);
      console.log(`frames while moving and zooming: ${times.length}, median ${at(0.5)} ms, 95% ${at(0.95)} ms, longest ${at(1)} ms`);
      assert(!before.equals(await canvas.screenshot()), "the graph has not moved");
    }],
    ["the filter leaves what it names", async () => {
      await page.keyboard.press("/");
      await page.keyboard.type("team-3/app-7");
      await until("one node and its neighbours", async () => (await count("nodes")) < 20);
      assert((await page.locator("table tbody tr").allInnerTexts()).every((row) => row.includes("team-3/app-7")));
      await page.getByRole("searchbox").fill("");
      await page.getByLabel("refused or failing").check();
      await until("refused edges", async () => (await count("edges")) < 100);
      await page.getByLabel("refused or failing").uncheck();
      await until("all nodes again", async () => (await count("nodes")) >= 1000);
    }],
    ["a denial is seen", async () => {
      await page.getByRole("link", { name: /Events/ }).click();
      const begin = Date.now();
      server.refuse(HOSTILE[1]);
      await until("the denial", async () => (await page.locator("tbody tr").count()) === 1);
      console.log(`seen after ${Date.now() - begin} ms`);
    }],
    ["hostile names are text, and visible", async () => {
      for (const name of HOSTILE) server.refuse(name);
      await until("all of them", async () => (await page.locator("tbody tr").count()) === 1 + HOSTILE.length);
      const text = await page.locator("body").innerText();
      assert(text.includes("\\u{202e}") && text.includes("\\u{1b}[31m") && text.includes("\\u{200b}"), text);
      assert(text.includes("<img src=x onerror="), text);
      const attributes = await page.evaluate(() => [...document.querySelectorAll("[title]")].map((one) => one.getAttribute("title")).join(""));
      assert(!/[\u202e\u200b\u001b]/.test(text + attributes));
      assert.equal(await page.locator("img, script:not([src])").count(), 0);
      assert.equal(await page.title(), "Ambit");
    }],
    ["events are bounded", async () => {
      for (let number = 0; number < 1500; number += 1) server.refuse(`client-${number}`);
      await until("the last", async () => (await page.locator("tbody").innerText()).includes("client-1499"));
      const more = await page.getByRole("button", { name: /Show more/ }).innerText();
      assert.equal(more, "Show more (400 left)");
    }],
    ["a server that goes away is reported, and its return", async () => {
      server.goAway();
      const trouble = page.locator("#troubles");
      await until("the trouble", async () => (await trouble.innerText()).includes("does not answer"));
      server.comeBack();
      await until("its end", async () => (await trouble.innerText()) === "");
    }],
    ["the keyboard selects and opens a workload", async () => {
      await page.getByRole("link", { name: "Graph" }).click();
      await until("the graph", async () => (await count("nodes")) >= 1000);
      await canvas.focus();
      for (const key of ["ArrowLeft", "+", "-", "0", "n", "n", "p"]) await page.keyboard.press(key);
      await until("the selection", async () => (await page.locator("aside h2").innerText()).includes("workload"));
      await page.keyboard.press("Enter");
      await until("its page", async () => page.url().includes("#/workload/"));
    }],
    ["dark and light", async () => {
      const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await background();
      await page.emulateMedia({ colorScheme: "dark" });
      assert.notEqual(await background(), light);
      if (images) {
        await page.goto(`${new URL(server.url).origin}/#/`);
        await until("all nodes again", async () => (await count("nodes")) >= 1000);
        await page.screenshot({ path: join(images, "thousand.png") });
      }
    }],
    ["nothing is fetched from elsewhere, and nothing fails", async () => {
      assert.deepEqual([...hosts], [new URL(server.url).host]);
      assert.deepEqual(errors, []);
    }],
  ]);
} catch {
  if (errors.length > 0) console.log("errors of the page:", errors);
  process.exitCode = 1;
} finally {
  await browser.close();
  // Servers left by a failed step would keep the process alive.
  process.exit();
}
