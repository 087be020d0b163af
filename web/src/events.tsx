// Table of flow events: client, server, and the reason of a refusal.

import type { VNode } from "preact";
import { Badge, type Column, Table, Text, type Tone, WorkloadLink, href } from "./parts";
import type { Flow, Peer } from "./types";

const TONE: Record<Flow["event"], Tone> = {
  opened: "good",
  request: "good",
  closed: "dim",
  refused: "bad",
  failed: "warn",
};

function PeerText({ peer }: { peer: Peer }): VNode {
  const name = peer.owner ?? peer.workload;
  if (name !== undefined && peer.namespace !== undefined) return <WorkloadLink namespace={peer.namespace} name={name} />;
  return <Text>{peer.identity ?? peer.address ?? "unknown"}</Text>;
}

function what(flow: Flow): string {
  const { request } = flow;
  if (!request) return flow.destination.address ?? "";
  return `${request.method} ${request.authority}${request.path} ${request.status || "–"}`;
}

function why(flow: Flow): string {
  const policy = flow.refusal?.policy;
  const reason = flow.refusal?.reason ?? flow.error ?? "";
  return policy === undefined ? reason : `${reason} (${policy})`;
}

/** Returns the address of the page that explains the request of an event. */
function explainOf({ source, destination, service, request }: Flow): string {
  const named = (peer: Peer): string | undefined =>
    peer.workload !== undefined && peer.namespace !== undefined ? `${peer.namespace}/${peer.workload}` : undefined;
  const from = named(source) ?? source.identity ?? split(source.address)[0];
  // The authority of the request if known, else the destination address.
  const [host, port] = split(request?.authority || destination.address);
  const to = host || (service ? `${service.namespace}/${service.name}` : (named(destination) ?? ""));
  return href("explain", from, to, port || (request ? "80" : ""), request?.method ?? "GET", request?.path ?? "/");
}

/** Splits an address into host and port; a missing port is empty. */
function split(address = ""): [string, string] {
  const found = /^(?:\[([^\]]*)\]|([^:]*)):(\d+)$/.exec(address);
  return found ? [found[1] ?? found[2] ?? "", found[3] ?? ""] : [address.replace(/^\[|\]$/g, ""), ""];
}

const COLUMNS: Column[] = [
  { name: "Time" },
  { name: "Event" },
  { name: "From" },
  { name: "To" },
  { name: "What" },
  { name: "Why" },
  { name: "Reported by" },
  { name: "Explain" },
];
const BRIEF = new Set(["Time", "Event", "From", "Why", "Explain"]);

export function EventTable({ label, events, brief = false }: { label: string; events: Flow[]; brief?: boolean }): VNode {
  const columns = COLUMNS.map((column, index) => ({ column, index })).filter(({ column }) => !brief || BRIEF.has(column.name));
  const rows = events.map((flow) => {
    const cells = [
      <time dateTime={flow.time}>{flow.time.slice(11, 23)}</time>,
      <>
        <Badge tone={TONE[flow.event]}>{flow.event}</Badge>
        {flow.count > 1 && ` ×${flow.count.toLocaleString("en")}`}
      </>,
      <PeerText peer={flow.source} />,
      <PeerText peer={flow.destination} />,
      <Text>{what(flow)}</Text>,
      <Text>{why(flow)}</Text>,
      <Text>{`${flow.reporter.namespace}/${flow.reporter.pod}`}</Text>,
      <a href={explainOf(flow)}>explain</a>,
    ];
    return { key: String(flow.number), cells: columns.map(({ index }) => cells[index]) };
  });
  return <Table label={label} columns={columns.map(({ column }) => column)} rows={rows} empty="None has been seen since the dashboard started." />;
}
