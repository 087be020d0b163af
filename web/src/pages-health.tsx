// Health page: nodes, control plane, rollouts, and problems of objects.

import type { VNode } from "preact";
import { get } from "./api";
import { Badge, Table, Text, Waiting, useAnswer } from "./parts";
import { mesh } from "./store";
import type { Health, NodeHealth, Part } from "./types";

const POLL_MS = 5000;

export function NodesPage(): VNode {
  const health = useAnswer<Health>("health", (signal) => get<Health>("health", {}, signal), POLL_MS);
  const { value } = health;
  const troubles = [...(value?.troubles ?? []), ...(value?.status?.problems ?? []), ...(value?.lab?.problems ?? []), ...(mesh.value?.troubles ?? [])];
  return (
    <main>
      <h1>Nodes</h1>
      <Waiting answer={health} what="Health" />
      {troubles.map((trouble) => (
        <p class="trouble" key={trouble}>
          <Text long>{trouble}</Text>
        </p>
      ))}
      <Table
        label="Nodes"
        columns={[
          { name: "Node" },
          { name: "Node proxy" },
          { name: "Pods served", number: true },
          { name: "Connections", number: true },
          { name: "Captured" },
          { name: "Agent" },
          { name: "xDS" },
          { name: "Certificates" },
          { name: "Drifts", number: true },
        ]}
        rows={(mesh.value?.nodes ?? []).map((node) => {
          const status = value?.status?.nodes.find((one) => one.node === node.name);
          return {
            key: node.name,
            cells: [
              <Text>{node.name}</Text>,
              node.error === null ? <PartText part={status?.proxy ?? null} good="answers" /> : <><Badge tone="bad">silent</Badge> <Text>{node.error}</Text></>,
              node.pods,
              node.connections,
              captured(status, value?.lab?.pods.filter((pod) => pod.node === node.name)),
              status ? <PartText part={status.agent} good="" /> : "–",
              status?.xds ?? "–",
              certificates(status, node.name),
              status?.drifts ?? "–",
            ],
          };
        })}
        empty="No node is known yet."
      />
      {value && <Rollout health={value} />}
      {value?.status && (
        <section>
          <h2>Control plane</h2>
          <Table
            label="Control plane"
            columns={[{ name: "Pod" }, { name: "State" }]}
            rows={value.status.controlPlane.map((part) => ({ key: part.pod, cells: [<Text>{part.pod}</Text>, <PartText part={part} good="" />] }))}
            empty="No replica runs."
          />
        </section>
      )}
      {value?.lab && <Daemons daemons={value.lab.daemons} />}
      <section>
        <h2>Problems of objects</h2>
        <Table
          label="Problems"
          columns={["Severity", "Object", "Field", "Message"].map((name) => ({ name }))}
          rows={(value?.problems ?? []).map((one, index) => ({
            key: `${index} ${one.object}`,
            cells: [
              <Badge tone={one.severity === "error" ? "bad" : "warn"}>{one.severity}</Badge>,
              <Text>{one.object}</Text>,
              <Text>{one.field}</Text>,
              <Text long>{one.message}</Text>,
            ],
          }))}
          empty="None."
        />
      </section>
    </main>
  );
}

function PartText({ part, good }: { part: Part | null; good: string }): VNode {
  if (!part) return good ? <Badge tone="good">{good}</Badge> : <Badge tone="bad">none</Badge>;
  const words = [part.version ?? "", part.restarts > 0 ? `${part.restarts} restarts` : ""].filter(Boolean).join(", ");
  return (
    <>
      <Badge tone={part.ready ? "good" : "bad"}>{part.ready ? "ready" : "not ready"}</Badge> <Text>{words}</Text>
    </>
  );
}

function captured(status: NodeHealth | undefined, pods: { captured: boolean }[] | undefined): string {
  if (status && status.wanted !== null) return `${status.captured ?? 0} of ${status.wanted}`;
  if (pods) return `${pods.filter((pod) => pod.captured).length} of ${pods.length} pods`;
  return "–";
}

function certificates(status: NodeHealth | undefined, node: string): string {
  if (status?.certificates) {
    const { available, total, firstExpiry } = status.certificates;
    return `${available} of ${total}${firstExpiry === null ? "" : `, first expires ${firstExpiry}`}`;
  }
  const own = (mesh.value?.certificates ?? []).filter((one) => one.node === node);
  return `${own.filter((one) => one.state === "Available").length} of ${own.length}`;
}

function Rollout({ health }: { health: Health }): VNode {
  const { rollout } = health;
  return (
    <section>
      <h2>Rollout of node proxies</h2>
      {!rollout && <p class="dim">{health.lab ? "A lab has no rollouts." : "It cannot be read."}</p>}
      {rollout && (
        <>
          <p>
            {rollout.waitsFor === null ? (
              <Badge tone="good">new node proxies serve every node</Badge>
            ) : (
              <>
                <Badge tone="warn">waiting</Badge> <Text long>{rollout.waitsFor}</Text>
              </>
            )}
          </p>
          <Table
            label="Draining"
            columns={[{ name: "Node" }, { name: "Draining proxy" }, { name: "Connections", number: true }, { name: "Until at most" }]}
            rows={rollout.draining.map((one) => ({
              key: one.pod,
              cells: [<Text>{one.node}</Text>, <Text>{one.pod}</Text>, one.connections ?? "?", <Text>{one.until}</Text>],
            }))}
            empty="No old proxy drains."
          />
        </>
      )}
    </section>
  );
}

function Daemons({ daemons }: { daemons: Record<string, unknown>[] }): VNode {
  const names = [...new Set(daemons.flatMap((one) => Object.keys(one)))];
  const text = (value: unknown): string => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return (
    <section>
      <h2>Processes of the lab</h2>
      <Table
        label="Processes"
        columns={names.map((name) => ({ name }))}
        rows={daemons.map((one, index) => ({ key: String(index), cells: names.map((name) => <Text>{text(one[name])}</Text>) }))}
        empty="None runs."
      />
    </section>
  );
}
