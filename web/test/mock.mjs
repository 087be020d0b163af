// Mock of the dashboard's server with a mesh that no lab could run: a thousand workloads, and names that are hostile to
// the page.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml", txt: "text/plain" };
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/** Names that no object can have: elements, a bidirectional override, an escape sequence, a zero-width space. */
export const HOSTILE = ['<img src=x onerror="document.title=1">', "evil\u202Egnp.exe", "red\u001b[31mtext", "zero\u200bwidth"];

const NAMESPACES = 20;
const EACH = 50;

function mesh() {
  const workloads = [];
  const add = (namespace, owner, protocol = "HBONE") =>
    workloads.push({
      name: `${owner}-1`,
      namespace,
      owner,
      node: `node-${workloads.length % 30}`,
      identity: `spiffe://cluster.local/ns/${namespace}/sa/default`,
      protocol,
      status: "Healthy",
      addresses: [`10.0.${Math.floor(workloads.length / 250)}.${workloads.length % 250}`],
      waypoint: null,
      policies: [],
    });
  for (let namespace = 0; namespace < NAMESPACES; namespace += 1)
    for (let app = 0; app < EACH; app += 1) add(`team-${namespace}`, `app-${app}`, app % 11 === 0 ? "TCP" : "HBONE");
  for (const name of HOSTILE) add("hostile", name);
  return {
    workloads,
    leftOut: 0,
    services: [],
    waypoints: [{ name: "app-0", namespace: "team-0", programmed: true, ours: true }],
    policies: [{ name: HOSTILE[0], namespace: "hostile", scope: "Namespace", action: "Deny", rules: 1, dryRun: false }],
    certificates: [],
    nodes: [{ name: "node-0", error: null, pods: 3, connections: 5 }],
    troubles: [],
  };
}

function edgesAt(second) {
  const edges = [];
  for (let number = 0; number < 2000; number += 1) {
    const [namespace, app] = [number % NAMESPACES, Math.floor(number / NAMESPACES) % EACH];
    const rate = ((number * 7 + second * 13) % 100) / 2;
    edges.push({
      from: ["workload", `team-${namespace}`, `app-${app}`],
      to: ["workload", `team-${(namespace + (number % 3)) % NAMESPACES}`, `app-${(app * 3 + 7) % EACH}`],
      connections: rate,
      requests: 0,
      errors: number % 41 === 0 ? 0.5 : 0,
      refused: number % 97 === 0 ? 0.2 : 0,
      p50Ms: 0.5,
      p99Ms: 4,
      encrypted: number % 13 === 0 ? 0 : 10,
      plaintext: number % 13 === 0 ? 10 : 0,
      services: [],
      routes: {},
      idleSeconds: 0,
    });
  }
  return edges;
}

function refusal(number, name) {
  return {
    number,
    time: new Date().toISOString().replace("Z", "000Z"),
    event: "refused",
    count: 1,
    connection: number,
    reporter: { kind: "destination", pod: "ztunnel", namespace: "istio-system", node: "node-0" },
    source: { workload: name, owner: name, namespace: "hostile" },
    destination: { workload: "app-1-1", owner: "app-1", namespace: "team-1", address: "10.0.0.1:8080" },
    transport: "plaintext",
    refusal: { policy: `hostile/${name}`, reason: `denied by ${name}` },
    durationMs: 1,
  };
}

/** Starts the server; while `away` is set, it closes connections without a response. */
export async function start(bundle) {
  const files = new Map();
  for (const name of ["index.html", "app.js", "app.css", "icon.svg", "licenses.txt"]) files.set(`/${name}`, await readFile(join(bundle, name)));
  files.set("/", files.get("/index.html"));
  const known = mesh();
  const state = { away: false, events: [], latest: 0, token: "0123456789abcdef" };
  const waiting = new Set();
  const server = createServer(async (request, response) => {
    if (state.away) return void request.socket.destroy();
    const url = new URL(request.url, "http://mock");
    response.setHeader("content-security-policy", POLICY);
    const file = files.get(url.pathname);
    if (file) {
      const type = TYPES[url.pathname === "/" ? "html" : url.pathname.split(".").pop()];
      return void response.writeHead(200, { "content-type": type }).end(file);
    }
    const answer = (value) => response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));
    if (request.headers["x-ambit-token"] !== state.token) return void response.writeHead(401).end("no token\n");
    const after = Number(url.searchParams.get("after"));
    const later = (ms) => new Promise((done) => {
      const wake = () => (clearTimeout(timer), waiting.delete(wake), done());
      const timer = setTimeout(wake, ms);
      waiting.add(wake);
    });
    switch (url.pathname) {
      case "/api/about":
        return answer({ source: `mock ${HOSTILE[1]}`, version: "0" });
      case "/api/mesh":
        if (after === 1) await later(10_000);
        return answer({ version: 1, error: null, ageSeconds: 0, mesh: after === 1 ? null : known });
      case "/api/traffic": {
        if (after === state.latest && after > 0) await later(1000);
        const events = state.events.filter(({ number }) => number > after);
        const lost = { sampled: 0, refusals: 0 };
        const second = Math.floor(Date.now() / 1000);
        return answer({ latest: state.latest, windowSeconds: 30, edges: edgesAt(second), events, lost, forgotten: 0 });
      }
      case "/api/pods":
        return answer([]);
      default:
        return void response.writeHead(404).end("not found\n");
    }
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  return {
    url: `http://127.0.0.1:${port}/#token=${state.token}`,
    refuse(name) {
      state.latest += 1;
      state.events = [...state.events, refusal(state.latest, name)].slice(-500);
      for (const wake of waiting) wake();
    },
    goAway() {
      state.away = true;
      for (const wake of waiting) wake();
      server.closeAllConnections();
    },
    comeBack() {
      state.away = false;
    },
    stop() {
      server.close();
      server.closeAllConnections();
    },
  };
}
