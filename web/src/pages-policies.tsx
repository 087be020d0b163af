// Pages of policies: the list, the rehearsal of new ones ("who would be refused"), and the explanation of a request.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failure, get, post } from "./api";
import { PolicyTable } from "./pages-workload";
import { Badge, Table, Text, type Tone, href } from "./parts";
import { mesh } from "./store";
import type { Explanation, Explanations, Rehearsal, RehearsalRow, RequestExplanation, Step } from "./types";

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

export function ExplainPage({ path: given }: { path: string[] }): VNode {
  const [from, setFrom] = useState(given[0] ?? "");
  const [to, setTo] = useState(given[1] ?? "");
  const [port, setPort] = useState(given[2] ?? "");
  const [method, setMethod] = useState(given[3] || "GET");
  const [path, setPath] = useState(given[4] || "/");
  const [answer, setAnswer] = useState<Explanations | null>(null);
  const [error, setError] = useState<string | null>(null);
  const explain = async (): Promise<void> => {
    setAnswer(null);
    setError(null);
    try {
      setAnswer(await get<Explanations>("explain", { from, to, port, method, path }));
    } catch (failure) {
      setError(messageOf(failure));
    }
  };
  useEffect(() => {
    if (from && to && port) void explain();
  }, []);
  const field = (label: string, value: string, set: (value: string) => void, more: Record<string, unknown> = {}): VNode => (
    <input required aria-label={label} placeholder={label} value={value} onInput={(event) => set(event.currentTarget.value)} {...more} />
  );
  return (
    <main>
      <h1>Explain a request</h1>
      <p class="dim">
        It is not sent: each proxy on its way predicts what it would do. Of clients that are no pods, only the decisions of policies
        are known.
      </p>
      <form
        class="filter"
        onSubmit={(event) => {
          event.preventDefault();
          history.replaceState(null, "", href("explain", from, to, port, method, path));
          void explain();
        }}
      >
        {field("From: pod, address or SPIFFE id", from, setFrom)}
        {field("To: host, service or address", to, setTo)}
        {field("Port", port, setPort, { type: "number", min: 1, max: 65535 })}
        {field("Method", method, setMethod, { size: 8 })}
        {field("Path", path, setPath)}
        <button type="submit">Explain</button>
      </form>
      <div aria-live="polite" id="explanation">
        {error !== null && (
          <p class="trouble">
            <Text long>{error}</Text>
          </p>
        )}
        {answer?.request && <Followed report={answer.request} />}
        {answer?.policies?.map((report) => <Explained report={report} key={`${report.to} ${report.destination}`} />)}
      </div>
    </main>
  );
}

const RESULT: Record<Step["result"], Tone> = { passed: "good", refused: "bad", answered: "warn", open: "warn" };

/** Explanation of a request: the decisions of each proxy on its path. */
function Followed({ report }: { report: RequestExplanation }): VNode {
  const { answer } = report;
  const status = answer.status === undefined ? answer.kind : String(answer.status);
  const considered = (step: Step): string =>
    (step.considered ?? []).map(({ object, effect, result }) => [object, effect, result].filter(Boolean).join(" ")).join("; ");
  return (
    <>
      <p>
        <Badge tone={report.allowed ? "good" : "bad"}>{report.allowed ? "allowed" : "refused"}</Badge>{" "}
        <Text long>{`${report.method} ${report.host}${report.path} from ${report.from}: ${status} by ${answer.by}: ${answer.why}`}</Text>
        {report.mayDiffer && " (a step was not evaluated: the result may be another)"}
      </p>
      {report.parts.map((part, index) => (
        <section key={`${index} ${part.by}`}>
          <h2>
            <Text>{part.by}</Text>
          </h2>
          <Table
            label={part.by}
            columns={["Step", "Result", "Object", "Why", "Looked at"].map((name) => ({ name }))}
            rows={part.steps.map((step, at) => ({
              key: String(at),
              cells: [
                step.step,
                <Badge tone={RESULT[step.result]}>{step.result}</Badge>,
                <Text>{step.object ?? ""}</Text>,
                <Text long>{step.why}</Text>,
                <Text>{considered(step)}</Text>,
              ],
            }))}
            empty="It decides nothing."
          />
        </section>
      ))}
    </>
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
