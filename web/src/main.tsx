// Entry point of the dashboard: selects the page by the address, and renders the header that all pages share.

import { render, type VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { takeToken } from "./api";
import { EventTable } from "./events";
import { GraphPage } from "./pages-graph";
import { NodesPage } from "./pages-health";
import { ExplainPage, PoliciesPage } from "./pages-policies";
import { WaypointPage, WaypointsPage } from "./pages-waypoint";
import { WorkloadPage, WorkloadsPage } from "./pages-workload";
import { Text } from "./parts";
import { about, events, isRefusal, meshTrouble, refusals, serverTrouble, start } from "./store";
import "./style.css";

const PAGES: [string, string][] = [
  ["", "Graph"],
  ["workloads", "Workloads"],
  ["waypoints", "Waypoints"],
  ["policies", "Policies"],
  ["events", "Events"],
  ["explain", "Explain"],
  ["nodes", "Nodes"],
];

function pathOf(hash: string): string[] {
  try {
    return hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function EventsPage(): VNode {
  const [all, setAll] = useState(false);
  const shown = all ? events.value : events.value.filter(isRefusal);
  return (
    <main>
      <h1>Events</h1>
      <form class="filter">
        <label>
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} />
          connections and requests that succeeded, too
        </label>
      </form>
      <EventTable label="Events" events={shown} />
    </main>
  );
}

function Page({ path }: { path: string[] }): VNode {
  const [page = "", namespace = "", name = ""] = path;
  switch (page) {
    case "workloads":
      return <WorkloadsPage />;
    case "workload":
      return <WorkloadPage key={path.join("/")} namespace={namespace} name={name} />;
    case "waypoints":
      return <WaypointsPage />;
    case "waypoint":
      return <WaypointPage key={path.join("/")} namespace={namespace} name={name} />;
    case "policies":
      return <PoliciesPage />;
    case "events":
      return <EventsPage />;
    case "explain":
      return <ExplainPage key={path.join("/")} path={path.slice(1)} />;
    case "nodes":
      return <NodesPage />;
    default:
      return <GraphPage />;
  }
}

function Troubles(): VNode {
  const age = meshTrouble.value?.age;
  return (
    <div role="alert" id="troubles">
      {serverTrouble.value !== null && (
        <p class="trouble">
          <Text long>{serverTrouble.value}</Text>
        </p>
      )}
      {serverTrouble.value === null && meshTrouble.value && (
        <p class="trouble">
          The mesh does not answer: <Text long>{meshTrouble.value.error}</Text>
          {age !== null && age !== undefined ? `. What is shown is ${age} s old or older.` : ""}
        </p>
      )}
    </div>
  );
}

function App(): VNode {
  const [path, setPath] = useState(pathOf(location.hash));
  useEffect(() => {
    const change = (): void => setPath(pathOf(location.hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  const current = { workload: "workloads", waypoint: "waypoints" }[path[0] ?? ""] ?? path[0];
  return (
    <>
      <header>
        <strong>Ambit</strong>
        <nav aria-label="Pages">
          {PAGES.map(([page, title]) => (
            <a href={`#/${page}`} key={page} {...(page === current ? { "aria-current": "page" as const } : {})}>
              {title}
              {page === "events" && refusals.value.length > 0 && <span class="count">{refusals.value.length}</span>}
            </a>
          ))}
        </nav>
        <span class="dim">
          <Text>{about.value ? `${about.value.source} · ${about.value.version}` : ""}</Text>
        </span>
      </header>
      <Troubles />
      <Page path={path} />
      <footer class="dim">
        <a href="licenses.txt">Licences of libraries</a>
      </footer>
    </>
  );
}

takeToken();
start();
const place = document.getElementById("app");
if (place) render(<App />, place);
