// The first page: the graph with its filter, the selected node, and the edges as a table.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Canvas, labelOf } from "./canvas";
import { type Filter, type Graph, type GraphEdge, type GraphNode, NO_FILTER, graphOf } from "./graph";
import { Badge, type Row, Table, Text, type Tone, WorkloadLink, href } from "./parts";
import { edges, events, isRefusal, lost, mesh, silent } from "./store";
import { milliseconds, rate } from "./text";
import type { End } from "./types";
import { EventTable } from "./events";

/** Maximum number of edges in the table, most important first. */
const MAX_ROWS = 300;
const WEIGHT = { refused: 4, failing: 3, plaintext: 2, encrypted: 1, idle: 0 };
const TONE: Record<GraphEdge["state"], Tone> = {
  refused: "bad",
  failing: "bad",
  plaintext: "warn",
  encrypted: "good",
  idle: "dim",
};

export function GraphPage(): VNode {
  const [filter, setFilter] = useState<Filter>(NO_FILTER);
  const [selected, setSelected] = useState<string | null>(null);
  const [arrangement, setArrangement] = useState(0);
  const search = useRef<HTMLInputElement>(null);
  const graph = useMemo(() => graphOf(mesh.value, edges.value, filter), [mesh.value, edges.value, filter]);
  const namespaces = useMemo(
    () => [...new Set(mesh.value?.workloads.map(({ namespace }) => namespace) ?? [])].sort(),
    [mesh.value],
  );
  // The layout puts callers left of their servers, which requires traffic: lay out again at the first traffic.
  const hasTraffic = edges.value.length > 0;
  useEffect(() => {
    if (hasTraffic) setArrangement((count) => count + 1);
  }, [hasTraffic]);
  useEffect(() => {
    const focus = (event: KeyboardEvent): void => {
      const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
      if (event.key !== "/" || isTyping) return;
      event.preventDefault();
      search.current?.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const set = (change: Partial<Filter>): void => setFilter({ ...filter, ...change });
  const open = (id: string): void => {
    const node = graph.nodes.find((one) => one.id === id);
    if (node) location.hash = pageOf(node);
  };
  const box = (name: "refused" | "plaintext" | "busy", label: string): VNode => (
    <label>
      <input type="checkbox" checked={filter[name]} onChange={(event) => set({ [name]: event.currentTarget.checked })} />
      {label}
    </label>
  );
  return (
    <main class="graph">
      <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
        <input
          ref={search}
          type="search"
          aria-label="Filter by name"
          placeholder="Filter by name ( / )"
          maxLength={253}
          value={filter.text}
          onInput={(event) => set({ text: event.currentTarget.value })}
        />
        <select
          aria-label="Namespace"
          value={filter.namespace}
          onChange={(event) => set({ namespace: event.currentTarget.value })}
        >
          <option value="">All namespaces</option>
          {namespaces.map((namespace) => (
            <option value={namespace} key={namespace}>
              <Text>{namespace}</Text>
            </option>
          ))}
        </select>
        {box("refused", "refused or failing")}
        {box("plaintext", "plaintext")}
        {box("busy", "with traffic")}
        <button type="button" onClick={() => setArrangement(arrangement + 1)}>
          Arrange
        </button>
        <Legend />
      </form>
      <div class="stage">
        <Canvas
          graph={graph}
          selected={selected}
          onSelect={setSelected}
          onOpen={open}
          arrangement={arrangement}
        />
        <Selected graph={graph} id={selected} />
      </div>
      <Losses />
      <EdgeTable graph={graph} />
    </main>
  );
}

function Legend(): VNode {
  return (
    <span class="legend" aria-hidden="true">
      {(["encrypted", "plaintext", "failing", "refused"] as const).map((state) => (
        <span class={`key ${state}`} key={state}>
          {state}
        </span>
      ))}
    </span>
  );
}

/** Lists traffic that the graph does not show, and why. */
function Losses(): VNode | null {
  const { sampled, refusals, forgotten } = lost.value;
  const lines: string[] = [];
  if (sampled > 0) lines.push(`${sampled.toLocaleString("en")} events were left out by busy proxies: rates are lower bounds.`);
  if (refusals > 0) lines.push(`${refusals.toLocaleString("en")} refusals were left out: too many different ones at once.`);
  if (forgotten > 0) lines.push(`${forgotten.toLocaleString("en")} edges were forgotten: there are too many.`);
  if (silent.value.length > 0) lines.push(`No events come from ${silent.value.join("; ")}.`);
  if (mesh.value && mesh.value.leftOut > 0) lines.push(`${mesh.value.leftOut} workloads are left out.`);
  return lines.length === 0 ? null : (
    <ul class="losses">
      {lines.map((line) => (
        <li key={line}>
          <Text long>{line}</Text>
        </li>
      ))}
    </ul>
  );
}

const pageOf = (node: GraphNode): string => {
  if (node.kind === "waypoint") return href("waypoint", node.namespace, node.name);
  if (node.kind === "workload") return href("workload", node.namespace, node.name);
  return href("events");
};

export function EndLink({ end: [kind, namespace, name] }: { end: End }): VNode {
  if (kind === "workload") return <WorkloadLink namespace={namespace} name={name} />;
  if (kind === "outside") return <>outside</>;
  return <Text>{`service ${namespace}/${name}`}</Text>;
}

export function edgeRows(list: GraphEdge[]): Row[] {
  const busy = ({ edge }: GraphEdge): number => edge.connections + edge.requests + edge.refused;
  const sorted = [...list].sort(
    (one, other) => WEIGHT[other.state] - WEIGHT[one.state] || busy(other) - busy(one) || (one.id < other.id ? -1 : 1),
  );
  return sorted.slice(0, MAX_ROWS).map(({ id, edge, state }) => ({
    key: id,
    cells: [
      <EndLink end={edge.from} />,
      <EndLink end={edge.to} />,
      <Badge tone={TONE[state]}>{state}</Badge>,
      edge.encrypted > 0 ? (edge.plaintext > 0 ? "mixed" : "mutual TLS") : edge.plaintext > 0 ? "plaintext" : "–",
      rate(edge.connections),
      rate(edge.requests),
      rate(edge.errors),
      rate(edge.refused),
      milliseconds(edge.p50Ms),
      milliseconds(edge.p99Ms),
    ],
  }));
}

export const EDGE_COLUMNS = [
  { name: "From" },
  { name: "To" },
  { name: "State" },
  { name: "Transport" },
  ...["Connections/s", "Requests/s", "Errors/s", "Refused/s", "p50 ≤", "p99 ≤"].map((name) => ({ name, number: true })),
];

function EdgeTable({ graph }: { graph: Graph }): VNode {
  return (
    <section>
      <h2>Traffic of the last 30 seconds</h2>
      <Table label="Edges" columns={EDGE_COLUMNS} rows={edgeRows(graph.edges)} empty="No traffic has been seen yet." />
    </section>
  );
}

function Selected({ graph, id }: { graph: Graph; id: string | null }): VNode | null {
  const node = graph.nodes.find((one) => one.id === id);
  const edge = graph.edges.find((one) => one.id === id);
  if (edge) {
    const services = edge.edge.services.join(", ");
    return (
      <aside aria-live="polite">
        <h2>
          <EndLink end={edge.edge.from} /> → <EndLink end={edge.edge.to} />
        </h2>
        <p>
          <Badge tone={TONE[edge.state]}>{edge.state}</Badge> {labelOf(edge)}
        </p>
        {services && (
          <p>
            Services: <Text>{services}</Text>
          </p>
        )}
      </aside>
    );
  }
  if (!node) return null;
  const isOf = ({ from, to }: GraphEdge): boolean => from === node.id || to === node.id;
  const recent = events.value.filter(
    (event) =>
      isRefusal(event) &&
      [event.source, event.destination].some(
        (peer) => peer.namespace === node.namespace && (peer.owner ?? peer.workload) === node.name,
      ),
  );
  return (
    <aside aria-live="polite">
      <h2>
        {node.kind} <Text>{node.kind === "outside" ? "" : `${node.namespace}/${node.name}`}</Text>
      </h2>
      {node.kind === "workload" && (
        <p>
          {node.pods} pods, {{ all: "in the mesh", some: "partly in the mesh", none: "outside the mesh", unknown: "" }[node.membership]}
        </p>
      )}
      {node.kind !== "outside" && <a href={pageOf(node)}>Open its page</a>}
      <ul>
        {graph.edges
          .filter(isOf)
          .slice(0, 20)
          .map((one) => (
            <li key={one.id}>
              {one.from === node.id ? "to " : "from "}
              <EndLink end={one.from === node.id ? one.edge.to : one.edge.from} />: {labelOf(one) || one.state}
            </li>
          ))}
      </ul>
      {recent.length > 0 && <EventTable label="Recent refusals" events={recent.slice(0, 10)} brief />}
    </aside>
  );
}
