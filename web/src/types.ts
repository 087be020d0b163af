// Types of the JSON that the dashboard's server (crates/programs/cli/src/dashboard) returns.

export interface Workload {
  name: string;
  namespace: string;
  owner: string;
  node: string;
  identity: string;
  protocol: string;
  status: string;
  addresses: string[];
  waypoint: string | null;
  policies: string[];
}

export interface Service {
  name: string;
  namespace: string;
  hostname: string;
  addresses: string[];
  ports: number[];
  waypoint: string | null;
  endpoints: string[];
}

export interface Waypoint {
  name: string;
  namespace: string;
  programmed: boolean;
  ours: boolean;
}

export interface Policy {
  name: string;
  namespace: string;
  scope: string;
  action: string;
  rules: number;
  dryRun: boolean;
}

export interface Certificate {
  identity: string;
  node: string;
  state: string;
  serial: string;
  validFrom: string;
  expires: string;
}

export interface MeshNode {
  name: string;
  error: string | null;
  pods: number;
  connections: number;
}

export interface Mesh {
  workloads: Workload[];
  leftOut: number;
  services: Service[];
  waypoints: Waypoint[];
  policies: Policy[];
  certificates: Certificate[];
  nodes: MeshNode[];
  troubles: string[];
}

export interface MeshAnswer {
  version: number;
  error: string | null;
  ageSeconds: number | null;
  mesh: Mesh | null;
}

/** End of an edge: kind, namespace, name. */
export type End = ["workload" | "service" | "outside", string, string];

export interface Edge {
  from: End;
  to: End;
  connections: number;
  requests: number;
  errors: number;
  refused: number;
  p50Ms: number | null;
  p99Ms: number | null;
  encrypted: number;
  plaintext: number;
  services: string[];
  routes: Record<string, number>;
  idleSeconds: number;
}

export interface Peer {
  workload?: string;
  owner?: string;
  namespace?: string;
  identity?: string;
  address?: string;
}

export interface Flow {
  number: number;
  time: string;
  event: "opened" | "request" | "refused" | "failed" | "closed";
  count: number;
  reporter: { kind: string; pod: string; namespace: string; node: string };
  source: Peer;
  destination: Peer;
  service?: { name: string; namespace: string; hostname: string };
  transport: "hbone" | "plaintext";
  waypoint?: string;
  refusal?: { policy?: string; reason: string };
  error?: string;
  request?: { method: string; path: string; authority: string; status: number; route?: string };
  durationMs: number;
}

export interface TrafficAnswer {
  latest: number;
  windowSeconds: number;
  edges: Edge[];
  events: Flow[];
  lost: { sampled: number; refusals: number };
  forgotten: number;
  /** Proxies that send no events, each with the reason. */
  silent?: string[];
}

export interface About {
  source: string;
  version: string;
}

export interface Pod {
  name: string;
  node: string;
  phase: string;
  wanted: { in: string } | { out: string } | "unknown";
  captured: "yes" | "pending" | "no";
  message: string | null;
}

export interface Table {
  header: string[];
  rows: string[][];
}

export interface WaypointRecords {
  routes: Table;
  endpoints: Table;
  policies: Table;
  limits: Table;
  plugins: Record<string, unknown>[] | null;
}

export interface Rehearsal {
  refused: RehearsalRow[];
  admitted: RehearsalRow[];
  undecided: RehearsalRow[];
  refusedAlready: number;
  allowed: number;
  notes: string[];
}

export interface RehearsalRow {
  from: string;
  to: string;
  what: string;
  times: number;
  by: string;
  why: string;
}

export interface Explanations {
  /** Explanation of a request through all proxies on its path. */
  request?: RequestExplanation;
  /** Decisions of policies, for clients that are not pods. */
  policies?: Explanation[];
}

export interface RequestExplanation {
  from: string;
  to: string;
  method: string;
  host: string;
  path: string;
  allowed: boolean;
  mayDiffer: boolean;
  answer: { kind: string; status?: number; by: string; why: string };
  parts: { by: string; isWaypoint: boolean; steps: Step[] }[];
}

export interface Step {
  step: string;
  result: "passed" | "refused" | "answered" | "open";
  object?: string;
  why: string;
  considered?: { object: string; effect?: string; result: string }[];
}

export interface Explanation {
  from: string;
  identity: string | null;
  to: string;
  destination: string;
  enforced: boolean;
  waypoint?: string;
  allowed: boolean;
  decidedBy: string | null;
  why: string;
  policies: { policy: string; action: string; scope: string; dryRun: boolean; matchingRule: number | null }[];
}

export interface Health {
  problems: { severity: string; object: string; field: string; message: string }[] | null;
  troubles: string[];
  lab?: {
    daemons: Record<string, unknown>[];
    problems: string[];
    pods: { node: string; captured: boolean; ready: boolean }[];
  };
  status?: {
    controlPlane: Part[];
    nodes: NodeHealth[];
    problems: string[];
  };
  rollout?: { waitsFor: string | null; draining: { node: string; pod: string; until: string; connections: number | null }[] } | null;
}

export interface Part {
  pod: string;
  version: string | null;
  ready: boolean;
  restarts: number;
}

export interface NodeHealth {
  node: string;
  agent: Part | null;
  proxy: Part | null;
  wanted: number | null;
  captured: number | null;
  certificates: { available: number; total: number; firstExpiry: string | null } | null;
  xds: string;
  drifts: number;
}
