// Pages of waypoints: the list, and the details and current records of one waypoint.

import type { VNode } from "preact";
import { get } from "./api";
import { EventTable } from "./events";
import { graphOf, idOf, NO_FILTER } from "./graph";
import { EDGE_COLUMNS, EndLink, edgeRows } from "./pages-graph";
import { Badge, Table, Text, Waiting, href, useAnswer } from "./parts";
import { edges, events, isRefusal, mesh } from "./store";
import { rate } from "./text";
import type { Edge, Table as Rows, WaypointRecords } from "./types";

const POLL_MS = 3000;

export function WaypointsPage(): VNode {
  return (
    <main>
      <h1>Waypoints</h1>
      <Table
        label="Waypoints"
        columns={["Waypoint", "Programmed", "Controller"].map((name) => ({ name }))}
        rows={(mesh.value?.waypoints ?? []).map(({ namespace, name, programmed, ours }) => ({
          key: `${namespace}/${name}`,
          cells: [
            <a href={href("waypoint", namespace, name)}>
              <Text>{`${namespace}/${name}`}</Text>
            </a>,
            programmed ? <Badge tone="good">yes</Badge> : <Badge tone="bad">no</Badge>,
            ours ? "Ambit" : "another",
          ],
        }))}
        empty="There is no waypoint."
      />
    </main>
  );
}

export function WaypointPage({ namespace, name }: { namespace: string; name: string }): VNode {
  const records = useAnswer<WaypointRecords>(
    `${namespace}/${name}`,
    (signal) => get<WaypointRecords>("waypoint", { namespace, name }, signal),
    POLL_MS,
  );
  const id = idOf(["workload", namespace, name]);
  const own = graphOf(mesh.value, edges.value, NO_FILTER).edges.filter(({ from, to }) => from === id || to === id);
  const out = own.filter(({ from }) => from === id).map(({ edge }) => edge);
  const refused = events.value.filter((event) => isRefusal(event) && event.waypoint === `${namespace}/${name}`);
  const value = records.value;
  return (
    <main>
      <h1>
        Waypoint <Text>{`${namespace}/${name}`}</Text>
      </h1>
      <Waiting answer={records} what="Records of the waypoint" />
      <section>
        <h2>Live shares</h2>
        <Shares edges={out} />
      </section>
      {value && (
        <>
          <Section title="Routes and weights" rows={value.routes} empty="It serves nothing." />
          <Section title="Endpoints and ejections" rows={value.endpoints} empty="It has no endpoints." />
          <Section title="Limits" rows={value.limits} empty="It has no rate limits." />
          <Section title="Policies" rows={value.policies} empty="It enforces no policies." />
          <Plugins plugins={value.plugins ?? []} />
        </>
      )}
      <section>
        <h2>Recent refusals</h2>
        <EventTable label="Recent refusals" events={refused} />
      </section>
      <section>
        <h2>Traffic</h2>
        <Table label="Edges" columns={EDGE_COLUMNS} rows={edgeRows(own)} empty="No traffic has been seen yet." />
      </section>
    </main>
  );
}

/** Table of each upstream's share of a waypoint's requests: of the current rate, and of every route. */
function Shares({ edges: out }: { edges: Edge[] }): VNode {
  const total = out.reduce((sum, edge) => sum + edge.requests, 0);
  const ofRoutes = new Map<string, number>();
  for (const edge of out)
    for (const [route, count] of Object.entries(edge.routes)) ofRoutes.set(route, (ofRoutes.get(route) ?? 0) + count);
  const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;
  const rows = out.flatMap((edge) => {
    const key = idOf(edge.to);
    const live = {
      key,
      cells: [
        <EndLink end={edge.to} />,
        "all, in the last 30 s",
        rate(edge.requests),
        total > 0 ? (
          <>
            <meter min={0} max={1} value={edge.requests / total} /> {percent(edge.requests / total)}
          </>
        ) : (
          "–"
        ),
      ],
    };
    const byRoute = Object.entries(edge.routes).map(([route, count]) => ({
      key: `${key} ${route}`,
      cells: [<EndLink end={edge.to} />, <Text>{route}</Text>, `${count} requests`, percent(count / (ofRoutes.get(route) ?? 1))],
    }));
    return [live, ...byRoute];
  });
  return (
    <Table
      label="Live shares"
      columns={[{ name: "Destination" }, { name: "Route" }, { name: "Requests/s", number: true }, { name: "Share" }]}
      rows={rows}
      empty="No request has gone through it yet."
    />
  );
}

function Section({ title, rows, empty }: { title: string; rows: Rows; empty: string }): VNode {
  return (
    <section>
      <h2>{title}</h2>
      <Table
        label={title}
        columns={rows.header.map((name) => ({ name: name.charAt(0) + name.slice(1).toLowerCase() }))}
        rows={rows.rows.map((row, index) => ({ key: `${index} ${row[0]}`, cells: row.map((cell) => <Text>{cell}</Text>) }))}
        empty={empty}
      />
    </section>
  );
}

function Plugins({ plugins }: { plugins: Record<string, unknown>[] }): VNode {
  const columns = ["name", "url", "phase", "failStrategy", "state", "error"];
  const text = (value: unknown): string => (value === null || value === undefined ? "" : String(value));
  const rows = plugins.map((plugin, index) => ({
    key: `${index} ${text(plugin.name)}`,
    cells: columns.map((column) => <Text>{text(plugin[column])}</Text>),
  }));
  return (
    <section>
      <h2>Plugins</h2>
      <Table label="Plugins" columns={columns.map((name) => ({ name }))} rows={rows} empty="It runs no plugins." />
    </section>
  );
}
