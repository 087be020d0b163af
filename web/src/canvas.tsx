// Draws the graph on a canvas with cytoscape; users pan, zoom and select with mouse or keyboard.

import cytoscape from "cytoscape";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type Graph, type GraphEdge, type GraphNode, places } from "./graph";
import { rate, short } from "./text";

/** Number of nodes above which details are hidden while the graph moves. */
const LARGE = 200;
const PAN_STEP = 80;
const ZOOM_STEP = 1.25;

interface Props {
  graph: Graph;
  selected: string | null;
  onSelect: (id: string | null) => void;
  onOpen: (id: string) => void;
  /** Counter: a change lays out the nodes again. */
  arrangement: number;
}

const color = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function style(isLarge: boolean): cytoscape.StylesheetJson {
  const edge = (state: string, more: Record<string, unknown>) => ({
    selector: `edge[state="${state}"]`,
    style: { "line-color": color(`--edge-${state}`), "target-arrow-color": color(`--edge-${state}`), ...more },
  });
  return [
    {
      selector: "node",
      style: {
        label: "data(label)",
        width: 34,
        height: 34,
        shape: "round-rectangle",
        "font-size": 11,
        "font-family": "system-ui, sans-serif",
        color: color("--text"),
        "text-valign": "bottom",
        "text-margin-y": 5,
        "text-max-width": "130px",
        "text-wrap": "ellipsis",
        "min-zoomed-font-size": 7,
        "background-color": color("--node"),
        "border-width": 2,
        "border-color": color("--node-border"),
      },
    },
    { selector: 'node[membership="none"]', style: { "border-style": "dashed", "background-opacity": 0.35 } },
    { selector: 'node[membership="some"]', style: { "border-style": "dotted" } },
    { selector: 'node[kind="waypoint"]', style: { shape: "hexagon", "background-color": color("--waypoint") } },
    { selector: 'node[kind="service"]', style: { shape: "ellipse", "background-color": color("--service") } },
    { selector: 'node[kind="outside"]', style: { shape: "diamond", "background-color": color("--outside") } },
    {
      selector: 'node[kind="namespace"]',
      style: {
        shape: "round-rectangle",
        "background-color": color("--box"),
        "background-opacity": 0.5,
        "border-width": 1,
        "border-color": color("--line"),
        "text-valign": "top",
        "text-margin-y": -4,
        // Legible when the whole of a large mesh is visible.
        "font-size": isLarge ? 60 : 14,
        "font-weight": "bold",
        "text-max-width": "900px",
        padding: "34px",
      },
    },
    {
      selector: "edge",
      style: {
        width: "data(width)",
        // Straight lines without arrows are drawn many times faster.
        "curve-style": isLarge ? "haystack" : "bezier",
        "target-arrow-shape": "triangle",
        "arrow-scale": 0.9,
        label: "data(label)",
        "font-size": 10,
        "font-family": "system-ui, sans-serif",
        "text-rotation": "autorotate",
        color: color("--text"),
        "text-background-color": color("--page"),
        "text-background-opacity": 0.8,
        "text-background-padding": "2px",
        "min-zoomed-font-size": 9,
      },
    },
    edge("idle", { opacity: 0.4 }),
    edge("encrypted", isLarge ? { opacity: 0.35 } : {}),
    edge("plaintext", { "line-style": "dashed", "z-index": 1 }),
    edge("failing", { "line-style": "dashed", "line-dash-pattern": [8, 3], "z-index": 2 }),
    edge("refused", { "line-style": "dotted", "target-arrow-shape": "tee", "z-index": 3 }),
    { selector: ":selected", style: { "border-color": color("--accent"), "border-width": 4 } },
    { selector: "edge:selected", style: { "overlay-color": color("--accent"), "overlay-opacity": 0.25, "z-index": 9 } },
  ] as unknown as cytoscape.StylesheetJson;
}

export function labelOf({ edge, state }: GraphEdge): string {
  const parts: string[] = [];
  if (edge.requests > 0) parts.push(`${rate(edge.requests)} req/s`);
  else if (edge.connections > 0) parts.push(`${rate(edge.connections)} conn/s`);
  if (edge.errors > 0) parts.push(`${rate(edge.errors)} err/s`);
  if (edge.refused > 0) parts.push(`${rate(edge.refused)} refused/s`);
  if (state === "plaintext") parts.push("plaintext");
  return parts.join(" · ");
}

const boxOf = (node: GraphNode): string | undefined =>
  node.kind === "outside" ? undefined : `namespace/${encodeURIComponent(node.namespace)}`;

const dataOf = (node: GraphNode) => ({
  id: node.id,
  kind: node.kind,
  membership: node.membership,
  parent: boxOf(node),
  label: short(node.kind === "workload" && node.pods > 1 ? `${node.name} (${node.pods})` : node.name, 60),
});

const widthOf = ({ edge }: GraphEdge): number =>
  Math.round(1.5 + 1.5 * Math.log10(1 + edge.connections + edge.requests + edge.refused));

/** Data of an edge. In a large graph it omits rates, which change every second and would redraw each edge. */
const edgeDataOf = (edge: GraphEdge, isLarge: boolean) => ({
  id: edge.id,
  source: edge.from,
  target: edge.to,
  state: edge.state,
  label: isLarge ? "" : labelOf(edge),
  width: isLarge ? 2 : widthOf(edge),
});

type Data = { id: string } & Record<string, unknown>;

/** The drawing, with the elements and data drawn last: reading each from cytoscape takes longer than drawing it. */
interface Drawing {
  cy: cytoscape.Core;
  known: Map<string, { element: cytoscape.CollectionReturnValue; data: Data }>;
}

