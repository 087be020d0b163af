// Policies, the rehearsal of others ("who would be refused"), and the explanation of one connection.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failure, get, post } from "./api";
import { PolicyTable } from "./pages-workload";
import { Badge, Table, Text, href } from "./parts";
import { mesh } from "./store";
import type { Explanation, Rehearsal, RehearsalRow } from "./types";

const EXAMPLE = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: STRICT}}
`;

const MAX_POLICIES = 1_000_000;

const messageOf = (error: unknown): string =>
  error instanceof Failure ? error.message : "the dashboard does not answer";

export function PoliciesPage(): VNode {
  return (
    <main>
      <h1>Policies</h1>
      <PolicyTable policies={mesh.value?.policies ?? []} empty="Node proxies have no policies: everybody may connect." />
      <p class="dim">
        These are the policies of node proxies; those of a waypoint are on <a href={href("waypoints")}>its page</a>.
      </p>
      <RehearsalForm />
    </main>
  );
}

function RehearsalForm(): VNode {
  const [policies, setPolicies] = useState("");
  const [enforce, setEnforce] = useState(false);
  const [busy, setBusy] = useState(false);
  const [report, setReport] = useState<Rehearsal | null>(null);
  const [error, setError] = useState<string | null>(null);
  const rehearse = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    setReport(null);
    try {
      setReport(await post<Rehearsal>("rehearse", { enforceDryRun: enforce }, policies));
    } catch (failure) {
      setError(messageOf(failure));
    }
    setBusy(false);
  };
  return (
    <section>
      <h2>Rehearsal: who would be refused</h2>
      <p>
        Nothing is applied. What proxies have seen so far is judged with the policies that there are, and with these besides.
      </p>
      <form onSubmit={(event) => void rehearse(event)}>
        <textarea
          aria-label="Policies to rehearse, as YAML"
          placeholder={EXAMPLE}
          rows={10}
          maxLength={MAX_POLICIES}
          spellcheck={false}
          value={policies}
          onInput={(event) => setPolicies(event.currentTarget.value)}
        />
        <div class="filter">
          <label>
            <input type="checkbox" checked={enforce} onChange={(event) => setEnforce(event.currentTarget.checked)} />
            as if policies that are marked as a dry run were not
          </label>
          <button type="submit" disabled={busy || (policies.trim() === "" && !enforce)}>
            {busy ? "Rehearsing …" : "Rehearse"}
          </button>
        </div>
      </form>
      <div aria-live="polite" id="rehearsal">
        {error !== null && (
          <p class="trouble">
            <Text long>{error}</Text>
          </p>
        )}
        {report && <Report report={report} />}
      </div>
    </section>
  );
}

function Report({ report }: { report: Rehearsal }): VNode {
  const times = (rows: RehearsalRow[]): number => rows.reduce((sum, row) => sum + row.times, 0);
  const part = (title: string, rows: RehearsalRow[]): VNode | null =>
    rows.length === 0 ? null : (
      <>
        <h3>{title}</h3>
        <Table
          label={title}
          columns={[{ name: "Times", number: true }, { name: "From" }, { name: "To" }, { name: "What" }, { name: "By" }, { name: "Why" }]}
          rows={rows.map((row, index) => ({
            key: String(index),
            cells: [row.times, <Text>{row.from}</Text>, <Text>{row.to}</Text>, <Text>{row.what}</Text>, <Text>{row.by}</Text>, <Text long>{row.why}</Text>],
          }))}
          empty=""
        />
      </>
    );
  return (
    <>
      <p>
        <Badge tone={report.refused.length > 0 ? "bad" : "good"}>{`${times(report.refused)} would be refused`}</Badge>{" "}
        {times(report.admitted)} would be admitted that are refused now, {times(report.undecided)} cannot be decided, {report.allowed}{" "}
        allowed as now, {report.refusedAlready} refused as now
      </p>
      {report.notes.map((note) => (
        <p class="dim" key={note}>
          <Text long>{note}</Text>
        </p>
      ))}
      {part("Would be refused", report.refused)}
      {part("Would be admitted, and are refused now", report.admitted)}
      {part("Cannot be decided", report.undecided)}
    </>
  );
}

export function ExplainPage({ path }: { path: string[] }): VNode {
  const [given, setGiven] = useState(path);
  const [reports, setReports] = useState<Explanation[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [from = "", to = "", port = "", plaintext = ""] = given;
  const explain = async (): Promise<void> => {
    setReports(null);
    setError(null);
    try {
      setReports(await get<Explanation[]>("explain", { from, to, port, plaintext: plaintext !== "" }));
    } catch (failure) {
      setError(messageOf(failure));
    }
  };
  useEffect(() => {
    if (from && to && port) void explain();
  }, []);
  const set = (index: number, value: string): void => setGiven([from, to, port, plaintext].map((old, at) => (at === index ? value : old)));
  return (
    <main>
      <h1>Explain a connection</h1>
      <form
        class="filter"
        onSubmit={(event) => {
          event.preventDefault();
          history.replaceState(null, "", href("explain", from, to, port, plaintext));
          void explain();
        }}
      >
        <input required aria-label="From" placeholder="From: pod, address or SPIFFE id" value={from} onInput={(event) => set(0, event.currentTarget.value)} />
        <input required aria-label="To" placeholder="To: pod, address or service" value={to} onInput={(event) => set(1, event.currentTarget.value)} />
        <input required aria-label="Port" placeholder="Port" type="number" min={1} max={65535} value={port} onInput={(event) => set(2, event.currentTarget.value)} />
        <label>
          <input type="checkbox" checked={plaintext !== ""} onChange={(event) => set(3, event.currentTarget.checked ? "plaintext" : "")} />
          from outside the mesh
        </label>
        <button type="submit">Explain</button>
      </form>
      <div aria-live="polite" id="explanation">
        {error !== null && (
          <p class="trouble">
            <Text long>{error}</Text>
          </p>
        )}
        {reports?.map((report) => <Explained report={report} key={`${report.to} ${report.destination}`} />)}
      </div>
    </main>
  );
}

function Explained({ report }: { report: Explanation }): VNode {
  return (
    <section>
      <h2>
        <Text>{report.from}</Text> → <Text>{`${report.to} (${report.destination})`}</Text>
      </h2>
      <p>
        <Badge tone={report.allowed ? "good" : "bad"}>{report.allowed ? "allowed" : "refused"}</Badge>{" "}
        <Text long>{report.decidedBy === null ? report.why : `by ${report.decidedBy}: ${report.why}`}</Text>
      </p>
      <p>
        Identity: <Text>{report.identity ?? "none is proved: plaintext"}</Text>
        {report.waypoint !== undefined && (
          <>
            ; through the waypoint <Text>{report.waypoint}</Text>, whose policies are not judged here
          </>
        )}
        {!report.enforced && "; the server is outside the mesh, and nobody enforces policies for it"}
      </p>
      <Table
        label="Policies"
        columns={["Policy", "Action", "Scope", "Matching rule", "Notes"].map((name) => ({ name }))}
        rows={report.policies.map((one) => ({
          key: one.policy,
          cells: [<Text>{one.policy}</Text>, one.action, one.scope, one.matchingRule ?? "none", one.dryRun ? "dry run" : ""],
        }))}
        empty="No policy applies."
      />
    </section>
  );
}
