// The mesh as a graph: its nodes and edges, the filter, and the layout. Pure functions.

import type { Edge, End, Mesh } from "./types";

export type Kind = "workload" | "waypoint" | "service" | "outside";

export interface GraphNode {
  id: string;
  kind: Kind;
  namespace: string;
  name: string;
  pods: number;
  /** How many of the node's pods are in the mesh. */
  membership: "all" | "some" | "none" | "unknown";
}

export interface GraphEdge {
  id: string;
  from: string;
  to: string;
  edge: Edge;
  /** State of the edge by which it is coloured: the most severe one that applies. */
  state: "refused" | "failing" | "plaintext" | "encrypted" | "idle";
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface Filter {
  text: string;
  namespace: string;
  refused: boolean;
  plaintext: boolean;
  /** Hides nodes without traffic. */
  busy: boolean;
}

export const NO_FILTER: Filter = { text: "", namespace: "", refused: false, plaintext: false, busy: false };

/** Returns the identifier of a node. Names are encoded, since they may contain any character. */
export const idOf = ([kind, namespace, name]: End): string =>
  [kind, encodeURIComponent(namespace), encodeURIComponent(name)].join("/");

export const isActive = (edge: Edge): boolean =>
  edge.connections + edge.requests + edge.errors + edge.refused > 0;

export function stateOf(edge: Edge): GraphEdge["state"] {
  if (edge.refused > 0) return "refused";
  if (edge.errors > 0) return "failing";
  if (!isActive(edge)) return "idle";
  return edge.plaintext > 0 ? "plaintext" : "encrypted";
}

function nodesOf(mesh: Mesh): Map<string, GraphNode> {
  const waypoints = new Set(mesh.waypoints.map((one) => idOf(["workload", one.namespace, one.name])));
  const nodes = new Map<string, GraphNode>();
  const inside = new Map<string, number>();
  for (const { namespace, owner, protocol } of mesh.workloads) {
    const id = idOf(["workload", namespace, owner]);
    const known = nodes.get(id);
    if (known) known.pods += 1;
    else {
      const kind = waypoints.has(id) ? "waypoint" : "workload";
      nodes.set(id, { id, kind, namespace, name: owner, pods: 1, membership: "none" });
    }
    inside.set(id, (inside.get(id) ?? 0) + (protocol === "HBONE" ? 1 : 0));
  }
  for (const node of nodes.values()) {
    if (node.kind === "waypoint") {
      node.membership = "unknown";
      continue;
    }
    const count = inside.get(node.id) ?? 0;
    node.membership = count === 0 ? "none" : count === node.pods ? "all" : "some";
  }
  // The workloads of its endpoints represent a service. Services without endpoints, such as external hosts, are nodes.
  for (const { namespace, name, endpoints } of mesh.services) {
    if (endpoints.length > 0) continue;
    const id = idOf(["service", namespace, name]);
    nodes.set(id, { id, kind: "service", namespace, name, pods: 0, membership: "unknown" });
  }
  return nodes;
}

/**
 * Merges two edges between the same nodes, for instance where proxies name a pod and its owner: both report the same
 * traffic, so that counts are not added.
 */
function merged(one: Edge, other: Edge): Edge {
  const most = (a: number | null, b: number | null): number | null => (a === null ? b : b === null ? a : Math.max(a, b));
  return {
    ...one,
    connections: Math.max(one.connections, other.connections),
    requests: Math.max(one.requests, other.requests),
    errors: Math.max(one.errors, other.errors),
    refused: Math.max(one.refused, other.refused),
    p50Ms: most(one.p50Ms, other.p50Ms),
    p99Ms: most(one.p99Ms, other.p99Ms),
    encrypted: one.encrypted + other.encrypted,
    plaintext: one.plaintext + other.plaintext,
    services: [...new Set([...one.services, ...other.services])],
    routes: { ...one.routes, ...other.routes },
    idleSeconds: Math.min(one.idleSeconds, other.idleSeconds),
  };
}

/** Replaces pods at the ends of edges by their owners. */
function ofOwners(mesh: Mesh | null, edges: Edge[]): Edge[] {
  const owners = new Map<string, string>();
  for (const { namespace, name, owner } of mesh?.workloads ?? [])
    if (name !== owner) owners.set(idOf(["workload", namespace, name]), owner);
  const ownerOf = (end: End): End => [end[0], end[1], owners.get(idOf(end)) ?? end[2]];
  const all = new Map<string, Edge>();
  for (const edge of edges) {
    const own = { ...edge, from: ownerOf(edge.from), to: ownerOf(edge.to) };
    const id = `${idOf(own.from)}>${idOf(own.to)}`;
    const known = all.get(id);
    all.set(id, known ? merged(known, own) : own);
  }
  return [...all.values()];
}

/** Builds the graph of a mesh with its traffic. */
export function graphOf(mesh: Mesh | null, edges: Edge[], filter: Filter): Graph {
  const nodes = mesh ? nodesOf(mesh) : new Map<string, GraphNode>();
  const all: GraphEdge[] = ofOwners(mesh, edges).map((edge) => {
    for (const end of [edge.from, edge.to]) {
      const [kind, namespace, name] = end;
      const id = idOf(end);
      if (!nodes.has(id)) {
        const shown = kind === "outside" ? "outside" : name;
        nodes.set(id, { id, kind, namespace, name: shown, pods: 0, membership: "unknown" });
      }
    }
    const [from, to] = [idOf(edge.from), idOf(edge.to)];
    return { id: `${from}>${to}`, from, to, edge, state: stateOf(edge) };
  });
  const text = filter.text.trim().toLowerCase();
  const isNamed = (id: string): boolean => {
    const node = nodes.get(id);
    if (!node) return false;
    const isHere = filter.namespace === "" || node.namespace === filter.namespace;
    return isHere && (text === "" || `${node.namespace}/${node.name}`.toLowerCase().includes(text));
  };
  const kept = all.filter(
    ({ edge, from, to }) =>
      (!filter.refused || edge.refused + edge.errors > 0) &&
      (!filter.plaintext || edge.plaintext > 0) &&
      (isNamed(from) || isNamed(to)),
  );
  const isEdged = new Set(kept.flatMap(({ from, to }) => [from, to]));
  const onlyEdged = filter.refused || filter.plaintext || filter.busy;
  const shown = [...nodes.values()].filter(({ id }) => isEdged.has(id) || (!onlyEdged && isNamed(id)));
  return { nodes: shown.sort(byName), edges: kept };
}

const compare = (one: string, other: string): number => (one < other ? -1 : one > other ? 1 : 0);

export const byName = (one: GraphNode, other: GraphNode): number =>
  compare(one.namespace, other.namespace) || compare(one.name, other.name) || compare(one.id, other.id);

export interface Place {
  x: number;
  y: number;
}

const CELL = { width: 150, height: 90 };
const GAP = 90;

/** Lays out nodes: a box for each namespace, with callers left of their servers. The layout is deterministic. */
export function places(graph: Graph): Map<string, Place> {
  const ranks = ranksOf(graph);
  const boxes = new Map<string, GraphNode[]>();
  for (const node of graph.nodes) {
    const key = node.kind === "outside" ? "" : node.namespace;
    boxes.set(key, [...(boxes.get(key) ?? []), node]);
  }
  const laid = [...boxes].sort(([one], [other]) => compare(one, other)).map(([, nodes]) => box(nodes, ranks));
  const area = laid.reduce((sum, { width, height }) => sum + (width + GAP) * (height + GAP), 0);
  const widest = Math.max(Math.sqrt(area * 2.4), ...laid.map(({ width }) => width));
  const result = new Map<string, Place>();
  let [x, y, shelf] = [0, 0, 0];
  for (const { width, height, cells } of laid) {
    if (x > 0 && x + width > widest) [x, y, shelf] = [0, y + shelf + GAP, 0];
    for (const [id, place] of cells) result.set(id, { x: x + place.x, y: y + place.y });
    x += width + GAP;
    shelf = Math.max(shelf, height);
  }
  return result;
}

/** Lays out the nodes of a namespace in columns by rank, or in a square if all have the same rank. */
function box(nodes: GraphNode[], ranks: Map<string, number>): { width: number; height: number; cells: Map<string, Place> } {
  const rows = Math.max(1, Math.ceil(Math.sqrt(nodes.length * 0.9)));
  const ordered = [...nodes].sort((a, b) => (ranks.get(a.id) ?? 0) - (ranks.get(b.id) ?? 0) || byName(a, b));
  const cells = new Map<string, Place>();
  let [column, row, rank] = [0, 0, ranks.get(ordered[0]?.id ?? "") ?? 0];
  for (const node of ordered) {
    const own = ranks.get(node.id) ?? 0;
    if (row === rows || (own !== rank && row > 0)) [column, row] = [column + 1, 0];
    rank = own;
    cells.set(node.id, { x: column * CELL.width, y: row * CELL.height });
    row += 1;
  }
  return { width: (column + 1) * CELL.width, height: rows * CELL.height, cells };
}

/** Returns the length of the longest chain of callers before each node, bounded where calls form a cycle. */
function ranksOf(graph: Graph): Map<string, number> {
  const ranks = new Map<string, number>();
  const MOST = 6;
  for (let round = 0; round < MOST; round += 1) {
    let changed = false;
    for (const { from, to } of graph.edges) {
      const rank = Math.min((ranks.get(from) ?? 0) + 1, MOST);
      if (from !== to && rank > (ranks.get(to) ?? 0)) {
        ranks.set(to, rank);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return ranks;
}
