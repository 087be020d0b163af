// Pages of workloads: the list, and the details of one workload.

import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { get } from "./api";
import { EventTable } from "./events";
import { graphOf, idOf, NO_FILTER } from "./graph";
import { EDGE_COLUMNS, edgeRows } from "./pages-graph";
import { Badge, Table, Text, Waiting, WorkloadLink, href, useAnswer } from "./parts";
import { edges, events, isRefusal, mesh } from "./store";
import type { Mesh, Pod, Policy, Workload } from "./types";

const POLL_MS = 5000;

export function WorkloadsPage(): VNode {
  const [text, setText] = useState("");
  const groups = useMemo(() => groupsOf(mesh.value), [mesh.value]);
  const wanted = text.trim().toLowerCase();
  const shown = [...groups].filter(([, all]) => {
    const first = all[0];
    return first && `${first.namespace}/${first.owner}`.toLowerCase().includes(wanted);
  });
  return (
    <main>
      <h1>Workloads</h1>
      <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
        <input type="search" aria-label="Filter by name" placeholder="Filter by name" maxLength={253} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </form>
      <Table
        label="Workloads"
        columns={[{ name: "Workload" }, { name: "Pods", number: true }, { name: "Mesh" }, { name: "Identity" }, { name: "Waypoint" }, { name: "Nodes" }]}
        rows={shown.map(([key, all]) => ({ key, cells: workloadCells(all) }))}
        empty="No workload is known."
      />
    </main>
  );
}

function groupsOf(all: Mesh | null): Map<string, Workload[]> {
  const groups = new Map<string, Workload[]>();
  for (const workload of all?.workloads ?? []) {
    const key = idOf(["workload", workload.namespace, workload.owner]);
    const group = groups.get(key);
    if (group) group.push(workload);
    else groups.set(key, [workload]);
  }
  return new Map([...groups].sort(([one], [other]) => (one < other ? -1 : 1)));
}

function Membership({ all }: { all: Workload[] }): VNode {
  const inside = all.filter(({ protocol }) => protocol === "HBONE").length;
  if (inside === all.length) return <Badge tone="good">in the mesh</Badge>;
  if (inside === 0) return <Badge tone="dim">outside</Badge>;
  return <Badge tone="warn">{`${inside} of ${all.length}`}</Badge>;
}

function workloadCells(all: Workload[]): (VNode | string | number)[] {
  const first = all[0] as Workload;
  return [
    <WorkloadLink namespace={first.namespace} name={first.owner} />,
    all.length,
    <Membership all={all} />,
    <Text>{first.identity}</Text>,
    <Text>{first.waypoint ?? "–"}</Text>,
    <Text>{[...new Set(all.map(({ node }) => node))].join(", ")}</Text>,
  ];
}

export function WorkloadPage({ namespace, name }: { namespace: string; name: string }): VNode {
  const all = (mesh.value?.workloads ?? []).filter((one) => one.namespace === namespace && one.owner === name);
  const identities = new Set(all.map(({ identity }) => identity));
  const id = idOf(["workload", namespace, name]);
  const own = graphOf(mesh.value, edges.value, NO_FILTER).edges.filter(({ from, to }) => from === id || to === id);
  const isOf = (peer: { namespace?: string; owner?: string; workload?: string }): boolean =>
    peer.namespace === namespace && (peer.owner ?? peer.workload) === name;
  const refused = events.value.filter((event) => isRefusal(event) && (isOf(event.source) || isOf(event.destination)));
  const names = new Set(all.map((one) => `${namespace}/${one.name}`));
  const services = (mesh.value?.services ?? []).filter(({ endpoints }) => endpoints.some((one) => names.has(one)));
  return (
    <main>
      <h1>
        <Text>{`${namespace}/${name}`}</Text> <Membership all={all} />
      </h1>
      {mesh.value && all.length === 0 && <p class="trouble">The mesh knows no such workload.</p>}
      <Pods namespace={namespace} all={all} />
      <section>
        <h2>Recent refusals</h2>
        <EventTable label="Recent refusals" events={refused} />
      </section>
      <section>
        <h2>Traffic</h2>
        <Table label="Edges" columns={EDGE_COLUMNS} rows={edgeRows(own)} empty="No traffic has been seen yet." />
      </section>
      <section>
        <h2>Certificates</h2>
        <Table
          label="Certificates"
          columns={["Identity", "State", "Held on", "Serial number", "Valid from", "Expires"].map((column) => ({ name: column }))}
          rows={(mesh.value?.certificates ?? [])
            .filter(({ identity }) => identities.has(identity))
            .map((one) => ({
              key: `${one.node} ${one.identity}`,
              cells: [
                <Text>{one.identity}</Text>,
                <Badge tone={one.state === "Available" ? "good" : "bad"}>{one.state}</Badge>,
                <Text>{one.node}</Text>,
                <Text>{one.serial}</Text>,
                <Text>{one.validFrom}</Text>,
                <Text>{one.expires}</Text>,
              ],
            }))}
          empty="No node proxy holds a certificate for its identity."
        />
      </section>
      <section>
        <h2>Policies of node proxies</h2>
        <PolicyTable policies={policiesOf(mesh.value, all)} empty="No policy applies: everybody may connect." />
      </section>
      <section>
        <h2>Services</h2>
        <Table
          label="Services"
          columns={["Service", "Host name", "Addresses", "Ports", "Waypoint"].map((column) => ({ name: column }))}
          rows={services.map((one) => ({
            key: `${one.namespace}/${one.hostname}`,
            cells: [
              <Text>{`${one.namespace}/${one.name}`}</Text>,
              <Text>{one.hostname}</Text>,
              <Text>{one.addresses.join(", ")}</Text>,
              one.ports.join(", "),
              <Text>{one.waypoint ?? "–"}</Text>,
            ],
          }))}
          empty="It is no endpoint of a service."
        />
      </section>
      <p>
        <a href={href("explain", "", all[0]?.addresses[0] ?? "", "")}>Explain a connection to it</a>
      </p>
    </main>
  );
}

