// What the page knows: the mesh, traffic and the latest events, followed as they change. Everything is bounded.

import { computed, signal } from "@preact/signals";
import { Failure, get } from "./api";
import type { About, Edge, Flow, Mesh, MeshAnswer, TrafficAnswer } from "./types";

/** Events that are kept, of refusals and of others. */
const MAX_EVENTS = 500;
/** Shortest time between two answers, so that a busy mesh does not keep the page from drawing. */
const PAUSE_MS = 200;
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 2000;

export const about = signal<About | null>(null);
export const mesh = signal<Mesh | null>(null);
export const edges = signal<Edge[]>([]);
export const refusals = signal<Flow[]>([]);
export const others = signal<Flow[]>([]);
export const lost = signal({ sampled: 0, refusals: 0, forgotten: 0 });
export const silent = signal<string[]>([]);

/** Why the server does not answer. */
export const serverTrouble = signal<string | null>(null);
/** Why the server cannot read the mesh, and the age of what it shows instead. */
export const meshTrouble = signal<{ error: string; age: number | null } | null>(null);

export const isRefusal = (flow: Flow): boolean => flow.event === "refused" || flow.event === "failed";

export const events = computed(() =>
  [...refusals.value, ...others.value].sort((one, other) => other.number - one.number),
);

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Asks again and again; what fails is tried again, less and less often. */
async function follow(look: () => Promise<void>): Promise<never> {
  let retry = FIRST_RETRY_MS;
  for (;;) {
    try {
      await look();
      serverTrouble.value = null;
      retry = FIRST_RETRY_MS;
      await pause(PAUSE_MS);
    } catch (error) {
      serverTrouble.value =
        error instanceof Failure
          ? error.message
          : "The dashboard does not answer: is `ambit dashboard` still running? What is shown is old.";
      await pause(retry);
      retry = Math.min(retry * 2, LAST_RETRY_MS);
    }
  }
}

/** Begins to follow the mesh and its traffic. */
export function start(): void {
  let version = 0;
  void follow(async () => {
    about.value ??= await get<About>("about");
    const answer = await get<MeshAnswer>("mesh", { after: version });
    if (answer.mesh) mesh.value = answer.mesh;
    version = answer.version;
    meshTrouble.value = answer.error === null ? null : { error: answer.error, age: answer.ageSeconds };
  });
  let latest = 0;
  void follow(async () => {
    const answer = await get<TrafficAnswer>("traffic", { after: latest });
    if (answer.latest < latest) [refusals.value, others.value] = [[], []];
    latest = answer.latest;
    take(answer);
  });
}

/** Takes an answer about traffic. */
export function take(answer: TrafficAnswer): void {
  edges.value = answer.edges;
  lost.value = { ...answer.lost, forgotten: answer.forgotten };
  silent.value = answer.silent ?? [];
  const later = answer.events.filter(isRefusal);
  if (later.length > 0) refusals.value = [...refusals.value, ...later].slice(-MAX_EVENTS);
  const rest = answer.events.filter((event) => !isRefusal(event));
  if (rest.length > 0) others.value = [...others.value, ...rest].slice(-MAX_EVENTS);
}
