// Unit tests of the page's pure functions: `node test/unit.mjs`.
import { build } from "esbuild";
import assert from "node:assert/strict";
import test from "node:test";
import { fileURLToPath } from "node:url";

/** Compiles and imports a module of the page. */
async function load(name) {
  const entry = fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url));
  const { outputFiles } = await build({ entryPoints: [entry], bundle: true, format: "esm", write: false });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}

const { graphOf, idOf, places, NO_FILTER } = await load("graph");
const { short, visible } = await load("text");

const workload = (namespace, name, owner = name, protocol = "HBONE") => ({ namespace, name, owner, protocol });
const mesh = (workloads, more = {}) => ({ workloads, services: [], waypoints: [], ...more });
const edge = (from, to, more = {}) => ({
  from, to, connections: 1, requests: 0, errors: 0, refused: 0, p50Ms: null, p99Ms: null, encrypted: 1, plaintext: 0,
  services: [], routes: {}, idleSeconds: 0, ...more,
});
const [WEB, ORDERS] = [["workload", "shop", "web"], ["workload", "shop", "orders"]];

test("characters that are not seen are written out", () => {
  assert.equal(visible("a\u202Eb\u001b[1m\u200b\u2066\u061c"), "a\\u{202e}b\\u{1b}[1m\\u{200b}\\u{2066}\\u{61c}");
  assert.equal(visible("מזמור <b>"), "מזמור <b>");
  assert.equal(short("x".repeat(300)).length, 200);
});

test("pods of one owner are one node that tells whether all are in the mesh", () => {
  const { nodes } = graphOf(mesh([workload("shop", "web-1", "web"), workload("shop", "web-2", "web", "TCP")]), [], NO_FILTER);
  assert.deepEqual(nodes.map(({ name, pods, membership }) => [name, pods, membership]), [["web", 2, "some"]]);
});

test("edges that name a pod and its owner are one", () => {
  const pod = ["workload", "shop", "orders-1"];
  const known = mesh([workload("shop", "web"), workload("shop", "orders-1", "orders")]);
  const { edges, nodes } = graphOf(known, [edge(WEB, pod, { requests: 3 }), edge(WEB, ORDERS, { plaintext: 1 })], NO_FILTER);
  assert.equal(nodes.length, 2);
  assert.deepEqual(edges.map(({ to, state, edge: { requests, connections } }) => [to, state, requests, connections]), [[idOf(ORDERS), "plaintext", 3, 1]]);
});

test("a filter keeps what it names with its neighbours", () => {
  const known = mesh([workload("shop", "web"), workload("shop", "orders"), workload("bank", "other")]);
  const all = [edge(WEB, ORDERS, { refused: 1 }), edge(WEB, ["outside", "", ""])];
  const names = (change) => graphOf(known, all, { ...NO_FILTER, ...change }).nodes.map(({ name }) => name);
  assert.deepEqual(names({}), ["outside", "other", "orders", "web"]);
  assert.deepEqual(names({ text: "ORDERS" }), ["orders", "web"]);
  assert.deepEqual(names({ refused: true }), ["orders", "web"]);
  assert.deepEqual(names({ namespace: "bank" }), ["other"]);
  assert.deepEqual(names({ busy: true }), ["outside", "orders", "web"]);
});

test("a waypoint is one by its Gateway, a service without endpoints by itself", () => {
  const more = {
    waypoints: [{ namespace: "shop", name: "gate" }],
    services: [{ namespace: "shop", name: "api", endpoints: [] }, { namespace: "shop", name: "web", endpoints: ["shop/web"] }],
  };
  const { nodes } = graphOf(mesh([workload("shop", "gate-1", "gate")], more), [], NO_FILTER);
  assert.deepEqual(nodes.map(({ kind, name }) => [kind, name]), [["service", "api"], ["waypoint", "gate"]]);
});

test("names with any character make identifiers of their own", () => {
  const one = graphOf(null, [edge(["workload", "a/b", "c"], ["workload", "a", "b/c"])], NO_FILTER);
  assert.equal(one.nodes.length, 2);
});

test("nodes have places of their own, callers left of whom they call", () => {
  const workloads = Array.from({ length: 1000 }, (_, number) => workload(`team-${number % 20}`, `app-${number}`));
  const graph = graphOf(mesh([...workloads, workload("shop", "web"), workload("shop", "orders")]), [edge(WEB, ORDERS), edge(ORDERS, WEB)], NO_FILTER);
  const all = places(graph);
  assert.equal(new Set([...all.values()].map(({ x, y }) => `${x} ${y}`)).size, 1002);
  assert.deepEqual(all, places(graph));
  const line = graphOf(mesh([]), [edge(WEB, ORDERS)], NO_FILTER);
  const laid = places(line);
  assert(laid.get(idOf(WEB)).x < laid.get(idOf(ORDERS)).x);
});