/** Table of a workload's pods, from Kubernetes objects: whether they should be in the mesh, and why. */
function Pods({ namespace, all }: { namespace: string; all: Workload[] }): VNode {
  const pods = useAnswer<Pod[]>(namespace, (signal) => get<Pod[]>("pods", { namespace }, signal), POLL_MS);
  const byName = new Map(pods.value?.map((pod) => [pod.name, pod]));
  return (
    <section>
      <h2>Pods</h2>
      {pods.error !== null && <Waiting answer={pods} what="Membership" />}
      <Table
        label="Pods"
        columns={["Pod", "Node", "Addresses", "Reached by", "Should be in the mesh", "Captured"].map((column) => ({ name: column }))}
        rows={all.map((one) => {
          const pod = byName.get(one.name);
          return {
            key: one.name,
            cells: [
              <Text>{one.name}</Text>,
              <Text>{one.node}</Text>,
              <Text>{one.addresses.join(", ")}</Text>,
              one.protocol === "HBONE" ? <Badge tone="good">mutual TLS</Badge> : <Badge tone="dim">plaintext</Badge>,
              pod ? <Wanted pod={pod} /> : "–",
              pod ? <Captured pod={pod} /> : "–",
            ],
          };
        })}
        empty="It has no pods."
      />
    </section>
  );
}

function Wanted({ pod: { wanted } }: { pod: Pod }): VNode {
  if (wanted === "unknown") return <>decided by the agents' selectors</>;
  const [word, why] = "in" in wanted ? ["yes", wanted.in] : ["no", wanted.out];
  return <Text long>{`${word}: ${why}`}</Text>;
}

function Captured({ pod }: { pod: Pod }): VNode {
  const tones = { yes: "good", pending: "warn", no: "dim" } as const;
  return (
    <>
      <Badge tone={tones[pod.captured]}>{pod.captured}</Badge>
      {pod.message !== null && <Text>{pod.message}</Text>}
    </>
  );
}

/** Policies that node proxies enforce for a workload: mesh-wide, of its namespace, and those that select it. */
function policiesOf(all: Mesh | null, workloads: Workload[]): Policy[] {
  const selected = new Set(workloads.flatMap(({ policies }) => policies));
  const namespaces = new Set(workloads.map(({ namespace }) => namespace));
  return (all?.policies ?? []).filter((policy) => {
    const scope = policy.scope.toLowerCase();
    if (scope === "global") return true;
    if (scope === "namespace") return namespaces.has(policy.namespace);
    return selected.has(`${policy.namespace}/${policy.name}`);
  });
}

export function PolicyTable({ policies, empty }: { policies: Policy[]; empty: string }): VNode {
  return (
    <Table
      label="Policies"
      columns={[{ name: "Policy" }, { name: "Action" }, { name: "Scope" }, { name: "Rules", number: true }, { name: "Notes" }]}
      rows={policies.map((one) => ({
        key: `${one.namespace}/${one.name}`,
        cells: [
          <Text>{`${one.namespace}/${one.name}`}</Text>,
          <Badge tone={one.action.toLowerCase() === "deny" ? "bad" : "good"}>{one.action}</Badge>,
          one.scope,
          one.rules,
          one.dryRun ? "dry run" : "",
        ],
      }))}
      empty={empty}
    />
  );
}