/** Updates the drawing to a graph, without touching unchanged elements. Returns whether nodes were added or removed. */
function draw({ cy, known }: Drawing, graph: Graph): boolean {
  const isLarge = graph.nodes.length > LARGE;
  const wanted = new Map<string, ["nodes" | "edges", Data]>();
  for (const node of graph.nodes) {
    const box = boxOf(node);
    if (box) wanted.set(box, ["nodes", { id: box, kind: "namespace", label: short(node.namespace, 60) }]);
  }
  for (const node of graph.nodes) wanted.set(node.id, ["nodes", dataOf(node)]);
  for (const edge of graph.edges) wanted.set(edge.id, ["edges", edgeDataOf(edge, isLarge)]);
  let isOther = false;
  cy.batch(() => {
    for (const [id, { element }] of known) {
      if (wanted.has(id)) continue;
      isOther ||= element.isNode();
      element.remove();
      known.delete(id);
    }
    const added: cytoscape.ElementDefinition[] = [];
    for (const [id, [group, data]] of wanted) {
      const before = known.get(id);
      if (!before) {
        isOther ||= group === "nodes";
        added.push({ group, data });
        continue;
      }
      for (const [key, value] of Object.entries(data)) if (before.data[key] !== value) before.element.data(key, value);
      before.data = data;
    }
    cy.add(added);
    for (const { data } of added) known.set(String(data.id), { element: cy.getElementById(String(data.id)), data: data as Data });
  });
  return isOther;
}

function arrange(cy: cytoscape.Core, graph: Graph): void {
  const all = places(graph);
  cy.batch(() => {
    for (const [id, place] of all) cy.getElementById(id).position(place);
  });
  cy.fit(undefined, 40);
  if (cy.zoom() > 1.4) {
    cy.zoom(1.4);
    cy.center();
  }
}

export function Canvas({ graph, selected, onSelect, onOpen, arrangement }: Props): VNode {
  const place = useRef<HTMLDivElement>(null);
  const drawn = useRef<Drawing | null>(null);
  const arranged = useRef(-1);
  const isLarge = graph.nodes.length > LARGE;

  useEffect(() => {
    const cy = cytoscape({
      container: place.current,
      style: style(isLarge),
      layout: { name: "preset" },
      minZoom: 0.05,
      maxZoom: 4,
      boxSelectionEnabled: false,
      selectionType: "single",
      hideEdgesOnViewport: isLarge,
      hideLabelsOnViewport: isLarge,
      textureOnViewport: isLarge,
      ...(isLarge ? { pixelRatio: 1 } : {}),
    });
    drawn.current = { cy, known: new Map() };
    arranged.current = -1;
    cy.on("tap", (event) => {
      const target = event.target as cytoscape.Core | cytoscape.SingularElementArgument;
      const isElement = target !== cy && "id" in target;
      onSelect(isElement && target.data("kind") !== "namespace" ? target.id() : null);
    });
    cy.on("dbltap", "node", (event) => onOpen((event.target as cytoscape.NodeSingular).id()));
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const restyle = (): void => void cy.style(style(isLarge));
    dark.addEventListener("change", restyle);
    return () => {
      dark.removeEventListener("change", restyle);
      cy.destroy();
    };
  }, [isLarge]);

  useEffect(() => {
    if (!drawn.current) return;
    const isOther = draw(drawn.current, graph);
    if (graph.nodes.length > 0 && (isOther || arranged.current !== arrangement)) {
      arrange(drawn.current.cy, graph);
      arranged.current = arrangement;
    }
  }, [graph, arrangement, isLarge]);

  useEffect(() => {
    const cy = drawn.current?.cy;
    if (!cy) return;
    cy.elements(":selected").unselect();
    if (selected !== null) cy.getElementById(selected).select();
  }, [selected, graph, isLarge]);

  const onKeyDown = (event: KeyboardEvent): void => {
    const cy = drawn.current?.cy;
    if (!cy || event.ctrlKey || event.altKey || event.metaKey) return;
    const zoom = (factor: number): void =>
      void cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
    const step = (by: number): void => {
      const ids = graph.nodes.map(({ id }) => id);
      const next = ids[(ids.indexOf(selected ?? "") + by + ids.length) % ids.length];
      if (next === undefined) return;
      onSelect(next);
      cy.center(cy.getElementById(next));
    };
    const keys: Record<string, () => void> = {
      ArrowLeft: () => void cy.panBy({ x: PAN_STEP, y: 0 }),
      ArrowRight: () => void cy.panBy({ x: -PAN_STEP, y: 0 }),
      ArrowUp: () => void cy.panBy({ x: 0, y: PAN_STEP }),
      ArrowDown: () => void cy.panBy({ x: 0, y: -PAN_STEP }),
      "+": () => zoom(ZOOM_STEP),
      "=": () => zoom(ZOOM_STEP),
      "-": () => zoom(1 / ZOOM_STEP),
      "0": () => void cy.fit(undefined, 40),
      n: () => step(1),
      p: () => step(-1),
      Enter: () => selected !== null && onOpen(selected),
      Escape: () => onSelect(null),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };

  return (
    <div
      class="canvas"
      ref={place}
      tabIndex={0}
      role="application"
      aria-label="Graph of the mesh. Arrows move it, plus and minus zoom, 0 shows all, n and p select the next or previous node, Enter opens it. The table below has the same edges."
      data-nodes={graph.nodes.length}
      data-edges={graph.edges.length}
      onKeyDown={onKeyDown}
    />
  );
}
