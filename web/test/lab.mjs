// Tests the page of a real dashboard over a lab, in a real Chromium: `node test/lab.mjs URL [IMAGES]`. The caller acts
// in the mesh: this program prints `do ACTION`, and reads a line from standard input when the action is done.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { open, steps, until } from "./browser.mjs";

const [url, images] = process.argv.slice(2);
const { host, origin, port } = new URL(url);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const act = async (action) => {
  console.log(`do ${action}`);
  const { done } = await lines.next();
  assert(!done, "nobody acts any longer");
};

// Simulated DNS rebinding: an attacker's name that resolves to this machine.
const rebound = `rebound.example:${port}`;
const { browser, context, page, errors, hosts } = await open([`--host-resolver-rules=MAP rebound.example 127.0.0.1`]);
const rows = (label) => page.getByRole("region", { name: label, exact: true }).locator("tbody tr");
const row = (label, ...texts) => until(`${texts.join(" … ")} in ${label}`, async () => {
  const found = await rows(label).allInnerTexts();
  return found.find((text) => texts.every((part) => text.includes(part)));
});
const visit = (path) => page.evaluate((path) => void (location.hash = path), path);
const picture = async (name) => {
  if (images) await page.screenshot({ path: join(images, `${name}.png`) });
};

try {
  await steps([
    ["flows are seen", async () => {
      await page.goto(url);
      await act("traffic");
      await row("Edges", "shop/client", "shop/waypoint", "mutual TLS");
      await row("Edges", "shop/waypoint", "shop/server");
      await row("Edges", "legacy/client", "plaintext");
    }],
    ["a denial is seen within a second", async () => {
      await visit("/events");
      await act("policy");
      // The page misses refusals from before it began to read events, so repeat until one arrives.
      await until("a refusal", async () => {
        await act("denial");
        return (await rows("Events").count()) > 0;
      });
      // On a busy machine, one of several attempts suffices.
      let seen = Infinity;
      for (let attempt = 0; attempt < 5 && seen >= 1000; attempt += 1) {
        const before = await rows("Events").count();
        await act("denial");
        seen = await until("the denial", async () => {
          if ((await rows("Events").count()) <= before) return false;
          return page.evaluate(() => Date.now() - Date.parse(document.querySelector("tbody time").dateTime));
        });
        console.log(`seen ${seen} ms after it happened`);
      }
      assert(seen < 1000, `seen only ${seen} ms after it happened`);
      await row("Events", "shop/no-legacy");
      await picture("events");
    }],
    ["the graph shows what is refused", async () => {
      await visit("/");
      await row("Edges", "legacy/client", "refused");
      await page.getByLabel("refused or failing").check();
      await until("the others are gone", async () => Number(await page.locator(".canvas").getAttribute("data-edges")) === 1);
      await page.getByLabel("refused or failing").uncheck();
      await page.getByRole("button", { name: "Arrange" }).click();
      await picture("graph");
    }],
    ["a workload's page tells membership, certificates and refusals", async () => {
      await visit("/workload/shop/server");
      await row("Pods", "node-2", "yes: its namespace has the label istio.io/dataplane-mode=ambient", "mutual TLS");
      await row("Certificates", "spiffe://cluster.local/ns/shop/sa/server", "Available");
      await visit("/workload/legacy/client");
      await row("Pods", "no: ", "plaintext");
      await row("Recent refusals", "refused");
      await picture("workload");
    }],
    ["a refusal is explained", async () => {
      await rows("Recent refusals").first().getByRole("link", { name: "explain" }).click();
      const explanation = page.locator("#explanation");
      await until("the explanation", async () => (await explanation.innerText()).includes("403 by waypoint shop/waypoint"));
      const decided = page.locator("#explanation tbody tr").filter({ hasText: "AuthorizationPolicy shop/no-legacy" });
      assert.match(await decided.innerText(), /authorization\s+refused/);
      await picture("explain");
      await page.getByLabel("From").fill("192.0.2.1");
      await page.getByRole("button", { name: "Explain" }).click();
      await until("policies alone", async () => (await explanation.innerText()).includes("none is proved: plaintext"));
    }],
    ["a waypoint's page shows routes, endpoints and live shares", async () => {
      await visit("/waypoint/shop/waypoint");
      await row("Routes and weights", "shop/split", "shop/server.shop.svc.cluster.local:80 x3", "server-v2.shop.svc.cluster.local:80 x1");
      await row("Endpoints and ejections", "server-v2", "Healthy");
      await act("traffic");
      const share = async (name) => Number(/([0-9.]+) %/.exec(await row("Live shares", name, "shop/split"))[1]);
      const [first, second] = [await share("shop/server\t"), await share("shop/server-v2")];
      console.log(`shares of 3 to 1: ${first} % and ${second} %`);
      assert(first > second && second > 0, `${first} % ${second} %`);
      await picture("waypoint");
    }],
    ["a rehearsal tells who would be refused", async () => {
      await visit("/policies");
      await page.getByLabel("Policies to rehearse").fill(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n",
      );
      await page.getByRole("button", { name: "Rehearse" }).click();
      await row("Would be refused", "legacy/client");
      await picture("policies");
      await page.getByLabel("Policies to rehearse").fill("kind: [");
      await page.getByRole("button", { name: "Rehearse" }).click();
      await until("the error", async () => (await page.locator("#rehearsal").innerText()).includes("error"));
    }],
    ["nodes and processes are shown", async () => {
      await visit("/nodes");
      await row("Nodes", "node-1", "answers");
      await row("Processes", "control");
    }],
    ["pages of other origins get nothing", async () => {
      const attacker = createServer((_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>attack"));
      await new Promise((done) => attacker.listen(0, "127.0.0.1", done));
      const other = await context.newPage();
      const token = await page.evaluate(() => sessionStorage.getItem("ambit-token"));
      assert.match(token, /^[0-9a-f]{64}$/);
      for (const from of [`http://127.0.0.1:${attacker.address().port}/`, `http://localhost:${port}/`]) {
        await other.goto(from);
        assert.equal(await other.evaluate(() => sessionStorage.getItem("ambit-token")), null);
        // Requests from another origin get no response even with the token.
        for (const init of [{}, { headers: { "x-ambit-token": token } }, { method: "POST", body: "x" }]) {
          const got = await other.evaluate(([url, init]) => fetch(url, init).then((one) => one.text(), () => "nothing"), [`${origin}/api/mesh`, init]);
          assert.equal(got, "nothing");
        }
        await other.evaluate((url) => fetch(url, { mode: "no-cors" }).catch(() => {}), `${origin}/api/mesh`);
      }
      const answer = await other.goto(`http://${rebound}/`);
      assert.equal(answer.status(), 421);
      const got = await other.evaluate((token) => fetch("/api/mesh", { headers: { "x-ambit-token": token } }).then((one) => one.status), token);
      assert.equal(got, 421);
      const framed = await other.goto(`http://127.0.0.1:${attacker.address().port}/`).then(() =>
        other.evaluate((url) => new Promise((done) => {
          const frame = document.createElement("iframe");
          frame.onload = () => done(frame.contentDocument === null ? "blocked" : "open");
          frame.src = url;
          document.body.append(frame);
        }), `${origin}/`));
      assert.equal(framed, "blocked");
      await other.close();
      attacker.close();
    }],
    ["a mesh that goes away is reported, and its return", async () => {
      const trouble = page.locator("#troubles");
      await act("hang");
      await until("the trouble", async () => (await trouble.innerText()).includes("The mesh does not answer"), 40_000);
      await act("resume");
      await until("its end", async () => (await trouble.innerText()) === "", 40_000);
      await visit("/");
      await act("traffic");
      await row("Edges", "shop/client", "shop/waypoint");
    }],
    ["a dashboard that ends is reported", async () => {
      await act("end");
      await until("the trouble", async () => (await page.locator("#troubles").innerText()).includes("is `ambit dashboard` still running?"));
    }],
    ["nothing is fetched from elsewhere, and nothing fails", async () => {
      assert.deepEqual([...hosts], [host]);
      assert.deepEqual(errors, []);
    }],
  ]);
} catch {
  console.log(await page.locator("main").innerText().catch(String));
  if (errors.length > 0) console.log("errors of the page:", errors);
  process.exitCode = 1;
} finally {
  await browser.close();
  // Servers left by a failed step would keep the process alive.
  process.exit();
}
